//! What can end a rank, and what it means for the attempt.

use crate::exit;
use crate::faults::Point;

/// A failure of a rank. Its text says what, where, and what to do; [`crate::Failure`] adds rank, order and number.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The environment or the configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// The conductor refused this attempt: a later one has the run, or it was fenced.
    #[error("this attempt is superseded: {0}")]
    Superseded(String),
    /// The conductor refuses, and will go on refusing.
    #[error("the conductor refuses: {0}")]
    Refused(String),
    /// The conductor did not answer for too long.
    #[error(
        "the conductor has not answered for {waited_s} s ({last}); giving this attempt up, its successor will claim again"
    )]
    Unreachable {
        /// Seconds waited.
        waited_s: u64,
        /// The last failure.
        last: String,
    },
    /// The conductor's answer cannot be obeyed.
    #[error("{what}: an order this trainer cannot obey; conductor and trainer may be of different versions")]
    Order {
        /// What is wrong with it.
        what: String,
    },
    /// A batch contradicts itself or its order.
    #[error("batch {batch}: {what}")]
    Batch {
        /// Where the batch lies.
        batch: String,
        /// What is wrong with it.
        what: String,
    },
    /// The weights are no numbers any more.
    #[error(
        "{first} and {others} other parameters hold values that are not finite: the run has diverged, and nothing of it was \
         saved or published; lower optimizer.lr or weightDecay, or clip gradients harder. The last commit is from before"
    )]
    NotFinite {
        /// The first such parameter.
        first: String,
        /// How many more.
        others: usize,
    },
    /// A commit or model folder is not what the conductor says it is.
    #[error("{folder}: {what}")]
    Mismatch {
        /// The folder.
        folder: String,
        /// What differs, and what to do.
        what: String,
    },
    /// Reading or writing a file.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// An order of a test.
    #[error("injected fault at {point}")]
    Injected {
        /// Where.
        point: Point,
    },
    /// SIGTERM; the order at hand was finished.
    #[error("asked to end by SIGTERM")]
    Terminated,
    /// Between ranks.
    #[error(transparent)]
    Comm(#[from] comm::Error),
    /// In the store.
    #[error(transparent)]
    Straw(#[from] straw::Error),
    /// In an operation.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// In a loss.
    #[error(transparent)]
    Loss(#[from] rl::Error),
    /// In the layout or the optimizer.
    #[error(transparent)]
    Parallel(#[from] parallel::Error),
    /// In a layer.
    #[error(transparent)]
    Nn(#[from] nn::Error),
    /// In the model.
    #[error(transparent)]
    Model(#[from] models::Error),
    /// In tiles or weights on disk.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
}

impl Error {
    /// The exit code of the process ([`crate::exit`]).
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Superseded(_) | Self::Comm(comm::Error::Refused { .. }) => exit::SUPERSEDED,
            Self::Terminated => exit::TERMINATED,
            _ if self.is_of_a_peer() => exit::PEER_FAILED,
            _ if self.user_must_act() => exit::USER_MUST_ACT,
            _ => exit::FAILURE,
        }
    }

    /// True when this rank is fine and another is not.
    fn is_of_a_peer(&self) -> bool {
        let by_comm = |e: &comm::Error| matches!(e, comm::Error::PeerGone { .. } | comm::Error::Aborted { .. });
        let by_tensor =
            |e: &tensor::Error| matches!(e, tensor::Error::CommLost { .. } | tensor::Error::CommAborted { .. });
        match self {
            Self::Comm(e) | Self::Parallel(parallel::Error::Comm(e)) => by_comm(e),
            Self::Tensor(e)
            | Self::Parallel(parallel::Error::Tensor(e))
            | Self::Checkpoint(checkpoint::Error::Tensor(e))
            | Self::Nn(nn::Error::Tensor(e))
            | Self::Model(models::Error::Tensor(e) | models::Error::Nn(nn::Error::Tensor(e))) => by_tensor(e),
            Self::Checkpoint(checkpoint::Error::Rank { .. }) => true,
            _ => false,
        }
    }

    /// True when a new attempt would fail in the same way.
    fn user_must_act(&self) -> bool {
        use checkpoint::Error as C;
        match self {
            Self::Config(_)
            | Self::Refused(_)
            | Self::Batch { .. }
            | Self::Mismatch { .. }
            | Self::NotFinite { .. }
            | Self::Loss(_) => true,
            Self::Parallel(e) => matches!(e, parallel::Error::Layout { .. } | parallel::Error::Unsupported { .. }),
            Self::Model(e) => matches!(
                e,
                models::Error::Parse(_)
                    | models::Error::Unsupported { .. }
                    | models::Error::Nn(nn::Error::Shard { .. })
            ),
            Self::Checkpoint(e) => matches!(
                e,
                C::Damaged { .. }
                    | C::Checksum { .. }
                    | C::IndexDigest { .. }
                    | C::Coverage { .. }
                    | C::Missing { .. }
                    | C::Mismatch { .. }
                    | C::Fingerprint { .. }
                    | C::Format { .. }
            ),
            _ => false,
        }
    }

    pub(crate) fn io(path: impl AsRef<std::path::Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().display().to_string();
        move |source| Self::Io { path, source }
    }
}
