//! One GRPO update: forward, log-probs, loss, backward, gradient norm, clip, AdamW, as a rank of the trainer makes it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use models::{GradStore, Model};
use parallel::{AdamWConfig, DistOptimizer, FlatParam};
use rl::{Denominators, LossConfig, LossReduction, PolicyBatch, policy_loss};
use serde_json::json;
use tensor::{SingleRank, Stream};

use super::shape::{Shape, load};
use super::torch::{Torch, number};
use super::{THREADS, peak};
use crate::Options;
use crate::line::{Line, Lines};
use crate::rounds::{Clock, Side, by_turns, median, rate};

/// So small that the weights stay what they were, in every digit that is compared.
const LR: f64 = 1e-12;

struct Rank {
    model: Model,
    grads: GradStore,
    optimizer: DistOptimizer,
    lengths: Vec<usize>,
    tokens: Vec<i32>,
    rows: Vec<i32>,
    targets: Vec<i32>,
    advantage: Vec<f64>,
}

/// What both sides must agree on.
#[derive(Clone, Copy)]
struct Outcome {
    logp: f64,
    grad_norm: f64,
}

impl Rank {
    fn new(shape: &Shape, folder: &Path, threads: usize, tokens: &[Vec<i32>], advantages: &[f64]) -> Result<Self> {
        let model = load(folder, threads)?;
        let alone = || Arc::new(SingleRank::new("alone"));
        let config = AdamWConfig { beta2: 0.95, ..AdamWConfig::default() };
        let params = FlatParam::of_store(model.params(), false);
        let optimizer =
            DistOptimizer::new(model.backend().clone(), alone(), alone(), &params, model.params().flat(), config)?;
        let (mut rows, mut targets, mut advantage) = (vec![], vec![], vec![]);
        for (s, sequence) in tokens.iter().enumerate() {
            for (i, token) in sequence.iter().enumerate().skip(shape.prompt) {
                rows.push((s * shape.length + i - 1) as i32);
                targets.push(*token);
                advantage.push(advantages[s]);
            }
        }
        let grads = model.new_grads()?;
        let lengths = vec![shape.length; shape.sequences];
        Ok(Self { model, grads, optimizer, lengths, tokens: tokens.concat(), rows, targets, advantage })
    }

    fn step(&mut self) -> Result<Outcome> {
        let loss = LossConfig {
            clip_low: 0.2,
            clip_high: 0.2,
            clip_c: None,
            kl: None,
            entropy_coef: 0.0,
            tis: None,
            reduction: LossReduction::TokenMean,
        };
        self.grads.zero(&**self.model.backend(), Stream::COMPUTE)?;
        let layout = self.model.pack(&self.lengths)?;
        let mut pass = self.model.forward(&self.tokens, &layout, true)?;
        let scores = self.model.log_probs(&mut pass, &self.rows, &self.targets, 1.0)?;
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let (current, entropy) = (wide(&scores.logp), wide(&scores.entropy));
        let n = current.len();
        let denominators = Denominators { rollouts: self.lengths.len() as u64, loss_tokens: n as u64 };
        let weight = vec![loss.reduction.token_weight(denominators, 1); n];
        let (coefficients, _) = policy_loss(
            &loss,
            &PolicyBatch {
                current: &current,
                old: &current,
                rollout: None,
                reference: None,
                entropy: &entropy,
                mask: &vec![1; n],
                advantage: &self.advantage,
                weight: &weight,
            },
        )?;
        let dlogp: Vec<f32> = coefficients.dlogp.iter().map(|x| *x as f32).collect();
        self.model.backward(pass, &dlogp, None, &self.grads)?;
        self.model.finish_grads(&self.grads)?;
        let report = self.optimizer.step(self.grads.flat(), LR, 1.0)?;
        Ok(Outcome { logp: current.iter().sum::<f64>() / n as f64, grad_norm: report.grad_norm })
    }
}

/// Steps of one shape, with each number of threads.
pub fn run(
    options: &Options,
    lines: &mut Lines,
    torch: &mut Option<Torch>,
    shape: &Shape,
    folder: &Path,
) -> Result<()> {
    if !options.wants(&format!("train_step {}", shape.name)) {
        return Ok(());
    }
    let tokens = shape.tokens(1, shape.sequences, shape.length);
    let advantages: Vec<f64> = (0..shape.sequences).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let (flops, count) =
        (shape.train_flops() * shape.steps as f64, (shape.sequences * shape.length * shape.steps) as f64);
    for threads in THREADS {
        let name = format!("{}, {threads} threads", shape.name);
        let mut rank = Rank::new(shape, folder, threads, &tokens, &advantages)?;
        let ours = rank.step()?;
        let mut differs = f64::NAN;
        if let Some(torch) = torch.as_mut() {
            torch.ask("load", json!({"folder": folder}))?;
            torch.ask("threads", json!({"n": threads}))?;
            let batch = json!({"tokens": tokens, "prompt": shape.prompt, "advantages": advantages, "lr": LR});
            torch.ask("train_setup", batch)?;
            let theirs = torch.ask("train", json!({"n": 1}))?;
            differs = agree(ours.logp, number(&theirs, "logp")?, "mean log-prob")?.max(agree(
                ours.grad_norm,
                number(&theirs, "grad_norm")?,
                "gradient norm",
            )?);
        }
        let before = rank.model.backend().mem_stats();
        let one = || {
            Clock::of(threads).seconds(|| {
                for _ in 0..shape.steps {
                    rank.step()?;
                }
                Ok(())
            })
        };
        let mut sides: Vec<Side> = vec![Box::new(one), Box::new(|| Ok(peak::seconds(flops, peak::burst(), threads)))];
        if let Some(torch) = torch.as_mut() {
            sides.push(Box::new(|| number(&torch.ask("train", json!({"n": shape.steps}))?, "seconds")));
        }
        let spent = by_turns(options.rounds, sides)?;
        let shares: Vec<f64> = spent[0].0.iter().zip(&spent[1].0).map(|(ours, best)| best / ours).collect();
        let mut line = rate("train_step", &name, count, "tokens/s", &spent[0]).of_peak(median(&shares));
        if let Some(theirs) = spent.get(2) {
            line = line.against("PyTorch", &spent[0], theirs).with("largest_relative_difference", differs);
        }
        lines.add(
            line.with("threads", threads)
                .with("clock", Clock::of(threads).name())
                .with("gflop_per_step", shape.train_flops() / 1e9),
        )?;
        let after = rank.model.backend().mem_stats();
        let allocations = (after.system_allocs - before.system_allocs) as f64;
        let line = Line::new("train_step_system_allocations", &name, allocations, "allocations");
        lines.add(line.with("pool_peak_mib", after.peak_total as f64 / (1 << 20) as f64))?;
    }
    Ok(())
}

/// Relative difference of two numbers that must be the same but for rounding.
pub fn agree(ours: f64, theirs: f64, what: &str) -> Result<f64> {
    let difference = ((ours - theirs) / theirs).abs();
    ensure!(difference < 1e-3, "{what}: ours is {ours}, PyTorch's {theirs}: they did not compute the same");
    Ok(difference)
}
