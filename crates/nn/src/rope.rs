use std::sync::{Mutex, PoisonError};

use tensor::{Backend, DType, Tag, Tensor};

use crate::Result;

/// Change of the rotary frequencies for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Llama 3.1: long wavelengths are slowed by `factor`, short ones kept, those between blended.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_position: f64,
    },
}

/// Cosines and sines of the rotary embedding, made in f64 on the host by one function and rounded once. Grows by
/// doubling to the largest position asked for.
#[derive(Debug)]
pub struct RopeTable {
    inv_freq: Vec<f64>,
    dtype: DType,
    tables: Mutex<Option<(Tensor, Tensor)>>,
}

impl RopeTable {
    /// `dtype` is the accumulator type of the model.
    pub fn new(head_dim: usize, theta: f64, scaling: RopeScaling, dtype: DType) -> RopeTable {
        let inv_freq =
            (0..head_dim / 2).map(|i| scale(theta.powf(-(2.0 * i as f64) / head_dim as f64), scaling)).collect();
        RopeTable { inv_freq, dtype, tables: Mutex::new(None) }
    }

    /// `(cos, sin)`, `[P, head_dim / 2]` with `P > max_position`.
    pub fn tables(&self, be: &dyn Backend, max_position: usize) -> Result<(Tensor, Tensor)> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(t) = &*tables
            && t.0.dim(0) > max_position
        {
            return Ok(t.clone());
        }
        let p = (max_position + 1).next_power_of_two().max(1024);
        let make = |f: fn(f64) -> f64| {
            let data: Vec<f64> = (0..p).flat_map(|pos| self.inv_freq.iter().map(move |w| f(pos as f64 * w))).collect();
            Tensor::from_f64(be, self.dtype, &data, &[p, self.inv_freq.len()], Tag::Work)
        };
        let made = (make(f64::cos)?, make(f64::sin)?);
        *tables = Some(made.clone());
        Ok(made)
    }
}

fn scale(freq: f64, scaling: RopeScaling) -> f64 {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } = scaling else {
        return freq;
    };
    let turns = original_max_position * freq / std::f64::consts::TAU;
    if turns < low_freq_factor {
        freq / factor
    } else if turns > high_freq_factor {
        freq
    } else {
        let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
        (1.0 - smooth) * freq / factor + smooth * freq
    }
}
