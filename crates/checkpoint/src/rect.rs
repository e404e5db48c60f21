//! Boxes inside row-major tensors: the only shape in which parts of tensors are stored or asked for.

use std::ops::Range;

pub use models::Rect;

/// Whether a rectangle lies inside a tensor of this shape (and has its rank).
pub fn fits(rect: &Rect, shape: &[usize]) -> bool {
    rect.offset.len() == shape.len()
        && rect.shape.len() == shape.len()
        && (0..shape.len()).all(|d| rect.offset[d].checked_add(rect.shape[d]).is_some_and(|end| end <= shape[d]))
}

/// The rectangle seen from `origin`, which lies before it: `offset - origin`.
pub fn relative_to(rect: &Rect, origin: &[usize]) -> Rect {
    Rect { offset: rect.offset.iter().zip(origin).map(|(o, z)| o - z).collect(), shape: rect.shape.clone() }
}

/// The rectangle moved by `by`.
pub fn shifted(rect: &Rect, by: &[usize]) -> Rect {
    Rect { offset: rect.offset.iter().zip(by).map(|(o, b)| o + b).collect(), shape: rect.shape.clone() }
}

/// Cuts along the first dimension longer than 1 so that no part has more than `elements` elements, where a row allows
/// it. A contiguous rectangle is cut into contiguous parts, in order.
pub fn split(rect: &Rect, elements: usize) -> Vec<Rect> {
    let Some(dim) = rect.shape.iter().position(|n| *n > 1).filter(|_| rect.numel() > elements) else {
        return vec![rect.clone()];
    };
    let rows = rect.shape[dim];
    let step = (elements / (rect.numel() / rows).max(1)).max(1);
    (0..rows)
        .step_by(step)
        .map(|at| {
            let mut part = rect.clone();
            part.offset[dim] += at;
            part.shape[dim] = step.min(rows - at);
            part
        })
        .collect()
}

/// Cuts elements `range` (row-major order) of a tensor into rectangles, in that order: at most one in 1-D, three in
/// 2-D, five in 3-D.
///
/// This is what lets the optimizer own arbitrary flat ranges while files hold nothing but rectangles.
pub fn rectangles(shape: &[usize], range: Range<usize>) -> Vec<Rect> {
    let mut out = Vec::new();
    let mut prefix = Vec::new();
    cut(shape, range, &mut prefix, &mut out);
    out
}

fn cut(shape: &[usize], range: Range<usize>, prefix: &mut Vec<usize>, out: &mut Vec<Rect>) {
    if range.is_empty() {
        return;
    }
    let place = |offset: &[usize], sizes: &[usize], prefix: &[usize]| Rect {
        offset: [prefix, offset].concat(),
        shape: [&vec![1; prefix.len()], sizes].concat(),
    };
    let Some((_, inner_shape)) = shape.split_first() else {
        out.push(place(&[], &[], prefix));
        return;
    };
    if inner_shape.is_empty() {
        out.push(place(&[range.start], &[range.len()], prefix));
        return;
    }
    let inner: usize = inner_shape.iter().product();
    let mut at = range.start;
    let within = |row: usize, from: usize, to: usize, prefix: &mut Vec<usize>, out: &mut Vec<Rect>| {
        prefix.push(row);
        cut(inner_shape, from..to, prefix, out);
        prefix.pop();
    };
    if !at.is_multiple_of(inner) || range.end - at < inner {
        let row = at / inner;
        let end = range.end.min((row + 1) * inner);
        within(row, at - row * inner, end - row * inner, prefix, out);
        at = end;
    }
    let rows = (range.end - at) / inner;
    if rows > 0 {
        let offset: Vec<usize> = std::iter::once(at / inner).chain(inner_shape.iter().map(|_| 0)).collect();
        let sizes: Vec<usize> = std::iter::once(rows).chain(inner_shape.iter().copied()).collect();
        out.push(place(&offset, &sizes, prefix));
        at += rows * inner;
    }
    if at < range.end {
        within(at / inner, 0, range.end - at, prefix, out);
    }
}

/// The contiguous runs of `part` inside a row-major tensor of `shape`: first element of each, and their common length.
///
/// Trailing dimensions that the rectangle covers whole are merged into the run.
pub fn runs(shape: &[usize], part: &Rect) -> (Vec<usize>, usize) {
    if part.numel() == 0 {
        return (Vec::new(), 0);
    }
    let rank = shape.len();
    let mut strides = vec![1; rank];
    for d in (0..rank.saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1];
    }
    // Dimensions from `inner` on form one run.
    let mut inner = rank;
    let mut len = 1;
    while inner > 0 {
        inner -= 1;
        len *= part.shape[inner];
        if part.shape[inner] != shape[inner] {
            break;
        }
    }
    let base: usize = part.offset.iter().zip(&strides).map(|(o, s)| o * s).sum();
    let outer: usize = part.shape[..inner].iter().product();
    let starts = (0..outer).map(|mut i| {
        let mut at = base;
        for d in (0..inner).rev() {
            at += i % part.shape[d] * strides[d];
            i /= part.shape[d];
        }
        at
    });
    (starts.collect(), len)
}

