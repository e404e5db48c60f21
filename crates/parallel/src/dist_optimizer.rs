//! AdamW whose state is divided among the data parallel ranks.
//!
//! One update: sum the gradients over the ranks, each rank keeping the piece it owns (reduce-scatter); measure the
//! norm; clip; update the owned piece of the f32 masters; give every rank all new weights (all-gather).
//!
//! ## What is bitwise, and what is not
//! - Sums over ranks run in rank order, in the accumulator type. So one update is, bit for bit, plain AdamW on the whole model
//!   with the gradients `((g0 + g1) + g2) + ...`, for any bucket size and any transport.
//! - All ranks compute the same norm from the same numbers in the same order, so all take the same decision to clip or
//!   to skip.
//! - The norm is a sum of squares in f64 over the owned pieces, folded in rank order, then rounded to the accumulator
//!   type. Other layouts cut the pieces elsewhere, so their f64 sums differ in the last bits; after rounding to f32 they are equal except
//!   when they straddle a rounding boundary (about once in 10^8 updates).
//! - dp 2 differs from dp 1 in one thing: where the sum over micro-batches is bracketed, `(a + b) + (c + d)` instead of
//!   `((a + b) + c) + d`. With one micro-batch per rank against two on one rank from a zeroed gradient the brackets are
//!   the same, and so are the bits.

use std::ops::Range;
use std::sync::Arc;

use tensor::ops::{AdamW, Cast, Nonfinite, SumSq};
use tensor::{Backend, Comm, DType, Stream, Tag, Tensor};

use crate::error::{Error, Result};
use crate::flat::{BUCKET_ELEMENTS, Bucket, FlatParam, FlatPlan, runs_by};

/// PyTorch's constant in `clip_grad_norm_`.
const CLIP_EPS: f64 = 1e-6;

/// Hyper-parameters of AdamW (Loshchilov and Hutter, 2019). The learning rate comes with every step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of the parameters with [`FlatParam::decay`].
    pub weight_decay: f64,
    /// Gradients with a larger norm are scaled down to it; `None` never clips.
    pub max_grad_norm: Option<f64>,
    /// Elements per bucket, about.
    pub bucket_elements: usize,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        AdamWConfig {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: Some(1.0),
            bucket_elements: BUCKET_ELEMENTS,
        }
    }
}

/// What one update did. The same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Norm of the whole (scaled) gradient before clipping. Not finite if the step was skipped.
    pub grad_norm: f64,
    /// Factor the gradient was clipped by, at most 1.
    pub clip_scale: f64,
    /// How many elements of the summed gradient were NaN or infinite. If not 0, nothing was changed: no weight, no
    /// moment, no step count.
    pub nonfinite: u64,
    /// Updates made so far, this one included.
    pub optimizer_steps: u64,
}

impl StepReport {
    /// Whether the update was left out because the gradient was not finite.
    pub fn skipped(&self) -> bool {
        self.nonfinite != 0
    }
}

/// One owned piece: views into the state, all of `flat.len()` elements.
#[derive(Debug, Clone)]
pub struct OwnedPiece {
    /// Its elements in the rank's flat buffers.
    pub flat: Range<usize>,
    /// Weights in the accumulator type.
    pub master: Tensor,
    /// First moments.
    pub m: Tensor,
    /// Second moments.
    pub v: Tensor,
}

struct Piece {
    bucket: Bucket,
    owned: OwnedPiece,
    /// The owned weights in the compute type; `None` if the master is what the layers read.
    param: Option<Tensor>,
    /// Runs of `owned.flat` with and without weight decay.
    decay: Vec<(Range<usize>, bool)>,
    /// Runs that this rank counts in the norm.
    counted: Vec<Range<usize>>,
}

/// See the module.
pub struct DistOptimizer {
    be: Arc<dyn Backend>,
    dp: Arc<dyn Comm>,
    tp: Arc<dyn Comm>,
    config: AdamWConfig,
    weights: Tensor,
    pieces: Vec<Piece>,
    steps: u64,
    sum: Tensor,
    count: Tensor,
}

impl std::fmt::Debug for DistOptimizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DistOptimizer")
            .field("config", &self.config)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

