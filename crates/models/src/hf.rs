//! Copies between a tensor of a Hugging Face checkpoint and the part of our fused tensor that a rank holds. Elements
//! of any type: `size` is the bytes of one.

use nn::{HfPiece, Rect};

fn copy_shared(from: &Rect, src: &[u8], to: &Rect, dst: &mut [u8], size: usize) {
    from.shared_runs(to, |a, b, n| dst[b * size..(b + n) * size].copy_from_slice(&src[a * size..(a + n) * size]));
}

/// Copy what `local` (a rank's rectangle of the fused tensor, stored row-major in `dst`) shares with a Hugging Face
/// tensor `src`.
///
/// # Panics
/// When a slice is shorter than its shape says.
pub fn scatter_piece(piece: &HfPiece, src: &[u8], local: &Rect, dst: &mut [u8], size: usize) {
    copy_shared(&piece.rect, src, local, dst, size);
}

/// The other way: copy what `local` holds of a Hugging Face tensor into its place in `dst`.
///
/// # Panics
/// When a slice is shorter than its shape says.
pub fn gather_piece(piece: &HfPiece, dst: &mut [u8], local: &Rect, src: &[u8], size: usize) {
    copy_shared(local, src, &piece.rect, dst, size);
}
