//! What the model tests share: fixtures, weights by Hugging Face names, norms.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use models::{Model, ModelConfig, ModelOptions, ParamStore, gather_piece, scatter_piece};
use safetensors::{Dtype, SafeTensors};
use tensor::{Backend, Comm, CpuBackend, SingleRank, Stream, Tensor};

pub struct Fixture {
    dir: PathBuf,
}

/// Tensors of a safetensors file as f64.
pub type Named = BTreeMap<String, Vec<f64>>;

impl Fixture {
    pub fn new(name: &str) -> Fixture {
        // `make test-oracle` points the tests at references it has just derived.
        let kept = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        Fixture { dir: std::env::var_os("THRESH_ORACLE_DIR").map_or_else(kept, PathBuf::from).join(name) }
    }

    pub fn config(&self) -> ModelConfig {
        ModelConfig::from_json(&std::fs::read_to_string(self.dir.join("config.json")).unwrap()).unwrap()
    }

    pub fn meta(&self) -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(self.dir.join("meta.json")).unwrap()).unwrap()
    }

    pub fn tensors(&self, file: &str) -> Named {
        let bytes = std::fs::read(self.dir.join(file)).unwrap();
        let st = SafeTensors::deserialize(&bytes).unwrap();
        st.iter()
            .map(|(name, t)| {
                let data = t.data();
                let v = match t.dtype() {
                    Dtype::F32 => {
                        data.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
                    }
                    Dtype::I32 => {
                        data.chunks_exact(4).map(|b| f64::from(i32::from_le_bytes(b.try_into().unwrap()))).collect()
                    }
                    Dtype::I64 => {
                        data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect()
                    }
                    other => panic!("{other:?}"),
                };
                (name.to_owned(), v)
            })
            .collect()
    }

    /// The fixture's model with its weights, on one rank of a tensor-parallel group.
    pub fn model_on(&self, be: Arc<dyn Backend>, tp: Arc<dyn Comm>, options: ModelOptions) -> Model {
        let model = Model::new(be, tp, self.config(), options).unwrap();
        load(&model, &self.tensors("model.safetensors"));
        model
    }

    pub fn model(&self) -> Model {
        self.model_on(cpu(1), single(), ModelOptions::default())
    }
}

pub fn cpu(threads: usize) -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(threads))
}

pub fn single() -> Arc<dyn Comm> {
    Arc::new(SingleRank::new("tp"))
}

/// Fill a model's parameters from tensors by Hugging Face name, through the name map.
pub fn load(model: &Model, weights: &Named) {
    let be = &**model.backend();
    let params = model.params();
    for (i, spec) in params.specs().iter().enumerate() {
        let rect = &params.layout().entries[i].rect;
        let mut local = vec![0.0f64; rect.numel()];
        for piece in &spec.hf {
            scatter_piece(
                piece,
                bytemuck::cast_slice(&weights[&piece.name]),
                rect,
                bytemuck::cast_slice_mut(&mut local),
                8,
            );
        }
        let t = Tensor::from_f64(be, params.dtype(), &local, &rect.shape, tensor::Tag::Work).unwrap();
        be.copy(Stream::COMPUTE, params.get(nn::ParamId(i)), &t).unwrap();
    }
}

/// Views in the layout of the parameters (weights or gradients of this rank) by Hugging Face name; other ranks' parts
/// are left as `into` has them.
pub fn by_hf_name(be: &dyn Backend, params: &ParamStore, views: &[Tensor], into: &mut Named) {
    for (i, spec) in params.specs().iter().enumerate() {
        let rect = &params.layout().entries[i].rect;
        let local = views[i].to_f64(be).unwrap();
        for piece in &spec.hf {
            let full = into.entry(piece.name.clone()).or_insert_with(|| vec![0.0; piece.rect.numel()]);
            gather_piece(piece, bytemuck::cast_slice_mut(full), rect, bytemuck::cast_slice(&local), 8);
        }
    }
}

pub fn grads_by_name(model: &Model, grads: &models::GradStore) -> Named {
    let views: Vec<Tensor> = (0..model.params().specs().len()).map(|i| grads.get(nn::ParamId(i)).clone()).collect();
    let mut out = Named::new();
    by_hf_name(&**model.backend(), model.params(), &views, &mut out);
    out
}

/// `|a - b| / |b|`
pub fn relative(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |it: &mut dyn Iterator<Item = f64>| it.map(|x| x * x).sum::<f64>().sqrt();
    let d = norm(&mut a.iter().zip(b).map(|(x, y)| x - y));
    assert!(d.is_finite(), "not finite");
    d / norm(&mut b.iter().copied()).max(1e-30)
}

pub fn ints(x: &[f64]) -> Vec<i32> {
    x.iter().map(|&v| v as i32).collect()
}

pub fn floats(x: &[f64]) -> Vec<f32> {
    x.iter().map(|&v| v as f32).collect()
}

/// Rows of a pack that score a token, and the tokens they score: all but the last of each sequence.
pub fn scored(tokens: &[i32], cu: &[i32]) -> (Vec<i32>, Vec<i32>) {
    let mut out = (vec![], vec![]);
    for w in cu.windows(2) {
        for i in w[0]..(w[1] - 1).max(w[0]) {
            out.0.push(i);
            out.1.push(tokens[i as usize + 1]);
        }
    }
    out
}