/// Copies what two rectangles of one tensor share, from a buffer that holds `from` to a buffer that holds `to`, elements
/// of `size` bytes.
///
/// # Panics
/// If a buffer is not as large as its rectangle.
pub fn copy_shared(src: &[u8], from: &Rect, dst: &mut [u8], to: &Rect, size: usize) {
    assert_eq!(src.len(), from.numel() * size, "source buffer of {from:?}");
    assert_eq!(dst.len(), to.numel() * size, "target buffer of {to:?}");
    from.shared_runs(to, |a, b, n| dst[b * size..(b + n) * size].copy_from_slice(&src[a * size..(a + n) * size]));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rect(offset: &[usize], shape: &[usize]) -> Rect {
        Rect { offset: offset.to_vec(), shape: shape.to_vec() }
    }

    fn elements(shape: &[usize], rect: &Rect) -> Vec<usize> {
        let (starts, len) = runs(shape, rect);
        starts.into_iter().flat_map(|s| s..s + len).collect()
    }

    #[test]
    fn a_range_that_cuts_two_rows_becomes_three_rectangles() {
        let parts = rectangles(&[4, 5], 3..17);
        assert_eq!(parts, [rect(&[0, 3], &[1, 2]), rect(&[1, 0], &[2, 5]), rect(&[3, 0], &[1, 2])]);
        assert_eq!(rectangles(&[4, 5], 6..9), [rect(&[1, 1], &[1, 3])]);
        assert_eq!(rectangles(&[4, 5], 0..20), [Rect::full(&[4, 5])]);
        assert_eq!(rectangles(&[7], 2..5), [rect(&[2], &[3])]);
        assert_eq!(rectangles(&[], 0..1), [Rect::full(&[])]);
        assert_eq!(rectangles(&[4, 5], 5..5), []);
    }

    #[test]
    fn a_split_covers_the_rectangle_in_order() {
        let whole = rect(&[3, 2], &[10, 4]);
        let parts = split(&whole, 13);
        assert_eq!(parts.iter().map(|p| p.shape[0]).collect::<Vec<_>>(), [3, 3, 3, 1]);
        assert_eq!(parts[1].offset, [6, 2]);
        assert_eq!(split(&whole, 40), std::slice::from_ref(&whole));
        assert_eq!(split(&whole, 1).len(), 10, "a row is never cut");
        let deep = split(&rect(&[2, 0, 0], &[1, 6, 4]), 8);
        assert_eq!(deep.iter().map(|p| p.offset[1]).collect::<Vec<_>>(), [0, 2, 4]);
    }

    fn shape_and_range() -> impl Strategy<Value = (Vec<usize>, Range<usize>)> {
        prop::collection::vec(1usize..6, 1..4).prop_flat_map(|shape| {
            let n: usize = shape.iter().product();
            (Just(shape), 0..=n, 0..=n).prop_map(|(s, a, b)| (s, a.min(b)..a.max(b)))
        })
    }

    proptest! {
        #[test]
        fn rectangles_are_few_and_cover_the_range_exactly((shape, range) in shape_and_range()) {
            let parts = rectangles(&shape, range.clone());
            prop_assert!(parts.len() <= [1, 3, 5][shape.len() - 1], "{} parts", parts.len());
            let all: Vec<usize> = parts.iter().flat_map(|p| elements(&shape, p)).collect();
            prop_assert_eq!(all, range.collect::<Vec<_>>());
        }

        #[test]
        fn copying_by_rectangles_equals_copying_by_elements(
            (shape, a, b) in shape_and_range().prop_flat_map(|(shape, _)| {
                let any = |shape: &Vec<usize>| shape
                    .iter()
                    .map(|n| (0..*n).prop_flat_map({ let n = *n; move |o| (Just(o), 1..=n - o) }))
                    .collect::<Vec<_>>();
                let (a, b) = (any(&shape), any(&shape));
                (Just(shape), a, b)
            })
        ) {
            let make = |r: Vec<(usize, usize)>| Rect {
                offset: r.iter().map(|x| x.0).collect(),
                shape: r.iter().map(|x| x.1).collect(),
            };
            let (a, b) = (make(a), make(b));
            // Every element carries its own flat index.
            let src: Vec<u8> = elements(&shape, &a).iter().map(|e| *e as u8).collect();
            let mut dst = vec![255u8; b.numel()];
            let shared = a.intersect(&b);
            copy_shared(&src, &a, &mut dst, &b, 1);
            let inside = shared.map(|w| elements(&shape, &w)).unwrap_or_default();
            for (got, element) in dst.iter().zip(elements(&shape, &b)) {
                let want = if inside.contains(&element) { element as u8 } else { 255 };
                prop_assert_eq!(*got, want);
            }
        }
    }
}
