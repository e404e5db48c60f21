//! Hugging Face folders: what is read and written again keeps every byte, in any layout.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::hf::{Folder, folder_digest, has_weights, load_weights};
use checkpoint::{Checkpoint, Error, ExportTypes, FILE_BYTES_MAX, PublishTo, RealDisk, publish};
use models::{ModelConfig, ParamStore, param_specs};
use parallel::{AdamWConfig, DistOptimizer, FlatParam};
use safetensors::SafeTensors;
use support::{LAYOUTS, Rank, on_ranks, value};
use tensor::{Backend, CpuBackend, DType, Tag, Tensor};

/// Reference models and gradients made with PyTorch and transformers; kept with the crate that compares logits, or just
/// derived by `make test-oracle`.
fn oracle(model: &str) -> PathBuf {
    let kept = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data");
    std::env::var_os("THRESH_ORACLE_DIR").map_or_else(kept, PathBuf::from).join(model)
}

fn config_of(folder: &Path) -> ModelConfig {
    ModelConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

/// Name to type, shape and bytes, over all files of a folder.
fn contents(folder: &Path) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let bytes = std::fs::read(&path).unwrap();
            for (name, t) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let known = out.insert(name.clone(), (t.dtype().to_string(), t.shape().to_vec(), t.data().to_vec()));
                assert!(known.is_none(), "{name} is in two files");
            }
        }
    }
    out
}

/// A folder of a made-up model; `types` gives the type of each tensor.
fn make_folder(folder: &Path, tied: bool, types: impl Fn(&str) -> DType) -> BTreeMap<String, Vec<u8>> {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), support::config_json(32, tied)).unwrap();
    std::fs::write(folder.join("tokenizer.json"), b"{\"version\": \"1.0\",\n \"odd spacing\" :1}").unwrap();
    std::fs::write(folder.join("chat_template.jinja"), b"{{ messages }}").unwrap();
    std::fs::write(folder.join("notes.bin"), b"not a companion").unwrap();
    let mut views = Vec::new();
    for piece in param_specs(&support::config(tied)).iter().flat_map(|s| &s.hf) {
        let dtype = types(&piece.name);
        let n: usize = piece.shape.iter().product();
        let bytes: Vec<u8> = (0..n)
            .flat_map(|i| {
                let x = value(&piece.name, i);
                match dtype {
                    DType::BF16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
                    DType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
                    _ => x.to_le_bytes().to_vec(),
                }
            })
            .collect();
        views.push((piece.name.clone(), dtype, piece.shape.clone(), bytes));
    }
    write_safetensors(&folder.join("model.safetensors"), &views);
    views.into_iter().map(|(name, _, _, bytes)| (name, bytes)).collect()
}

