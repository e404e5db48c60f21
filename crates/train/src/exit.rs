//! Exit codes of the trainer's processes. The operator reads the pod's.

/// Everything asked for is done, and `finished` is journaled.
pub const COMPLETE: u8 = 0;
/// Something failed that a new attempt may survive.
pub const FAILURE: u8 = 1;
/// The same inputs will fail again: the user must act.
pub const USER_MUST_ACT: u8 = 3;
/// A later attempt has the run, or the operator fenced this one. Nothing is wrong; nothing may be written any more.
pub const SUPERSEDED: u8 = 4;
/// Another rank failed first; its log says why.
pub const PEER_FAILED: u8 = 5;
/// Stopped by the conductor's order, everything wanted is saved.
pub const STOPPED: u8 = 75;
/// Ended by SIGTERM at the end of the order at hand (128 + 15, as a shell reports it).
pub const TERMINATED: u8 = 143;
