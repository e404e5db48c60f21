//! Learning from one batch: scores, coefficients, gradients, updates.

use std::time::Instant;

use control::wire::{Phase, TrainMetrics, TrainOrder};
use models::Model;
use rl::{Denominators, LossReduction, PolicyBatch, SftBatch, TokenCoefficients, policy_loss, sft_loss};
use tensor::Stream;

use crate::batch::{Batch, Packed};
use crate::error::Error;
use crate::faults::Point;
use crate::gap;
use crate::sums::Sums;
use crate::trainer::Trainer;

/// Supervised learning is at the model's own temperature, whatever the samples of the RL phase are drawn at.
const SUPERVISED_TEMPERATURE: f32 = 1.0;

/// `[micro-batch][learnt token]` of one update.
type Scores = Vec<Vec<f32>>;

impl Trainer {
    /// Makes the updates of an order. Every rank of a data parallel group takes part in every update, whatever it has to
    /// learn in it.
    pub(crate) fn learn(&mut self, order: &TrainOrder) -> Result<TrainMetrics, Error> {
        let started = Instant::now();
        self.check_order(order)?;
        let dp_rank = self.groups.dp.rank();
        let batch = self.volume.takes("reading a batch", || Batch::open(&self.store, order, dp_rank))?;
        let mut updates: Vec<Vec<Packed>> = Vec::with_capacity(order.updates.len());
        for update in &order.updates {
            updates.push(update.micro_batches[dp_rank].iter().map(|m| batch.pack(m)).collect::<Result<_, _>>()?);
        }
        self.faults.at(Point::BatchRead)?;

        let rl = order.phase == Phase::Rl;
        let comparable = if rl && !order.version_digests.is_empty() {
            gap::comparable(&order.version_digests, self.weights_digest()?)
        } else {
            Default::default()
        };
        let mut sums = Sums::default();

        // With one update the current pass is the old one. With more, the weights move under the later ones, so what the
        // ratio is taken against is computed before the first; the sampler's log-probs never stand in for it.
        let old: Option<Vec<Scores>> =
            if rl && updates.len() > 1 { Some(self.score(&self.model, &updates)?) } else { None };
        if let Some(old) = &old {
            for (packed, scores) in updates.iter().flatten().zip(old.iter().flatten()) {
                gap::compare(packed, scores, &comparable, &mut sums);
            }
        }
        let reference: Option<Vec<Scores>> = match self.reference_model()? {
            Some(model) if rl => Some(self.score(model, &updates)?),
            _ => None,
        };

        let mut last = Updated::default();
        for (u, update) in updates.iter().enumerate() {
            self.grads.zero(&*self.backend, Stream::COMPUTE)?;
            let denominators =
                Denominators { rollouts: order.updates[u].rollouts, loss_tokens: order.updates[u].loss_tokens };
            for (m, packed) in update.iter().enumerate() {
                if packed.is_empty() {
                    continue;
                }
                let old = old.as_ref().map(|o| o[u][m].as_slice());
                let reference = reference.as_ref().map(|r| r[u][m].as_slice());
                let compare = if old.is_none() { comparable.clone() } else { Default::default() };
                let step = MicroBatch { phase: order.phase, denominators, packed, old, reference };
                self.accumulate(&step, |scores, sums| gap::compare(packed, scores, &compare, sums), &mut sums)?;
                self.faults.at(Point::Backward)?;
            }
            if self.faults.poisons_gradient() {
                let spoilt = tensor::Tensor::from_slice(&*self.backend, &[f32::NAN], &[1], tensor::Tag::Work)?;
                self.backend.copy(Stream::COMPUTE, &self.grads.flat().flat(0, 1)?, &spoilt)?;
            }
            self.faults.at(Point::Optimizer)?;
            last = self.update(u, last.skipped)?;
        }
        self.faults.at(Point::Updated)?;

        let total = sums.over(&*self.groups.dp)?;
        if total.non_finite > 0 {
            tracing::warn!(
                tokens = total.non_finite,
                "log-probs or entropies that are not finite, e.g. after a weight overflowed"
            );
        }
        Ok(TrainMetrics {
            grad_norm: if last.grad_norm.is_finite() { last.grad_norm } else { NOT_FINITE },
            lr: last.lr,
            skipped_updates: last.skipped,
            updates_done: self.optimizer.optimizer_steps(),
            seconds: started.elapsed().as_secs_f64(),
            ..total.metrics(order.updates.len())
        })
    }

    fn check_order(&self, order: &TrainOrder) -> Result<(), Error> {
        if order.phase != self.phase {
            let what =
                format!("a batch of the {:?} phase, but this trainer is in the {:?} phase", order.phase, self.phase);
            return Err(Error::Order { what });
        }
        let dp = self.groups.dp.size();
        match order.updates.iter().position(|u| u.micro_batches.len() != dp) {
            Some(u) => Err(Error::Order {
                what: format!(
                    "update {u} is planned for dp {}, this attempt has dp {dp}",
                    order.updates[u].micro_batches.len()
                ),
            }),
            None if order.updates.is_empty() => Err(Error::Order { what: "a batch without an update".to_owned() }),
            None => Ok(()),
        }
    }