fn write_safetensors(path: &Path, tensors: &[(String, DType, Vec<usize>, Vec<u8>)]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let dtype = match dtype {
            DType::BF16 => safetensors::Dtype::BF16,
            DType::F16 => safetensors::Dtype::F16,
            DType::I64 => safetensors::Dtype::I64,
            _ => safetensors::Dtype::F32,
        };
        (name.clone(), safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn load(rank: &Rank, folder: &Path) -> checkpoint::Result<()> {
    load_weights(&Folder::open(folder)?, &*rank.be, &rank.store)
}

fn export(rank: &Rank, from: &Path, to: &Path, types: ExportTypes, file_bytes_max: u64) -> checkpoint::Result<()> {
    let to = PublishTo { folder: to, config_from: from, types, file_bytes_max };
    publish(&RealDisk, &to, &rank.groups, &*rank.be, &rank.store)
}

#[test]
fn a_checkpoint_read_and_written_again_keeps_every_byte_in_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    let mixed = |name: &str| match name {
        n if n.contains("norm") => DType::F32,
        n if n.contains("mlp") => DType::F16,
        _ => DType::BF16,
    };
    for (case, types) in [("bf16", (|_| DType::BF16) as fn(&str) -> DType), ("f32", |_| DType::F32), ("mixed", mixed)] {
        let from = dir.path().join(case);
        make_folder(&from, case == "bf16", types);
        let before = contents(&from);
        for layout in LAYOUTS {
            for file_bytes_max in [FILE_BYTES_MAX, 9_000] {
                let to = dir.path().join(format!("{case}-{layout:?}-{file_bytes_max}"));
                on_ranks(layout, |g| {
                    let rank = Rank::new(g, &support::config(case == "bf16"), DType::F32);
                    load(&rank, &from).unwrap();
                    let types = ExportTypes::of_folder(&Folder::open(&from).unwrap(), DType::F32);
                    export(&rank, &from, &to, types, file_bytes_max).unwrap();
                });
                assert_eq!(contents(&to), before, "{case} {layout:?}");
                let sharded = to.join("model.safetensors.index.json").exists();
                assert_eq!(sharded, file_bytes_max == 9_000);
                assert_eq!(to.join("model.safetensors").exists(), !sharded);
                for name in ["config.json", "tokenizer.json", "chat_template.jinja"] {
                    assert_eq!(
                        std::fs::read(to.join(name)).unwrap(),
                        std::fs::read(from.join(name)).unwrap(),
                        "{name}"
                    );
                }
                assert!(!to.join("notes.bin").exists());
                // And what was written can be read again, one file or many.
                assert_eq!(folder_digest(&to).unwrap(), folder_digest(&from).unwrap());
                on_ranks((1, 2), |g| {
                    let rank = Rank::new(g, &support::config(case == "bf16"), DType::F32);
                    load(&rank, &to).unwrap();
                });
            }
        }
    }
}

#[test]
fn real_models_keep_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    // Two key-value heads, and one that cannot be divided.
    for (model, layout) in [("qwen3", (2, 2)), ("llama", (2, 1))] {
        let from = oracle(model);
        let to = dir.path().join(model);
        on_ranks(layout, |g| {
            let rank = Rank::new(g, &config_of(&from), DType::F32);
            load(&rank, &from).unwrap();
            export(&rank, &from, &to, ExportTypes::All(DType::F32), FILE_BYTES_MAX).unwrap();
        });
        assert_eq!(
            Folder::open(&to).unwrap().names().map(str::to_owned).collect::<Vec<_>>(),
            Folder::open(&from).unwrap().names().map(str::to_owned).collect::<Vec<_>>()
        );
        let before = SafeTensors::deserialize(&std::fs::read(from.join("model.safetensors")).unwrap())
            .unwrap()
            .tensors()
            .into_iter()
            .map(|(name, t)| (name, (t.dtype().to_string(), t.shape().to_vec(), t.data().to_vec())))
            .collect::<BTreeMap<_, _>>();
        assert_eq!(contents(&to), before);
    }
}

#[test]
fn a_published_folder_has_the_digest_of_the_weights_that_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("model");
    make_folder(&from, true, |_| DType::F32);
    let mut digests = Vec::new();
    for layout in LAYOUTS {
        let to = dir.path().join(format!("{layout:?}"));
        let of_weights = on_ranks(layout, |g| {
            let rank = Rank::filled(g, &support::config(true), DType::F32);
            export(&rank, &from, &to, ExportTypes::All(DType::F32), 9_000).unwrap();
            rank.digest()
        });
        let of_folder = folder_digest(&to).unwrap();
        assert!(of_weights.iter().all(|d| *d == of_folder), "{layout:?}");
        // An engine that loaded it, as one rank or as two, finds the same.
        for tp in [1, 2] {
            let of_engine = on_ranks((1, tp), |g| {
                let rank = Rank::new(g, &support::config(true), DType::F32);
                load(&rank, &to).unwrap();
                let all = std::iter::once(0..rank.store.layout().len);
                checkpoint::weights_digest(&*rank.groups.tp, &*rank.be, &rank.store, all).unwrap()
            });
            assert!(of_engine.iter().all(|d| *d == of_folder));
        }
        digests.push(of_folder);
    }
    assert!(digests.windows(2).all(|w| w[0] == w[1]), "no layout shows in the digest");

    // One changed bit in one published tensor.
    let files = std::fs::read_dir(dir.path().join(format!("{:?}", LAYOUTS[0]))).unwrap().map(|e| e.unwrap().path());
    let path = files.into_iter().find(|p| p.to_string_lossy().contains("model-00002-of-")).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_ne!(folder_digest(path.parent().unwrap()).unwrap(), digests[0]);
}

