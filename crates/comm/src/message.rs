//! What travels between two ranks: bytes, with enough beside them to notice that two ranks disagree.

use std::fmt;

/// Which collective a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    AllGather = 1,
    AllToAll = 2,
    Broadcast = 3,
    PointToPoint = 4,
    Barrier = 5,
}

impl Op {
    pub(crate) fn from_code(code: u8) -> Option<Op> {
        Some(match code {
            1 => Op::AllGather,
            2 => Op::AllToAll,
            3 => Op::Broadcast,
            4 => Op::PointToPoint,
            5 => Op::Barrier,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::AllGather => "all_gather",
            Op::AllToAll => "all_to_all",
            Op::Broadcast => "broadcast",
            Op::PointToPoint => "send/recv",
            Op::Barrier => "barrier",
        }
    }
}

/// Names one collective call: the `seq`-th of its kind of traffic in group `group`.
///
/// Both ends count for themselves; a difference means that the program took different turns on the two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    pub group: u64,
    pub op: Op,
    pub seq: u64,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.op.name(), self.seq)
    }
}

/// A message that has arrived and is not yet taken.
#[derive(Debug)]
pub(crate) struct Message {
    pub tag: Tag,
    pub bytes: Vec<u8>,
}