    /// Log-probs of the learnt tokens under `model`, without a gradient.
    fn score(&self, model: &Model, updates: &[Vec<Packed>]) -> Result<Vec<Scores>, Error> {
        let one = |packed: &Packed| -> Result<Vec<f32>, Error> {
            if packed.is_empty() {
                return Ok(Vec::new());
            }
            let layout = model.pack(&packed.lengths())?;
            let mut pass = model.forward(&packed.tokens, &layout, false)?;
            Ok(model.log_probs(&mut pass, &packed.rows, &packed.targets, self.temperature())?.logp)
        };
        updates.iter().map(|update| update.iter().map(one).collect()).collect()
    }

    fn temperature(&self) -> f32 {
        match self.phase {
            Phase::WarmStart => SUPERVISED_TEMPERATURE,
            Phase::Rl => self.config.temperature as f32,
        }
    }

    /// Forward, loss and backward of one micro-batch; adds to the main gradients and to `sums`.
    fn accumulate(
        &self,
        step: &MicroBatch<'_>,
        compare: impl FnOnce(&[f32], &mut Sums),
        sums: &mut Sums,
    ) -> Result<(), Error> {
        let packed = step.packed;
        let layout = self.model.pack(&packed.lengths())?;
        let mut pass = self.model.forward(&packed.tokens, &layout, true)?;
        let scores = self.model.log_probs(&mut pass, &packed.rows, &packed.targets, self.temperature())?;
        compare(&scores.logp, sums);
        let coefficients = step.coefficients(&self.config.loss, &scores.logp, &scores.entropy, sums)?;
        sums.tokens += packed.tokens.len() as u64;
        let narrow = |wide: &[f64]| wide.iter().map(|x| *x as f32).collect::<Vec<_>>();
        let entropy_counts = coefficients.dentropy.iter().any(|d| *d != 0.0);
        let dentropy = entropy_counts.then(|| narrow(&coefficients.dentropy));
        Ok(self.model.backward(pass, &narrow(&coefficients.dlogp), dentropy.as_deref(), &self.grads)?)
    }

    /// One optimizer update, after `skipped` of this order were.
    fn update(&mut self, u: usize, skipped: u64) -> Result<Updated, Error> {
        let lr = self.optimizer_config().lr_at(self.optimizer.optimizer_steps());
        self.model.finish_grads(&self.grads)?;
        let report = self.optimizer.step(self.grads.flat(), lr, 1.0)?;
        if report.skipped() {
            tracing::warn!(
                update = u,
                elements = report.nonfinite,
                "gradients are not finite: the update is skipped, no weight, moment or schedule moves"
            );
        } else {
            self.held = None;
        }
        Ok(Updated { grad_norm: report.grad_norm, lr, skipped: skipped + u64::from(report.skipped()) })
    }
}

/// What is reported of an update.
#[derive(Clone, Copy, Default)]
struct Updated {
    grad_norm: f64,
    lr: f64,
    /// Updates of the order skipped so far.
    skipped: u64,
}

/// How a norm that is no number is reported: JSON has none for it.
const NOT_FINITE: f64 = -1.0;

/// One micro-batch and what its loss needs.
struct MicroBatch<'a> {
    phase: Phase,
    denominators: Denominators,
    packed: &'a Packed,
    old: Option<&'a [f32]>,
    reference: Option<&'a [f32]>,
}

impl MicroBatch<'_> {
    fn coefficients(
        &self,
        loss: &rl::LossConfig,
        logp: &[f32],
        entropy: &[f32],
        sums: &mut Sums,
    ) -> Result<TokenCoefficients, Error> {
        let wide = |narrow: &[f32]| narrow.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let (current, entropy) = (wide(logp), wide(entropy));
        // Only tokens under the mask have a row.
        let mask = vec![1u8; logp.len()];
        let reduction = if self.phase == Phase::Rl { loss.reduction } else { LossReduction::TokenMean };
        let weight: Vec<f64> =
            self.packed.rollout_mask_sum.iter().map(|sum| reduction.token_weight(self.denominators, *sum)).collect();
        if self.phase == Phase::WarmStart {
            let (out, s) = sft_loss(&SftBatch { current: &current, entropy: &entropy, mask: &mask, weight: &weight })?;
            sums.loss += s.loss;
            sums.entropy += s.entropy;
            sums.loss_tokens += s.tokens;
            sums.non_finite += s.non_finite;
            return Ok(out);
        }
        let old = self.old.map_or_else(|| current.clone(), wide);
        let rollout = wide(&self.packed.rollout_log_probs);
        let reference = self.reference.map(wide);
        let (out, s) = policy_loss(
            loss,
            &PolicyBatch {
                current: &current,
                old: &old,
                rollout: Some(&rollout),
                reference: reference.as_deref(),
                entropy: &entropy,
                mask: &mask,
                advantage: &self.packed.advantage,
                weight: &weight,
            },
        )?;
        sums.loss += s.loss;
        sums.pg_loss += s.pg_loss;
        sums.kl += s.kl;
        sums.entropy += s.entropy;
        sums.clipped += s.clipped;
        sums.loss_tokens += s.tokens;
        sums.non_finite += s.non_finite;
        Ok(out)
    }
}
