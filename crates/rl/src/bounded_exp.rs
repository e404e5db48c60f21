//! The exponential of a log-ratio that cannot overflow.

/// Beyond this the exponential goes on as a straight line. e^20 is 4.9e8: no ratio of use to a policy update is that
/// large, and products with it stay far inside f32.
pub const EXP_BOUND: f64 = 20.0;

/// `exp(x)` up to [`EXP_BOUND`], then its tangent there. Returns (value, derivative).
///
/// Clamping the exponent instead would make the derivative 0 exactly where the policy has run away, so the term would
/// stop pulling it back; clamping the result would multiply an infinite derivative by 0. The tangent is finite,
/// continuous, monotone, and its derivative keeps its sign.
pub fn bounded_exp(x: f64) -> (f64, f64) {
    if x <= EXP_BOUND {
        let e = x.exp();
        (e, e)
    } else {
        let e = EXP_BOUND.exp();
        (e * (1.0 + (x - EXP_BOUND)), e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_continuous_in_value_and_derivative() {
        let (below, db) = bounded_exp(EXP_BOUND - 1e-9);
        let (above, da) = bounded_exp(EXP_BOUND + 1e-9);
        assert!((above / below - 1.0).abs() < 1e-8 && (da / db - 1.0).abs() < 1e-8);
    }

    #[test]
    fn no_finite_log_ratio_gives_an_infinite_ratio() {
        for x in [-1e300, -750.0, 0.0, 89.0, 710.0, 1e30] {
            let (v, d) = bounded_exp(x);
            assert!(v.is_finite() && d.is_finite() && v >= 0.0 && d >= 0.0, "{x}: {v} {d}");
        }
    }
}