#[test]
fn a_tied_model_saves_no_head_and_ignores_one_that_lies_there() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("model");
    let tensors = make_folder(&from, true, |_| DType::F32);
    assert!(!tensors.contains_key("lm_head.weight"));
    // Some exporters write the embedding a second time.
    let mut with_head: Vec<_> =
        contents(&from).into_iter().map(|(name, (_, shape, bytes))| (name, DType::F32, shape, bytes)).collect();
    let embedding = with_head.iter().find(|t| t.0 == "model.embed_tokens.weight").unwrap().clone();
    with_head.push(("lm_head.weight".into(), DType::F32, embedding.2, embedding.3));
    write_safetensors(&from.join("model.safetensors"), &with_head);
    let to = dir.path().join("out");
    on_ranks((1, 2), |g| {
        let rank = Rank::new(g, &support::config(true), DType::F32);
        load(&rank, &from).unwrap();
        export(&rank, &from, &to, ExportTypes::All(DType::F32), FILE_BYTES_MAX).unwrap();
    });
    assert!(!contents(&to).contains_key("lm_head.weight"));
    assert_eq!(contents(&to).len(), tensors.len());
}

#[test]
fn tensors_that_are_missing_unknown_or_of_another_shape_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("model");
    make_folder(&from, false, |_| DType::F32);
    let good: Vec<_> =
        contents(&from).into_iter().map(|(name, (_, shape, bytes))| (name, DType::F32, shape, bytes)).collect();
    let outcome = |tensors: &[(String, DType, Vec<usize>, Vec<u8>)]| {
        write_safetensors(&from.join("model.safetensors"), tensors);
        on_ranks((1, 1), |g| load(&Rank::new(g, &support::config(false), DType::F32), &from)).remove(0)
    };
    let without: Vec<_> = good.iter().filter(|t| !t.0.contains("v_proj")).cloned().collect();
    let error = outcome(&without).unwrap_err();
    let both = ["model.layers.0.self_attn.v_proj.weight", "model.layers.1.self_attn.v_proj.weight"];
    assert!(matches!(&error, Error::Missing { names, .. } if names == &both), "{error}");

    let mut bias = good.clone();
    bias.push(("model.layers.0.self_attn.q_proj.bias".into(), DType::F32, vec![4], vec![0; 16]));
    let error = outcome(&bias).unwrap_err();
    assert!(error.to_string().contains("q_proj.bias") && error.to_string().contains("no such tensor"), "{error}");

    let mut turned = good.clone();
    let at = turned.iter().position(|t| t.0.contains("0.mlp.down_proj")).unwrap();
    turned[at].2.reverse();
    let error = outcome(&turned).unwrap_err();
    assert!(matches!(&error, Error::Mismatch { tensor, .. } if tensor.contains("down_proj")), "{error}");

    let mut table = good.clone();
    table.push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), DType::F32, vec![4], vec![0; 16]));
    outcome(&table).unwrap();

    std::fs::remove_file(from.join("model.safetensors")).unwrap();
    assert!(!has_weights(&from));
    assert!(Folder::open(&from).unwrap_err().to_string().contains("model.safetensors.index.json"));
}

#[test]
fn a_folder_is_never_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("model");
    make_folder(&from, true, |_| DType::F32);
    let before = contents(&from);
    let errors = on_ranks((2, 1), |g| {
        let rank = Rank::filled(g, &support::config(true), DType::F32);
        export(&rank, &from, &from, ExportTypes::All(DType::F32), FILE_BYTES_MAX).unwrap_err()
    });
    assert!(matches!(errors[0], Error::Exists { .. }), "{}", errors[0]);
    assert_eq!(contents(&from), before);
}

#[test]
fn tiles_export_to_the_folder_that_the_ranks_would_publish() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("model");
    make_folder(&from, true, |_| DType::F32);
    let (tiles, published) = (dir.path().join("tiles"), dir.path().join("published"));
    on_ranks((2, 2), |g| {
        let rank = Rank::filled(g, &support::config(true), DType::F32);
        rank.save(&tiles, 5).unwrap();
        export(&rank, &from, &published, ExportTypes::All(DType::BF16), 9_000).unwrap();
    });
    let exported = dir.path().join("exported");
    let to = PublishTo {
        folder: &exported,
        config_from: &from,
        types: ExportTypes::All(DType::BF16),
        file_bytes_max: FILE_BYTES_MAX,
    };
    let checkpoint = Checkpoint::open(&tiles, None).unwrap();
    checkpoint.export(&RealDisk, &CpuBackend::new(1), &param_specs(&support::config(true)), &to).unwrap();
    assert_eq!(contents(&exported), contents(&published));
}

