//! From ranges of a rank's flat buffers to rectangles of global tensors, and to rectangles of Hugging Face tensors.

use std::ops::Range;

use models::{HfPiece, ParamSpec, ParamStore, Shard};
use tensor::{Backend, Comm, Stream, Tensor};

use crate::agree::exchange;
use crate::digest::WeightsDigest;
use crate::error::Result;
use crate::rect::{Rect, copy_shared, rectangles, relative_to, shifted, split};

/// A rectangle of a global tensor that lies contiguously in a rank's flat buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlatRect {
    /// Which parameter of the store.
    pub param: usize,
    /// Its part, in the coordinates of the whole tensor.
    pub rect: Rect,
    /// Where that part lies.
    pub flat: Range<usize>,
}

/// Cuts the elements `range` of the flat buffers into rectangles of at most about `elements` elements.
pub(crate) fn flat_rects(store: &ParamStore, range: &Range<usize>, elements: usize) -> Vec<FlatRect> {
    let mut out = Vec::new();
    for (param, entry) in store.layout().entries.iter().enumerate() {
        let all = entry.range();
        let (start, end) = (all.start.max(range.start), all.end.min(range.end));
        if start >= end {
            continue;
        }
        let mut at = start;
        for rect in rectangles(&entry.rect.shape, start - all.start..end - all.start) {
            for part in split(&rect, elements) {
                let flat = at..at + part.numel();
                at = flat.end;
                out.push(FlatRect { param, rect: shifted(&part, &entry.rect.offset), flat });
            }
        }
    }
    out
}

/// Whether this rank speaks for its copy of a parameter. Replicated ones have one speaker each, spread over the ranks.
pub(crate) fn speaks(store: &ParamStore, param: usize) -> bool {
    let (rank, size) = store.tp();
    store.specs()[param].shard != Shard::Replicated || param % size == rank
}

/// What a rectangle of our tensor shares with a Hugging Face tensor: in our coordinates, and in those of the Hugging
/// Face tensor seen as `piece.rect.shape`.
pub(crate) fn shared(piece: &HfPiece, rect: &Rect) -> Option<(Rect, Rect)> {
    let ours = rect.intersect(&piece.rect)?;
    let theirs = relative_to(&ours, &piece.rect.offset);
    Some((ours, theirs))
}

/// The bytes of a contiguous tensor.
pub(crate) fn download(be: &dyn Backend, t: &Tensor) -> Result<Vec<u8>> {
    let mut out = vec![0; t.numel() * t.dtype().size()];
    be.download(Stream::COMPUTE, t, &mut out)?;
    Ok(out)
}

/// Adds a rectangle of one of our tensors to a digest of Hugging Face tensors.
fn add_to_digest(
    digest: &mut WeightsDigest,
    spec: &ParamSpec,
    rect: &Rect,
    dtype: tensor::DType,
    bytes: &[u8],
) -> Result<()> {
    for piece in &spec.hf {
        let Some((ours, theirs)) = shared(piece, rect) else { continue };
        let mut part = vec![0; ours.numel() * dtype.size()];
        copy_shared(bytes, rect, &mut part, &ours, dtype.size());
        digest.add(&piece.name, dtype, &piece.shape, &piece.rect.shape, &theirs, &part)?;
    }
    Ok(())
}

/// Elements hashed at a time.
const DIGEST_ELEMENTS: usize = 1 << 20;

/// This rank's part of the digest of all weights, over `ranges` of its flat buffer.
pub(crate) fn partial_digest(
    be: &dyn Backend,
    store: &ParamStore,
    ranges: impl IntoIterator<Item = Range<usize>>,
) -> Result<WeightsDigest> {
    let mut digest = WeightsDigest::new();
    for range in ranges {
        for part in flat_rects(store, &range, DIGEST_ELEMENTS) {
            if speaks(store, part.param) {
                let bytes = download(be, &store.flat().flat(part.flat.start, part.flat.len())?)?;
                add_to_digest(&mut digest, &store.specs()[part.param], &part.rect, store.dtype(), &bytes)?;
            }
        }
    }
    Ok(digest)
}

/// The digest of the whole model's weights, which the ranks of `group` hold between them, each adding the elements
/// `ranges` of its flat buffer. With one rank: the whole buffer. The same for every layout, and equal to
/// [`crate::hf::folder_digest`] of the folder those weights are published to.
///
/// # Errors
/// [`crate::Error::Digest`] if the ranks together do not hold the model exactly once; errors of any rank.
pub fn weights_digest(
    group: &dyn Comm,
    be: &dyn Backend,
    store: &ParamStore,
    ranges: impl IntoIterator<Item = Range<usize>>,
) -> Result<String> {
    let mine = partial_digest(be, store, ranges).map(|d| d.to_bytes());
    let mut all = WeightsDigest::new();
    for part in exchange(group, mine)? {
        all.merge(&WeightsDigest::from_bytes(&part)?)?;
    }
    all.finish()
}
