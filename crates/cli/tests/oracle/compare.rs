//! Distances.

/// The largest difference.
pub fn largest<'a>(ours: impl IntoIterator<Item = f32>, theirs: impl IntoIterator<Item = &'a f64>) -> f64 {
    let (mut ours, mut theirs) = (ours.into_iter(), theirs.into_iter());
    let mut largest = 0.0f64;
    loop {
        match (ours.next(), theirs.next()) {
            (Some(a), Some(b)) => {
                let distance = (f64::from(a) - b).abs();
                assert!(distance.is_finite(), "{a} against {b}");
                largest = largest.max(distance);
            }
            (None, None) => return largest,
            _ => panic!("unequal numbers of values"),
        }
    }
}

/// ‖ours − theirs‖ / ‖theirs‖
pub fn relative(ours: &[f32], theirs: &[f32]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let square = |x: f64| x * x;
    let distance: f64 = ours.iter().zip(theirs).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    assert!(distance.is_finite());
    (distance / theirs.iter().map(|b| square(f64::from(*b))).sum::<f64>()).sqrt()
}
