//! Interim loader.
use std::path::Path;
use models::{Model, scatter_piece};

pub(crate) fn load(folder: &Path, model: &Model) -> Result<(), String> {
    let bytes = std::fs::read(folder.join("model.safetensors")).map_err(|e| e.to_string())?;
    let file = safetensors::SafeTensors::deserialize(&bytes).map_err(|e| e.to_string())?;
    let be = &**model.backend();
    let params = model.params();
    for (spec, entry) in params.specs().iter().zip(&params.layout().entries) {
        let mut local = vec![0u8; entry.rect.numel() * 4];
        for piece in &spec.hf {
            let tensor = file.tensor(&piece.name).map_err(|e| format!("{}: {e}", piece.name))?;
            scatter_piece(piece, tensor.data(), &entry.rect, &mut local, 4);
        }
        let id = params.find(&spec.name).ok_or("?")?;
        be.upload(tensor::Stream::COMPUTE, params.get(id), &local).map_err(|e| e.to_string())?;
    }
    Ok(())
}
