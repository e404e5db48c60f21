//! Per-token estimators of KL(current || reference) and their derivatives.

use crate::bounded_exp::bounded_exp;
use crate::config::KlKind;

/// The low-variance form is clamped to plus and minus this.
const LOW_VAR_CLAMP: f64 = 10.0;

impl KlKind {
    /// (value, derivative by the current log-prob) at log-probs `current` and `reference`, nats.
    ///
    /// With d = current - reference: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (Schulman, "Approximating KL
    /// divergence", 2020). Minimising any of them under samples of the current policy draws it to the reference, but
    /// for k1 used as a loss, whose expected gradient is 0: it is offered because it is the unbiased measure.
    pub fn value_and_derivative(self, current: f64, reference: f64) -> (f64, f64) {
        let d = current - reference;
        match self {
            Self::K1 => (d, 1.0),
            Self::K2 => (0.5 * d * d, d),
            Self::K3 => k3(d),
            Self::LowVar => {
                let (value, derivative) = k3(d);
                if (-LOW_VAR_CLAMP..=LOW_VAR_CLAMP).contains(&value) {
                    (value, derivative)
                } else {
                    (value.clamp(-LOW_VAR_CLAMP, LOW_VAR_CLAMP), 0.0)
                }
            }
        }
    }
}

fn k3(d: f64) -> (f64, f64) {
    let (e, de) = bounded_exp(-d);
    (e - 1.0 + d, 1.0 - de)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [KlKind; 4] = [KlKind::K1, KlKind::K2, KlKind::K3, KlKind::LowVar];

    #[test]
    fn the_three_estimators_have_their_published_values_and_signs() {
        let at = |k: KlKind| k.value_and_derivative(-1.2, -0.7).0;
        assert!((at(KlKind::K1) + 0.5).abs() < 1e-12);
        assert!((at(KlKind::K2) - 0.125).abs() < 1e-12);
        assert!((at(KlKind::K3) - 0.148_721_270_700_128).abs() < 1e-12);
        // d = reference - current
        for (d, value, derivative) in [
            (0.1, 0.005_170_918_075_647_6, -0.105_170_918_075_647_6),
            (1.0, 0.718_281_828_459_045, -1.718_281_828_459_045),
            (-1.0, 0.367_879_441_171_442, 0.632_120_558_828_558),
        ] {
            let (v, g) = KlKind::K3.value_and_derivative(-2.0, -2.0 + d);
            assert!((v - value).abs() < 1e-12 && (g - derivative).abs() < 1e-12, "{d}: {v} {g}");
        }
    }

    #[test]
    fn derivatives_are_those_of_the_values() {
        for kind in ALL {
            for d in [-3.0, -0.4, 0.0, 0.3, 2.2, 7.0, -19.0, -20.5] {
                let h = 1e-6;
                let (_, g) = kind.value_and_derivative(d, 0.0);
                let up = kind.value_and_derivative(d + h, 0.0).0;
                let down = kind.value_and_derivative(d - h, 0.0).0;
                let fd = (up - down) / (2.0 * h);
                assert!((g - fd).abs() <= 1e-8 * fd.abs().max(1.0), "{kind:?} at {d}: {g} {fd}");
            }
        }
    }

    #[test]
    fn a_reference_far_above_the_policy_gives_a_finite_kl_that_still_pulls() {
        for d in [90.0, 800.0, 1e6] {
            let (v, g) = KlKind::K3.value_and_derivative(-d, 0.0);
            assert!(v.is_finite() && g.is_finite() && v > 0.0 && g < 0.0, "{d}: {v} {g}");
            assert!((g as f32).is_finite() && (v as f32).is_finite());
            let (v, g) = KlKind::LowVar.value_and_derivative(-d, 0.0);
            assert_eq!((v, g), (10.0, 0.0));
        }
    }

    /// A policy over three actions trained on the KL term alone, in expectation.
    #[test]
    fn minimising_the_kl_term_lowers_the_exact_kl() {
        let softmax = |z: [f64; 3]| {
            let e = z.map(f64::exp);
            let s: f64 = e.iter().sum();
            e.map(|x| x / s)
        };
        let reference = [0.6, 0.3, 0.1];
        for kind in [KlKind::K2, KlKind::K3, KlKind::LowVar] {
            let mut z = [0.0f64, 0.5, 1.0];
            let exact = |p: [f64; 3]| (0..3).map(|i| p[i] * (p[i] / reference[i]).ln()).sum::<f64>();
            let mut last = exact(softmax(z));
            for _ in 0..50 {
                let p = softmax(z);
                let mut dz = [0.0; 3];
                for a in 0..3 {
                    let (_, g) = kind.value_and_derivative(p[a].ln(), reference[a].ln());
                    for j in 0..3 {
                        dz[j] += p[a] * g * (f64::from(u8::from(a == j)) - p[j]);
                    }
                }
                for j in 0..3 {
                    z[j] -= 0.8 * dz[j];
                }
                let now = exact(softmax(z));
                assert!(now <= last, "{kind:?}: {last} -> {now}");
                last = now;
            }
            assert!(last < 1e-3, "{kind:?}: {last}");
        }
    }
}