impl DistOptimizer {
    /// State for the flat buffer `weights` (`[total]`), moments zero, masters taken from the weights. `params` are sorted by range. `dp` and `tp` are this rank's groups.
    ///
    /// If the weights have their accumulator type, the masters *are* the owned pieces of `weights`: no second copy.
    ///
    /// # Errors
    /// [`Error::Optimizer`] if buffer and parameters do not fit; [`Error::Tensor`] for want of memory.
    pub fn new(
        be: Arc<dyn Backend>,
        dp: Arc<dyn Comm>,
        tp: Arc<dyn Comm>,
        params: &[FlatParam],
        weights: &Tensor,
        config: AdamWConfig,
    ) -> Result<DistOptimizer> {
        check_params(params, weights)?;
        let plan = FlatPlan::new(weights.numel(), dp.size(), config.bucket_elements);
        let acc = weights.dtype().accumulator();
        let state = || Tensor::zeros(&*be, acc, &[plan.owned_len(dp.rank())], Tag::Optim);
        let (m, v) = (state()?, state()?);
        let masters = if acc == weights.dtype() { None } else { Some(state()?) };
        let mut pieces = Vec::new();
        let mut at = 0;
        for bucket in plan.buckets() {
            let flat = bucket.owned(dp.rank());
            let n = flat.len();
            let own = weights.flat(flat.start, n)?;
            let (master, param) = match &masters {
                None => (own, None),
                Some(all) => {
                    let master = all.flat(at, n)?;
                    be.cast(Stream::COMPUTE, &Cast { src: &own, dst: &master })?;
                    (master, Some(own))
                }
            };
            let owned = OwnedPiece { flat: flat.clone(), master, m: m.flat(at, n)?, v: v.flat(at, n)? };
            let counts = |p: &FlatParam| !p.replicated || tp.rank() == 0;
            let counted = runs_by(params, &flat, true, counts).into_iter().filter(|(_, c)| *c).map(|(r, _)| r);
            pieces.push(Piece {
                bucket: bucket.clone(),
                param,
                decay: runs_by(params, &flat, false, |p| p.decay),
                counted: counted.collect(),
                owned,
            });
            at += n;
        }
        Ok(DistOptimizer {
            sum: Tensor::zeros(&*be, DType::F64, &[1], Tag::Work)?,
            count: Tensor::zeros(&*be, DType::I32, &[1], Tag::Work)?,
            be,
            dp,
            tp,
            config,
            weights: weights.clone(),
            pieces,
            steps: 0,
        })
    }

    /// The hyper-parameters, to be changed between steps by whoever schedules them.
    pub fn config_mut(&mut self) -> &mut AdamWConfig {
        &mut self.config
    }

    /// Updates made so far.
    pub fn optimizer_steps(&self) -> u64 {
        self.steps
    }

    /// After a load.
    pub fn set_optimizer_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// What this rank owns, to be saved, or to be filled by a load (then call
    /// [`DistOptimizer::weights_from_masters`]).
    pub fn owned(&self) -> impl Iterator<Item = &OwnedPiece> {
        self.pieces.iter().map(|p| &p.owned)
    }

    /// One update from `grads` (`[total]`, accumulator type, this rank's sum over its micro-batches), in which every
    /// rank takes part. `grad_scale` multiplies the gradient first, e.g. one over the tokens of the whole batch.
    /// `grads` is spent: its contents afterwards are unspecified.
    ///
    /// # Errors
    /// [`Error::Optimizer`] for a wrong buffer; [`Error::Tensor`] if another rank is lost.
    pub fn step(&mut self, grads: &Tensor, lr: f64, grad_scale: f64) -> Result<StepReport> {
        let acc = self.weights.dtype().accumulator();
        if grads.numel() != self.weights.numel() || grads.dtype() != acc {
            return Err(Error::Optimizer(format!("gradients {grads:?} for weights {:?}", self.weights)));
        }
        let owned = self.reduce(grads)?;
        let (sum_sq, nonfinite) = self.measure(&owned)?;
        let grad_norm = round(acc, grad_scale.abs() * sum_sq.sqrt());
        if nonfinite > 0 || !grad_norm.is_finite() {
            let nonfinite = nonfinite.max(1);
            return Ok(StepReport { grad_norm, clip_scale: 0.0, nonfinite, optimizer_steps: self.steps });
        }
        let clip_scale = match self.config.max_grad_norm {
            Some(max) => round(acc, round(acc, max) / round(acc, grad_norm + CLIP_EPS)).min(1.0),
            None => 1.0,
        };
        self.steps += 1;
        self.update(&owned, lr, grad_scale * clip_scale)?;
        self.gather_weights()?;
        Ok(StepReport { grad_norm, clip_scale, nonfinite: 0, optimizer_steps: self.steps })
    }

    /// Writes the masters of every rank to the weights of every rank, after the masters were filled from outside.
    ///
    /// # Errors
    /// [`Error::Tensor`] if another rank is lost.
    pub fn weights_from_masters(&self) -> Result<()> {
        for piece in &self.pieces {
            if let Some(param) = &piece.param {
                self.be.cast(Stream::COMPUTE, &Cast { src: &piece.owned.master, dst: param })?;
            }
        }
        self.gather_weights()
    }

    /// The sum over ranks of each owned piece.
    fn reduce(&self, grads: &Tensor) -> Result<Vec<Tensor>> {
        let mut out: Vec<Option<Tensor>> = vec![None; self.pieces.len()];
        // Back to front: the last layers' gradients are ready first.
        for (slot, piece) in out.iter_mut().zip(&self.pieces).rev() {
            let range = &piece.bucket.range;
            let part = grads.flat(range.start, range.len())?;
            *slot = Some(if self.dp.size() == 1 {
                part
            } else {
                let own = Tensor::empty(&*self.be, grads.dtype(), &[piece.bucket.piece], Tag::Work)?;
                let padded = piece.bucket.piece * self.dp.size();
                let send = if padded == range.len() { part } else { self.padded(&part, padded)? };
                self.dp.reduce_scatter(&*self.be, Stream::COMPUTE, &send, &own)?;
                own.flat(0, piece.owned.flat.len())?
            });
        }
        Ok(out.into_iter().flatten().collect())
    }

