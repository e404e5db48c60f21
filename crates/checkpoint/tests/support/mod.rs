//! Small models on several ranks, with weights and moments that are functions of the global index.
#![allow(dead_code)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use checkpoint::{Fingerprint, Position, Rect, Rng};
use models::{ModelConfig, ParamStore, param_specs};
use parallel::{AdamWConfig, DistOptimizer, FlatParam, Grid, Groups, Layout};
use tensor::{Backend, CpuBackend, DType, ReferenceBackend, Stream};

pub const WAIT: Duration = Duration::from_secs(300);

/// (dp, tp)
pub const LAYOUTS: [(usize, usize); 6] = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)];

/// A Qwen3 whose vocabulary does not divide by two.
pub fn config_json(hidden: usize, tied: bool) -> String {
    format!(
        r#"{{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":61,"hidden_size":{hidden},
        "intermediate_size":48,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
        "rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":{tied},"max_position_embeddings":64,
        "dtype":"float32"}}"#
    )
}

pub fn config(tied: bool) -> ModelConfig {
    ModelConfig::from_json(&config_json(32, tied)).unwrap()
}

pub fn fingerprint() -> Fingerprint {
    Fingerprint { model: "qwen3-h32-l2-0123456789abcdef".into(), tokenizer: "fedcba9876543210".into() }
}

pub fn position(step: u64) -> Position {
    Position {
        step,
        schedule_position: 3 * step,
        rng: Rng { seed: 17, position: 5 },
        fingerprint: fingerprint(),
        extra: serde_json::json!({"phase": "rl"}),
    }
}

pub fn groups(dp: usize, tp: usize) -> Vec<Groups> {
    let grid = Grid::new(Layout::dp_tp(dp, tp)).unwrap();
    comm::thread::world(dp * tp, WAIT).unwrap().into_iter().map(|w| Groups::new(w, grid).unwrap()).collect()
}

/// Runs every rank of a layout on a thread of its own.
pub fn on_ranks<T: Send>((dp, tp): (usize, usize), run: impl Fn(Groups) -> T + Sync) -> Vec<T> {
    std::thread::scope(|s| {
        let threads: Vec<_> = groups(dp, tp).into_iter().map(|g| s.spawn(|| run(g))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// One rank's model and optimizer.
pub struct Rank {
    pub groups: Groups,
    pub be: Arc<dyn Backend>,
    pub store: ParamStore,
    pub optimizer: DistOptimizer,
}

impl Rank {
    /// Zero weights and moments.
    pub fn new(groups: Groups, config: &ModelConfig, dtype: DType) -> Rank {
        Rank::of_specs(groups, param_specs(config), dtype)
    }

    pub fn of_specs(groups: Groups, specs: Vec<models::ParamSpec>, dtype: DType) -> Rank {
        let be: Arc<dyn Backend> =
            if dtype == DType::F32 { Arc::new(CpuBackend::new(1)) } else { Arc::new(ReferenceBackend::new()) };
        let store = ParamStore::new(&*be, specs, dtype, groups.tp.rank(), groups.tp.size()).unwrap();
        let optimizer = new_optimizer(&groups, &be, &store);
        Rank { groups, be, store, optimizer }
    }

    /// Weights and moments that [`value`] prescribes, and a step count.
    pub fn filled(groups: Groups, config: &ModelConfig, dtype: DType) -> Rank {
        let mut rank = Rank::new(groups, config, dtype);
        for (prefix, pick) in [("master.", 0), ("m.", 1), ("v.", 2)] {
            let all = rank.local(prefix);
            for piece in rank.optimizer.owned() {
                let target = [&piece.master, &piece.m, &piece.v][pick];
                let bytes: Vec<u8> = all[piece.flat.clone()].iter().flat_map(|x| x.to_le_bytes()).collect();
                rank.be.upload(Stream::COMPUTE, target, &bytes).unwrap();
            }
        }
        rank.optimizer.weights_from_masters().unwrap();
        rank.optimizer.set_optimizer_steps(7);
        rank
    }

    /// What the flat buffer of this rank must hold.
    pub fn local(&self, prefix: &str) -> Vec<f32> {
        let mut out = vec![0.0; self.store.layout().len];
        for (spec, entry) in self.store.specs().iter().zip(&self.store.layout().entries) {
            entry.rect.shared_runs(&Rect::full(&spec.shape), |at, global, n| {
                for i in 0..n {
                    out[entry.offset + at + i] = value(&format!("{prefix}{}", spec.name), global + i);
                }
            });
        }
        out
    }

    /// That masters, moments and weights are what [`value`] prescribes, to the bit.
    pub fn assert_filled(&self) {
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for (prefix, pick) in [("master.", 0), ("m.", 1), ("v.", 2)] {
            let want = self.local(prefix);
            for piece in self.optimizer.owned() {
                let got = [&piece.master, &piece.m, &piece.v][pick].to_vec::<f32>(&*self.be).unwrap();
                assert_eq!(bits(&got), bits(&want[piece.flat.clone()]), "{prefix} {:?}", piece.flat);
            }
        }
        self.assert_weights();
    }

    /// That the weights are the rounded masters.
    pub fn assert_weights(&self) {
        let want: Vec<f64> = self.local("master.").into_iter().map(f64::from).collect();
        let want = tensor::Tensor::from_f64(&*self.be, self.store.dtype(), &want, &[want.len()], tensor::Tag::Work);
        let want = want.unwrap().to_f64(&*self.be).unwrap();
        assert_eq!(self.store.flat().to_f64(&*self.be).unwrap(), want);
    }

    pub fn owned_ranges(&self) -> Vec<std::ops::Range<usize>> {
        self.optimizer.owned().map(|p| p.flat.clone()).collect()
    }

    pub fn digest(&self) -> String {
        checkpoint::weights_digest(&*self.groups.world, &*self.be, &self.store, self.owned_ranges()).unwrap()
    }

    pub fn save(&self, folder: &Path, step: u64) -> checkpoint::Result<checkpoint::Saved> {
        self.save_on(&checkpoint::RealDisk, folder, step)
    }

    pub fn save_on(
        &self,
        disk: &dyn checkpoint::Disk,
        folder: &Path,
        step: u64,
    ) -> checkpoint::Result<checkpoint::Saved> {
        checkpoint::save(disk, folder, &self.groups, &*self.be, &self.store, &self.optimizer, &position(step))
    }

    pub fn load(&mut self, folder: &Path, sha: Option<&str>) -> checkpoint::Result<checkpoint::Meta> {
        checkpoint::load(folder, sha, &fingerprint(), &self.groups, &*self.be, &self.store, &mut self.optimizer)
    }
}

pub fn new_optimizer(groups: &Groups, be: &Arc<dyn Backend>, store: &ParamStore) -> DistOptimizer {
    let params = FlatParam::of_store(store, false);
    let config = AdamWConfig { weight_decay: 0.1, bucket_elements: 1000, ..AdamWConfig::default() };
    DistOptimizer::new(be.clone(), groups.dp.clone(), groups.tp.clone(), &params, store.flat(), config).unwrap()
}

/// A number in about -1..1 for element `index` of tensor `name`.
pub fn value(name: &str, index: usize) -> f32 {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mut z = seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^= z >> 27;
    (z >> 40) as f32 / (1 << 23) as f32 - 1.0
}