/// ‖a − b‖ / ‖b‖
fn relative(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(x, y)| square(f64::from(*x) - f64::from(*y))).sum();
    (difference / b.iter().map(|y| square(f64::from(*y))).sum::<f64>()).sqrt()
}

#[test]
fn an_adamw_step_from_pytorch_s_gradients_gives_pytorch_s_weights_in_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    let model = "qwen3";
    let source = oracle(model);
    let config = config_of(&source);
    let meta: serde_json::Value = serde_json::from_slice(&std::fs::read(source.join("meta.json")).unwrap()).unwrap();
    let total_norm = meta["adamw"]["total_norm"].as_f64().unwrap();
    // Files beside the model become folders of their own, so that the same map reads them.
    let as_folder = |file: &str| {
        let folder = dir.path().join(model).join(file);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(source.join(format!("{file}.safetensors")), folder.join("model.safetensors")).unwrap();
        folder
    };
    let (gradients, after) = (as_folder("grad_grpo"), as_folder("after_adamw"));
    for layout in LAYOUTS {
        let mut worst = 0.0f64;
        for error in on_ranks(layout, |g| {
            let be: Arc<dyn Backend> = Arc::new(CpuBackend::new(1));
            let read = |folder: &Path| {
                let store = ParamStore::new(&*be, param_specs(&config), DType::F32, g.tp.rank(), g.tp.size()).unwrap();
                load_weights(&Folder::open(folder).unwrap(), &*be, &store).unwrap();
                store
            };
            let (store, grads, want) = (read(&source), read(&gradients), read(&after));
            // The reference decays every parameter.
            let params = FlatParam::of_store(&store, true);
            let adamw = AdamWConfig { beta2: 0.95, weight_decay: 0.1, ..AdamWConfig::default() };
            let mut optimizer =
                DistOptimizer::new(be.clone(), g.dp.clone(), g.tp.clone(), &params, store.flat(), adamw).unwrap();
            let flat = grads.flat().clone();
            if g.dp.rank() != 0 {
                be.fill(tensor::Stream::COMPUTE, &flat, 0.0).unwrap();
            }
            let report = optimizer.step(&flat, 1e-3, 1.0).unwrap();
            assert!((report.grad_norm - total_norm).abs() <= 1e-6 * total_norm, "{report:?}");
            let entries = store.layout().entries.clone();
            let of = |t: &Tensor, i: usize| {
                let e: &models::FlatEntry = &entries[i];
                t.flat(e.offset, e.rect.numel()).unwrap().to_vec::<f32>(&*be).unwrap()
            };
            (0..entries.len()).map(|i| relative(&of(store.flat(), i), &of(want.flat(), i))).fold(0.0, f64::max)
        }) {
            worst = worst.max(error);
        }
        eprintln!("{model} {layout:?}: adamw, worst {worst:.2e}");
        assert!(worst <= 1e-6, "{model} {layout:?}: {worst:e}");
    }
}

#[test]
fn a_rank_reads_its_slices_of_a_file_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("model");
    make_folder(&from, false, |_| DType::F32);
    on_ranks((1, 2), |g| {
        let rank = Rank::new(g, &support::config(false), DType::F32);
        load(&rank, &from).unwrap();
        let be = &*rank.be;
        let folder = Folder::open(&from).unwrap();
        for (spec, entry) in rank.store.specs().iter().zip(&rank.store.layout().entries) {
            let mine = rank.store.flat().flat(entry.offset, entry.rect.numel()).unwrap().to_vec::<f32>(be).unwrap();
            for piece in &spec.hf {
                let n: usize = piece.shape.iter().product();
                let mut bytes = vec![0; 4 * n];
                folder.read(&piece.name, &piece.shape, &checkpoint::Rect::full(&piece.shape), &mut bytes).unwrap();
                let whole = Tensor::empty(be, DType::F32, &[n], Tag::Work).unwrap();
                be.upload(tensor::Stream::COMPUTE, &whole, &bytes).unwrap();
                let whole = whole.to_vec::<f32>(be).unwrap();
                piece.rect.shared_runs(&entry.rect, |theirs, ours, n| {
                    assert_eq!(whole[theirs..theirs + n], mine[ours..ours + n], "{}", piece.name);
                });
            }
        }
    });
}
