//! The learning rate as a function of the optimizer updates done, and of nothing else: skipped updates do not move it,
//! and a restart cannot.

use crate::config::{OptimizerConfig, ScheduleKind};
use crate::error::Error;

impl OptimizerConfig {
    /// Learning rate of the next update when `updates_done` have been made.
    ///
    /// Warm-up rises in a straight line from lr / warmup_steps to lr; then the schedule runs over what is left of
    /// decay_steps and stays at min_lr (the shape of Megatron-LM's scheduler).
    pub fn lr_at(&self, updates_done: u64) -> f64 {
        if updates_done < self.warmup_steps {
            return self.lr * (updates_done + 1) as f64 / self.warmup_steps as f64;
        }
        let shape = match self.schedule {
            ScheduleKind::Constant => return self.lr,
            _ if updates_done >= self.decay_steps => return self.min_lr,
            ScheduleKind::Linear => 1.0 - self.decayed(updates_done),
            ScheduleKind::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * self.decayed(updates_done)).cos()),
        };
        self.min_lr + shape * (self.lr - self.min_lr)
    }

    /// Share of the decay that is over, in [0, 1).
    fn decayed(&self, updates_done: u64) -> f64 {
        (updates_done - self.warmup_steps) as f64 / (self.decay_steps - self.warmup_steps) as f64
    }

    /// Refuses values no optimizer can work with.
    ///
    /// # Errors
    /// [`Error::Setting`] naming the field.
    pub fn validate(&self) -> Result<(), Error> {
        let at_least_0 = |field, value: f64| check(field, value, value.is_finite() && value >= 0.0, "must be >= 0");
        let below_1 = |field, value: f64| check(field, value, (0.0..1.0).contains(&value), "must lie in [0, 1)");
        at_least_0("lr", self.lr)?;
        at_least_0("minLr", self.min_lr)?;
        below_1("beta1", self.beta1)?;
        below_1("beta2", self.beta2)?;
        check("eps", self.eps, self.eps.is_finite() && self.eps > 0.0, "must be > 0")?;
        at_least_0("weightDecay", self.weight_decay)?;
        at_least_0("clipGradNorm", self.clip_grad_norm)?;
        let decays = self.schedule != ScheduleKind::Constant;
        check(
            "decaySteps",
            self.decay_steps as f64,
            !decays || self.decay_steps > self.warmup_steps,
            "must be above warmupSteps for a schedule that decays",
        )
    }
}

pub(crate) fn check(field: &'static str, value: f64, holds: bool, rule: &'static str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Setting { field, value, rule }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(schedule: ScheduleKind) -> OptimizerConfig {
        OptimizerConfig {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            clip_grad_norm: 1.0,
            schedule,
            warmup_steps: 4,
            decay_steps: 14,
            min_lr: 1e-4,
        }
    }

    #[test]
    fn warm_up_never_starts_at_zero_and_ends_at_the_peak() {
        for kind in [ScheduleKind::Constant, ScheduleKind::Linear, ScheduleKind::Cosine] {
            let c = config(kind);
            let got: Vec<f64> = (0..5).map(|k| c.lr_at(k)).collect();
            for (g, w) in got.iter().zip([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3]) {
                assert!((g - w).abs() < 1e-15, "{kind:?}: {got:?}");
            }
        }
    }

    #[test]
    fn schedules_reach_the_floor_at_decay_steps_and_stay() {
        let linear = config(ScheduleKind::Linear);
        let cosine = config(ScheduleKind::Cosine);
        assert!((linear.lr_at(9) - 5.5e-4).abs() < 1e-15);
        assert!((cosine.lr_at(9) - 5.5e-4).abs() < 1e-15);
        for c in [linear, cosine] {
            for k in [14, 15, 1_000_000] {
                assert_eq!(c.lr_at(k), 1e-4);
            }
            assert!((4..14).all(|k| c.lr_at(k + 1) < c.lr_at(k)));
        }
        assert_eq!(config(ScheduleKind::Constant).lr_at(1_000_000), 1e-3);
    }

    #[test]
    fn without_warm_up_the_first_update_has_the_peak_rate() {
        let c = OptimizerConfig { warmup_steps: 0, ..config(ScheduleKind::Cosine) };
        assert_eq!(c.lr_at(0), 1e-3);
    }

    #[test]
    fn settings_no_optimizer_can_use_are_refused_by_name() {
        let good = config(ScheduleKind::Linear);
        assert_eq!(good.validate(), Ok(()));
        let field = |c: OptimizerConfig| match c.validate().unwrap_err() {
            Error::Setting { field, .. } => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(OptimizerConfig { lr: f64::NAN, ..good }), "lr");
        assert_eq!(field(OptimizerConfig { beta2: 1.0, ..good }), "beta2");
        assert_eq!(field(OptimizerConfig { eps: 0.0, ..good }), "eps");
        assert_eq!(field(OptimizerConfig { decay_steps: 4, ..good }), "decaySteps");
    }
}
