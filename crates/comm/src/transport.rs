//! What a way of moving bytes must offer; everything else is shared.

use std::time::Duration;

use crate::error::Result;
use crate::inbox::Inbox;
use crate::message::Tag;

/// One rank's end of a world. Implemented by [`crate::thread`] and [`crate::tcp`].
pub(crate) trait Transport: Send + Sync {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// How long any single wait may last.
    fn timeout(&self) -> Duration;
    fn inbox(&self) -> &Inbox;
    /// Hands `bytes` to rank `to`. Returns when the bytes are copied out of the caller's hands.
    fn send(&self, to: usize, group: &str, tag: Tag, bytes: &[u8]) -> Result<()>;
    /// Fails every present and future wait of this rank, and lets the others know that it is gone.
    fn abort(&self, why: &str);
    /// Who waits for whom, as far as this transport can see.
    fn describe_waits(&self) -> String;
}

/// Prints one wait as "rank 0 waits for rank 1 (all_gather #3 of dp)".
pub(crate) fn describe_wait(rank: usize, wait: &crate::inbox::Wait) -> String {
    format!("rank {rank} waits for rank {} ({} of {})", wait.from, wait.tag, wait.group)
}
