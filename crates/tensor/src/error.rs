use crate::{DType, Tag};

/// What can go wrong below the layers. Every variant names the operation or the rank, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Shapes, strides or sizes do not fit together: a bug in the caller.
    #[error("{op}: {what}")]
    Shape { op: &'static str, what: String },
    /// An operand has a data type the operation does not take.
    #[error("{op}: {operand} is {got:?}, expected {expected}")]
    DType { op: &'static str, operand: &'static str, got: DType, expected: &'static str },
    /// The backend does not offer this operation for these arguments.
    #[error("{op}: the {backend} backend does not support {what}")]
    Unsupported { op: &'static str, backend: &'static str, what: String },
    /// The allocator could not get memory.
    #[error("cannot allocate {bytes} bytes for {tag:?}: use smaller micro-batches, recompute, or more devices")]
    OutOfMemory { bytes: usize, tag: Tag },
    /// Two operations touch one buffer at the same time and one of them writes.
    #[error(
        "{bytes}-byte {tag:?} buffer is in use by another operation: order the two with an event, or use separate buffers"
    )]
    Conflict { bytes: usize, tag: Tag },
    /// Host access to memory that lives on a device.
    #[error("tensor lives on a device: copy it with Backend::download first")]
    NotHost,
    /// An index tensor points outside of its table.
    #[error("{op}: index {index} is outside 0..{len}")]
    Index { op: &'static str, index: i64, len: usize },
    /// A rank waited for peers that did not arrive in time.
    /// `waits` tells, as far as it can be seen from here, who waits for whom.
    #[error(
        "{group}: rank {rank} waited {seconds:.1} s in {op} for rank(s) {waiting_for:?} ({waits}): look at their logs; raise the deadline if they are only slow"
    )]
    CommTimeout { group: String, op: &'static str, rank: usize, waiting_for: Vec<usize>, seconds: f64, waits: String },
    /// A peer is gone.
    #[error("{group}: rank {rank} lost rank {peer} in {op}: {reason}")]
    CommLost { group: String, op: &'static str, rank: usize, peer: usize, reason: String },
    /// The group was aborted, by this process or a peer.
    #[error("{group}: rank {rank} stopped in {op}, the group was aborted: {reason}")]
    CommAborted { group: String, op: &'static str, rank: usize, reason: String },
    /// Two ranks of a group are in different collectives, or disagree about sizes: a bug in the program.
    #[error("{group}: rank {rank} is in {op}, but rank {peer} sent something else: {what}")]
    CommDiverged { group: String, op: &'static str, rank: usize, peer: usize, what: String },
    /// The device or its driver failed.
    #[error("{op}: device error: {reason}")]
    Device { op: &'static str, reason: String },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn shape(op: &'static str, what: impl Into<String>) -> Self {
        Error::Shape { op, what: what.into() }
    }
}
