//! How a rank's end is told.

use std::fmt;

use control::wire::{Order, Phase, Work};

use crate::error::Error;
use crate::exit;

/// An error, with the rank it ended and what the rank was doing.
#[derive(Debug)]
pub struct Failure {
    /// The rank.
    pub rank: usize,
    /// The order at hand, if there was one.
    pub during: Option<String>,
    /// What happened.
    pub error: Box<Error>,
}

impl Failure {
    /// A failure before the first order.
    #[must_use]
    pub fn early(rank: usize, error: Error) -> Self {
        Self { rank, during: None, error: Box::new(error) }
    }

    /// The exit code of the process ([`exit`]).
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let code = self.error.exit_code();
        debug_assert_ne!(code, exit::COMPLETE);
        code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if let Some(during) = &self.during {
            write!(f, ", {during}")?;
        }
        write!(f, ": {}", self.error)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.error)
    }
}

/// "train RL step 7 (order 12)".
#[must_use]
pub fn describe(work: &Work) -> String {
    let what = match &work.order {
        Order::Train(order) => {
            let phase = match order.phase {
                Phase::WarmStart => "warm-start update",
                Phase::Rl => "RL step",
            };
            format!("train {phase} {}{}", order.step, if order.replay { " again" } else { "" })
        }
        Order::Save { step, warm_step, warming, .. } if *warming => {
            format!("save at step {step}, warm-start update {warm_step}")
        }
        Order::Save { step, .. } => format!("save at step {step}"),
        Order::Publish { version, .. } => format!("publish version {version}"),
        Order::BeginRl => "begin the RL phase".to_owned(),
        Order::Export { folder } => format!("export {folder}"),
        Order::Stop { reason } => format!("stop ({reason})"),
        Order::Finish => "finish".to_owned(),
    };
    format!("{what} (order {})", work.seq)
}
