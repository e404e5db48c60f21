//! What can go wrong between ranks, said so that the reader knows which rank to look at.

use std::time::Duration;

/// A failed collective, or a world that could not be assembled.
///
/// After any of these the world is of no further use: ranks may have got different distances through the
/// collective. The attempt ends, and its successor builds a new world.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A wait passed its deadline. `waits` is all that is known about who waits for whom.
    #[error("rank {rank} waited {} s in {op} of group '{group}' for rank {from}; {waits}", .waited.as_secs_f32())]
    Deadline {
        /// World rank of the caller.
        rank: usize,
        /// World rank that did not send.
        from: usize,
        /// What was being done.
        op: &'static str,
        /// Name of the group.
        group: String,
        /// How long the caller had waited.
        waited: Duration,
        /// "rank 0 waits for rank 1 (all_gather #3 of dp); …".
        waits: String,
    },
    /// A rank left the world: its process died, its thread panicked, or it finished while we still needed it.
    #[error("rank {rank} lost rank {peer}: {why}; end this attempt and look at rank {peer}'s log first")]
    PeerGone {
        /// World rank of the caller.
        rank: usize,
        /// World rank that left.
        peer: usize,
        /// What the caller was doing.
        op: &'static str,
        /// Name of the group.
        group: String,
        /// What was seen: a closed connection, a panic, the reason the peer gave.
        why: String,
    },
    /// Another thread of this process told the world to stop.
    #[error("rank {rank} was told to stop waiting: {why}")]
    Aborted {
        /// World rank of the caller.
        rank: usize,
        /// What the caller was doing.
        op: &'static str,
        /// Name of the group.
        group: String,
        /// The reason given to [`crate::Abort::abort`].
        why: String,
    },
    /// Ranks of one group are not in the same collective: a bug in the program, never a fault of the network.
    #[error(
        "rank {rank} is in {expected} of group '{group}', but rank {from} sent {got}: all ranks of a group must call the same collectives in the same order with matching sizes"
    )]
    Diverged {
        /// World rank of the caller.
        rank: usize,
        /// World rank of the sender.
        from: usize,
        /// Name of the group.
        group: String,
        /// The collective the caller is in.
        op: &'static str,
        /// What the caller is doing.
        expected: String,
        /// What arrived.
        got: String,
    },
    /// The arguments of a collective cannot be right.
    #[error("{op} of group '{group}' on rank {rank}: {what}")]
    Argument {
        /// World rank of the caller.
        rank: usize,
        /// Name of the group.
        group: String,
        /// Name of the collective.
        op: &'static str,
        /// What does not fit.
        what: String,
    },
    /// A group cannot be split from the world as asked.
    #[error("group '{name}' of ranks {ranks:?}: {what}")]
    Group {
        /// Name of the group.
        name: String,
        /// World ranks asked for.
        ranks: Vec<usize>,
        /// What does not fit.
        what: String,
    },
    /// The ranks did not all meet in time.
    #[error("rank {rank} of {world_size} could not join run {run_uid} attempt {attempt} at {master} within {} s: {why}", .waited.as_secs_f32())]
    Rendezvous {
        /// World rank of the caller.
        rank: usize,
        /// Ranks expected.
        world_size: usize,
        /// The run.
        run_uid: String,
        /// The attempt.
        attempt: u64,
        /// Address of rank 0 as configured.
        master: String,
        /// How long the caller tried.
        waited: Duration,
        /// The last obstacle, e.g. which ranks are missing.
        why: String,
    },
    /// Rank 0 belongs to another run, to a later attempt, or to a world of another size: this process is a leftover.
    #[error(
        "rank {rank} was refused by rank 0 at {master}: {why}; this process does not belong to the attempt that runs now, so it must exit"
    )]
    Refused {
        /// World rank of the caller.
        rank: usize,
        /// Address of rank 0 as configured.
        master: String,
        /// What differs.
        why: String,
    },
    /// The world description itself is wrong.
    #[error("cannot build a world: {0}")]
    Config(String),
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<Error> for tensor::Error {
    /// What the layers above see of a failed collective. Ranks are world ranks.
    fn from(e: Error) -> tensor::Error {
        match e {
            Error::Deadline { rank, from, op, group, waited, waits } => {
                let seconds = waited.as_secs_f64();
                tensor::Error::CommTimeout { group, op, rank, waiting_for: vec![from], seconds, waits }
            }
            Error::PeerGone { rank, peer, op, group, why } => {
                tensor::Error::CommLost { group, op, rank, peer, reason: why }
            }
            Error::Aborted { rank, op, group, why } => tensor::Error::CommAborted { group, op, rank, reason: why },
            Error::Diverged { rank, from, group, op, expected, got } => {
                let what = format!("expected {expected}, got {got}");
                tensor::Error::CommDiverged { group, op, rank, peer: from, what }
            }
            Error::Argument { group, op, what, .. } => tensor::Error::Shape { op, what: format!("{group}: {what}") },
            // Set-up never happens inside a collective.
            Error::Group { .. } | Error::Rendezvous { .. } | Error::Refused { .. } | Error::Config(_) => {
                tensor::Error::Device { op: "comm", reason: e.to_string() }
            }
        }
    }
}
