//! Training step, decode and matrix products: tokens per second, as a share of what the cores can do, and beside PyTorch.

mod decode;
mod gemm;
mod shape;
mod torch;
mod train_step;

pub use shape::write_random;

use anyhow::Result;

use crate::line::{Line, Lines};
use crate::{Options, machine, peak};

/// Threads of a case.
const THREADS: [usize; 2] = [1, 2];

/// Measures everything that computes.
pub fn run(options: &Options) -> Result<()> {
    let mut lines = Lines::begin(&options.out, "core")?;
    let mut torch = torch::start(&options.out)?;
    let mut bursts: Vec<f64> = (0..2 * options.rounds).map(|_| peak::burst()).collect();
    bursts.sort_by(f64::total_cmp);
    // Neighbours can only slow a burst down.
    let best = bursts.last().copied().unwrap_or(f64::NAN);
    lines.add(Line::new("fma_peak", "one core", best, "GFLOP/s").with("vectors", machine::vectors()))?;
    if let Some(torch) = &mut torch {
        lines.add(Line::new("pytorch", torch.version()?, 1.0, "peers"))?;
    }
    gemm::run(options, &mut lines, &mut torch)?;
    let scratch = tempfile::Builder::new().prefix("core-").tempdir_in(&options.out)?;
    for shape in shape::all() {
        let folder = shape.write(scratch.path())?;
        train_step::run(options, &mut lines, &mut torch, &shape, &folder)?;
        decode::run(options, &mut lines, &mut torch, &shape, &folder)?;
    }
    Ok(())
}
