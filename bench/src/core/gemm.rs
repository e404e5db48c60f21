//! Matrix products `x W^T`, the form of every linear layer.

use anyhow::Result;
use serde_json::json;
use tensor::ops::Gemm;
use tensor::{Backend, CpuBackend, DType, Stream, Tag, Tensor};

use super::torch::{Torch, number};
use super::{THREADS, peak};
use crate::Options;
use crate::line::Lines;
use crate::rounds::{Clock, Side, by_turns, median, rate};

/// (m, n, k, products of a round)
const PLAN: [(usize, usize, usize, usize); 10] = [
    (256, 256, 256, 60),
    (512, 512, 512, 12),
    (1024, 1024, 1024, 2),
    (1024, 3072, 512, 2),
    (64, 1024, 1024, 8),
    (64, 3072, 512, 8),
    (32, 1024, 1024, 12),
    (16, 1024, 1024, 20),
    (8, 1024, 1024, 40),
    (1, 1024, 1024, 150),
];

/// Products of some sizes.
pub fn run(options: &Options, lines: &mut Lines, torch: &mut Option<Torch>) -> Result<()> {
    if !options.wants("gemm") {
        return Ok(());
    }
    for (m, n, k, times) in PLAN {
        let mut alone = f64::NAN;
        for threads in THREADS {
            let be = CpuBackend::new(threads);
            let tensor = |dims: [usize; 2]| -> Result<Tensor> {
                let t = Tensor::zeros(&be, DType::F32, &dims, Tag::Act)?;
                be.fill(Stream::COMPUTE, &t, 0.5)?;
                Ok(t)
            };
            let (a, b, d) = (tensor([m, k])?, tensor([n, k])?, tensor([m, n])?);
            let ours = || {
                Clock::of(threads).seconds(|| {
                    for _ in 0..times {
                        be.gemm(
                            Stream::COMPUTE,
                            &Gemm { a: &a, ta: false, b: &b, tb: true, d: &d, alpha: 1.0, beta: 0.0 },
                        )?;
                    }
                    Ok(())
                })
            };
            let flops = (2 * m * n * k * times) as f64;
            if let Some(torch) = torch {
                torch.ask("threads", json!({"n": threads}))?;
            }
            let mut sides: Vec<Side> =
                vec![Box::new(ours), Box::new(|| Ok(peak::seconds(flops, peak::burst(), threads)))];
            if let Some(torch) = torch.as_mut() {
                let order = json!({"m": m, "n": n, "k": k, "times": times});
                sides.push(Box::new(move || number(&torch.ask("matmul", order.clone())?, "seconds")));
            }
            let spent = by_turns(options.rounds, sides)?;
            let shares: Vec<f64> = spent[0].0.iter().zip(&spent[1].0).map(|(ours, best)| best / ours).collect();
            let name = format!("{m} x {n} x {k}, {threads} threads");
            let mut line = rate("gemm", name, flops / 1e9, "GFLOP/s", &spent[0]).of_peak(median(&shares));
            if let Some(theirs) = spent.get(2) {
                line = line.against("PyTorch", &spent[0], theirs);
            }
            if threads == 1 {
                alone = line.value;
            } else {
                let speed_up = line.value / alone;
                line = line.with("over_one_thread", speed_up);
            }
            lines.add(line.with("threads", threads).with("clock", Clock::of(threads).name()))?;
        }
    }
    Ok(())
}
