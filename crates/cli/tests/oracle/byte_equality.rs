//! A model that is loaded and written again keeps every byte of every tensor: published by its ranks, and through tiles and
//! `thresh hf export`.

use std::{collections::BTreeMap, path::Path, process::Command, sync::Arc, time::Duration};

use checkpoint::{
    ExportTypes, FILE_BYTES_MAX, Fingerprint, Position, PublishTo, RealDisk, Rng,
    hf::{Folder, load_weights},
};
use models::{ParamStore, param_specs};
use parallel::{AdamWConfig, DistOptimizer, FlatParam, Grid, Groups, Layout};
use safetensors::SafeTensors;
use tensor::{Backend, CpuBackend, DType};

use crate::{ours::config, reference::prepared};

/// Type, shape and bytes of each tensor.
type Contents = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

fn contents(folder: &Path) -> Contents {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.iter();
    tensors.map(|(name, t)| (name.to_owned(), (t.dtype().to_string(), t.shape().to_vec(), t.data().to_vec()))).collect()
}

/// Each rank loads its part of `from`, then all publish to `published` and save tiles.
fn load_and_write(from: &Path, tp: usize, published: &Path, tiles: &Path) {
    let grid = Grid::new(Layout { tp, ..Layout::default() }).unwrap();
    let world = comm::thread::world(tp, Duration::from_secs(600)).unwrap();
    let rank = |groups: Groups| {
        let be: Arc<dyn Backend> = Arc::new(CpuBackend::new(1));
        let specs = param_specs(&config(from));
        let store = ParamStore::new(&*be, specs, DType::F32, groups.tp.rank(), groups.tp.size()).unwrap();
        let folder = Folder::open(from).unwrap();
        load_weights(&folder, &*be, &store).unwrap();
        let types = ExportTypes::of_folder(&folder, DType::F32);
        let to = PublishTo { folder: published, config_from: from, types, file_bytes_max: FILE_BYTES_MAX };
        checkpoint::publish(&RealDisk, &to, &groups, &*be, &store).unwrap();
        let params = FlatParam::of_store(&store, false);
        let (dp, tp) = (groups.dp.clone(), groups.tp.clone());
        let adamw = AdamWConfig::default();
        let optimizer = DistOptimizer::new(be.clone(), dp, tp, &params, store.flat(), adamw).unwrap();
        let position = Position {
            step: 0,
            schedule_position: 0,
            rng: Rng::default(),
            fingerprint: Fingerprint { model: "oracle".into(), tokenizer: "oracle".into() },
            extra: serde_json::Value::Null,
        };
        checkpoint::save(&RealDisk, tiles, &groups, &*be, &store, &optimizer, &position).unwrap();
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            world.into_iter().map(|group| scope.spawn(|| rank(Groups::new(group, grid).unwrap()))).collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

fn keeps_every_byte(model: &str, tp: usize) {
    let from = prepared(model);
    let work = tempfile::tempdir().unwrap();
    let [published, tiles, exported] = ["published", "tiles", "exported"].map(|name| work.path().join(name));
    load_and_write(&from, tp, &published, &tiles);
    let export = Command::new(env!("CARGO_BIN_EXE_thresh"))
        .args(["hf", "export"])
        .arg(&tiles)
        .arg("--model")
        .arg(&from)
        .arg("--out")
        .arg(&exported)
        .status()
        .unwrap();
    assert!(export.success(), "thresh hf export: {export}");
    let before = contents(&from);
    for (how, folder) in [("published", &published), ("exported", &exported)] {
        let after = contents(folder);
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "{model}, {how}");
        for (name, tensor) in &before {
            assert!(after[name] == *tensor, "{model}, tp {tp}, {how}: {name} has changed");
        }
        for file in ["config.json", "generation_config.json"] {
            assert_eq!(std::fs::read(folder.join(file)).unwrap(), std::fs::read(from.join(file)).unwrap(), "{file}");
        }
    }
    let bytes: usize = before.values().map(|(_, _, bytes)| bytes.len()).sum();
    eprintln!("{model}, tp {tp}: {} tensors, {bytes} bytes are equal, published and exported", before.len());
}

#[test]
fn small_models_keep_every_byte() {
    for (model, tp) in [("qwen3", 1), ("qwen3", 2), ("llama", 1), ("llama3", 1), ("llama3", 2)] {
        keeps_every_byte(model, tp);
    }
}

#[test]
fn smollm2_keeps_every_byte() {
    // It has three key-value heads.
    for tp in [1, 3] {
        keeps_every_byte("smollm2", tp);
    }
}

#[test]
fn smollm2_in_bf16_keeps_every_byte() {
    for tp in [1, 3] {
        keeps_every_byte("smollm2-bf16", tp);
    }
}