    /// Sum of squares and number of non-finite elements of the whole gradient.
    fn measure(&self, owned: &[Tensor]) -> Result<(f64, u64)> {
        let mut sum_sq = 0.0;
        for (piece, grad) in self.pieces.iter().zip(owned) {
            for run in &piece.counted {
                let x = grad.flat(run.start - piece.owned.flat.start, run.len())?;
                self.be.sum_sq(Stream::COMPUTE, &SumSq { x: &x, out: &self.sum })?;
                sum_sq += self.sum.to_vec::<f64>(&*self.be)?.first().copied().unwrap_or(0.0);
            }
        }
        // A square of a finite f32 is finite in f64, so this sees every NaN and infinity. f64 gradients may overflow;
        // then the count below decides.
        let mut nonfinite = 0u64;
        if !sum_sq.is_finite() {
            for grad in owned {
                self.be.nonfinite(Stream::COMPUTE, &Nonfinite { x: grad, out: &self.count })?;
                nonfinite += self.count.to_vec::<i32>(&*self.be)?.first().map_or(0, |n| *n as u64);
            }
        }
        let mut mine = [0; 16];
        mine[..8].copy_from_slice(&sum_sq.to_le_bytes());
        mine[8..].copy_from_slice(&nonfinite.to_le_bytes());
        for group in [&self.dp, &self.tp] {
            let all = group.all_gather_bytes(&mine)?;
            let (sum_sq, nonfinite) = all.iter().map(|b| decode(b)).fold((0.0, 0), |t, x| (t.0 + x.0, t.1 + x.1));
            mine[..8].copy_from_slice(&f64::to_le_bytes(sum_sq));
            mine[8..].copy_from_slice(&u64::to_le_bytes(nonfinite));
        }
        Ok(decode(&mine))
    }

    fn update(&self, owned: &[Tensor], lr: f64, grad_scale: f64) -> Result<()> {
        for (piece, grad) in self.pieces.iter().zip(owned) {
            for (run, decays) in &piece.decay {
                let (at, n) = (run.start - piece.owned.flat.start, run.len());
                let param = piece.param.as_ref().map(|p| p.flat(at, n)).transpose()?;
                self.be.adamw(
                    Stream::COMPUTE,
                    &AdamW {
                        master: &piece.owned.master.flat(at, n)?,
                        m: &piece.owned.m.flat(at, n)?,
                        v: &piece.owned.v.flat(at, n)?,
                        grad: &grad.flat(at, n)?,
                        param: param.as_ref(),
                        lr,
                        beta1: self.config.beta1,
                        beta2: self.config.beta2,
                        eps: self.config.eps,
                        weight_decay: if *decays { self.config.weight_decay } else { 0.0 },
                        step: self.steps,
                        grad_scale,
                    },
                )?;
            }
        }
        Ok(())
    }

    fn gather_weights(&self) -> Result<()> {
        if self.dp.size() == 1 {
            return Ok(());
        }
        for piece in &self.pieces {
            let (range, n) = (&piece.bucket.range, piece.bucket.piece);
            let part = self.weights.flat(range.start, range.len())?;
            let padded = n * self.dp.size();
            let whole = if padded == range.len() { part.clone() } else { self.padded(&part, padded)? };
            self.dp.all_gather(Stream::COMPUTE, &whole.flat(self.dp.rank() * n, n)?, &whole)?;
            if padded != range.len() {
                self.be.copy(Stream::COMPUTE, &part, &whole.flat(0, range.len())?)?;
            }
        }
        Ok(())
    }

    /// A copy of `part` with zeros behind it.
    fn padded(&self, part: &Tensor, len: usize) -> Result<Tensor> {
        let out = Tensor::zeros(&*self.be, part.dtype(), &[len], Tag::Work)?;
        self.be.copy(Stream::COMPUTE, &out.flat(0, part.numel())?, part)?;
        Ok(out)
    }
}

fn decode(bytes: &[u8]) -> (f64, u64) {
    let word = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).unwrap_or([0xff; 8]);
    (f64::from_le_bytes(word(0)), u64::from_le_bytes(word(8)))
}

/// To the precision in which PyTorch would hold the number.
fn round(acc: DType, x: f64) -> f64 {
    if acc == DType::F64 { x } else { f64::from(x as f32) }
}

fn check_params(params: &[FlatParam], weights: &Tensor) -> Result<()> {
    let mut end = 0;
    for p in params {
        if p.range.start < end || p.range.end > weights.numel() {
            let what = format!("parameter {} at {:?} overlaps its neighbour or leaves {weights:?}", p.name, p.range);
            return Err(Error::Optimizer(what));
        }
        end = p.range.end;
    }
    Ok(())
}
