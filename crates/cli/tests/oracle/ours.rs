//! The model as the trainer holds it.

use std::{path::Path, sync::Arc};

use models::{KvSeq, LogProbs, Model, ModelConfig, ModelOptions};
use tensor::{Backend, CpuBackend, SingleRank};

pub fn config(folder: &Path) -> ModelConfig {
    ModelConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

pub fn model(folder: &Path) -> Model {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(2));
    let comm = Arc::new(SingleRank::new("tp"));
    let model = Model::new(backend.clone(), comm, config(folder), ModelOptions::default()).unwrap();
    checkpoint::hf::load_weights(&checkpoint::hf::Folder::open(folder).unwrap(), &*backend, model.params()).unwrap();
    model
}

fn tokens(ids: &[u32]) -> Vec<i32> {
    ids.iter().map(|id| i32::try_from(*id).unwrap()).collect()
}

/// Log-prob and entropy of every token but the first of each sequence, all of them packed into one micro-batch.
pub fn packed(model: &Model, sequences: &[&[u32]]) -> Vec<LogProbs> {
    let layout = model.pack(&sequences.iter().map(|ids| ids.len()).collect::<Vec<_>>()).unwrap();
    let tokens = tokens(&sequences.concat());
    let mut pass = model.forward(&tokens, &layout, false).unwrap();
    let mut first = 0;
    let mut scored = Vec::new();
    for ids in sequences {
        let rows: Vec<i32> = (first..first + ids.len() - 1).map(|row| i32::try_from(row).unwrap()).collect();
        scored.push(model.log_probs(&mut pass, &rows, &tokens[first + 1..first + ids.len()], 1.0).unwrap());
        first += ids.len();
    }
    scored
}

/// Logits `[tokens, vocabulary]` of one sequence.
pub fn logits(model: &Model, ids: &[u32]) -> Vec<f32> {
    let pages: Vec<u32> = (0..ids.len().div_ceil(tensor::PAGE)).map(|page| u32::try_from(page).unwrap()).collect();
    let cache = model.new_kv_cache(pages.len()).unwrap();
    let batch = model.batch(&[KvSeq { cached: 0, new: ids.len(), pages: &pages }]).unwrap();
    let rows: Vec<i32> = (0..ids.len()).map(|row| i32::try_from(row).unwrap()).collect();
    let logits = model.step(&tokens(ids), &batch, &cache, &rows).unwrap();
    logits.full.to_vec::<f32>(&**model.backend()).unwrap()
}
