//! Finding the first number that is not one.

/// Position of the first NaN or infinity, if any.
pub fn first_non_finite(values: &[f32]) -> Option<usize> {
    values.iter().position(|v| !v.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_infinities_are_found_and_subnormals_are_not() {
        assert_eq!(first_non_finite(&[0.0, f32::MIN_POSITIVE / 4.0, -f32::MAX]), None);
        assert_eq!(first_non_finite(&[0.0, f32::NAN]), Some(1));
        assert_eq!(first_non_finite(&[f32::NEG_INFINITY, f32::NAN]), Some(0));
    }
}
