//! What the front asks of the scheduler. Every question carries the channel of its answer; when nobody waits for the answer any
//! more, the question is void.

use std::path::PathBuf;

use tokio::sync::oneshot;

use crate::{runner::Weights, sequence::Submission};

/// What happens to sequences in flight during a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseMode {
    /// They end, with what they have.
    Abort,
    /// They wait, their KV is dropped and computed again, with the weights of then.
    Retract,
    /// They wait and keep their KV, even over a change of weights.
    InPlace,
}

/// New weights to change to between two iterations.
pub(crate) struct Install {
    pub(crate) weights: Weights,
    pub(crate) model_path: PathBuf,
    /// `None`: the version keeps its name.
    pub(crate) version: Option<String>,
    pub(crate) flush_cache: bool,
    pub(crate) abort_all: bool,
}

/// How an [`Install`] went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Installed {
    /// False: flushing was asked for, and sequences hold KV of the old weights.
    pub(crate) flushed: bool,
    /// Sequences that wait for the end of the pause.
    pub(crate) paused_requests: usize,
}

/// How busy the scheduler is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) retracted: usize,
    pub(crate) paused: bool,
    pub(crate) used_tokens: usize,
    pub(crate) capacity_tokens: usize,
    pub(crate) waiting_tokens: usize,
    /// Output tokens per second, lately.
    pub(crate) gen_throughput: f64,
    /// Share of prompt tokens found in the prefix cache, since the start.
    pub(crate) cache_hit_rate: f64,
}

/// A message to the scheduler.
pub(crate) enum Command {
    Submit(Box<Submission>),
    /// The sequence ends with what it has; unknown ids are over already.
    Abort(u64),
    AbortAll,
    Pause(PauseMode, oneshot::Sender<()>),
    Continue(oneshot::Sender<()>),
    /// True: flushed. False: sequences are in the way.
    Flush(oneshot::Sender<bool>),
    Install(Box<Install>, oneshot::Sender<Installed>),
    /// The weights stay, their version gets another name.
    Rename {
        version: String,
        abort_all: bool,
        done: oneshot::Sender<()>,
    },
    Load(oneshot::Sender<Load>),
    /// End once nothing is in flight.
    Drain,
    /// End now; what is in flight is aborted with what it has.
    Stop,
}
