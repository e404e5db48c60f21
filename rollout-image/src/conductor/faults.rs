//! Faults a test can order by the environment, at named points of a reign.
//!
//! `THRESH_CONDUCTOR_FAULTS` holds faults separated by `;`, each `what:key=value,key=value`:
//!
//! | what | does |
//! |---|---|
//! | `kill` | SIGKILL to this process |
//! | `stop` | SIGSTOP to this process: a zombie, until somebody continues it |
//!
//! | key | selects |
//! |---|---|
//! | `point` | `before-journal`, `after-journal`, `after-commands`, or `engine-updated` (an engine has acknowledged new weights); `copying`, `copied`, `named`: folders of another run that this one begins with |
//! | `record` | a record that is journaled at that point, by name: `Accepted`, `Converted`, `Committed`, ... |
//! | `step` | the step of that record |
//! | `nth` | how many times to let it pass first; by default none |
//! | `epoch` | of the conductor, by default 1, so that its successor lives; `*` is every one |
//!
//! So `kill:point=after-journal,record=Accepted,step=3` is a death between the acceptance of step 3 and its conversion, and
//! `kill:point=engine-updated` one with half of the engines updated.

use anyhow::{Context, bail};
use conductor::Record;

/// Name of the variable.
pub const VARIABLE: &str = "THRESH_CONDUCTOR_FAULTS";

/// Where a fault can strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Thought, not yet written.
    BeforeJournal,
    /// Durable, nothing done about it.
    AfterJournal,
    /// Durable, and the commands are on their way.
    AfterCommands,
    /// An engine has acknowledged; others may not have.
    EngineUpdated,
    /// A file of another run's commit is there, under a temporary name.
    Copying,
    /// All of them are, durably.
    Copied,
    /// The folder has its name; no record says so.
    Named,
}

#[derive(Clone, Debug)]
struct Fault {
    signal: rustix::process::Signal,
    point: Point,
    record: Option<String>,
    step: Option<u64>,
    passes: u64,
}

/// The faults of one reign.
#[derive(Debug, Default)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Those in the environment that concern the reign `epoch`.
    pub fn from_env(epoch: u64) -> anyhow::Result<Self> {
        match std::env::var(VARIABLE) {
            Ok(text) => Self::parse(&text, epoch).with_context(|| format!("{VARIABLE}={text}")),
            Err(_) => Ok(Self::default()),
        }
    }

    fn parse(text: &str, epoch: u64) -> anyhow::Result<Self> {
        let mut faults = Vec::new();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (what, keys) = part.split_once(':').with_context(|| format!("{part}: expected what:key=value"))?;
            let signal = match what {
                "kill" => rustix::process::Signal::KILL,
                "stop" => rustix::process::Signal::STOP,
                other => bail!("{other}: expected kill or stop"),
            };
            let (mut point, mut record, mut step, mut passes, mut of) = (None, None, None, 0, Some(1));
            for pair in keys.split(',') {
                let (key, value) = pair.split_once('=').with_context(|| format!("{pair}: expected key=value"))?;
                match key.trim() {
                    "point" => {
                        point = Some(match value {
                            "before-journal" => Point::BeforeJournal,
                            "after-journal" => Point::AfterJournal,
                            "after-commands" => Point::AfterCommands,
                            "engine-updated" => Point::EngineUpdated,
                            "copying" => Point::Copying,
                            "copied" => Point::Copied,
                            "named" => Point::Named,
                            other => bail!("{other} is no point"),
                        });
                    }
                    "record" => record = Some(value.to_owned()),
                    "step" => step = Some(value.parse()?),
                    "nth" => passes = value.parse()?,
                    "epoch" if value == "*" => of = None,
                    "epoch" => of = Some(value.parse()?),
                    other => bail!("{other} is no key"),
                }
            }
            let point = point.context("a fault needs a point")?;
            if of.is_none_or(|of| of == epoch) {
                faults.push(Fault { signal, point, record, step, passes });
            }
        }
        Ok(Self(faults))
    }

    /// Strikes, if one is due here.
    pub fn at(&mut self, point: Point, records: &[Record]) {
        for fault in self.0.iter_mut().filter(|fault| fault.point == point) {
            let named = |record: &Record| {
                fault.record.as_deref().is_none_or(|name| name == record.name())
                    && fault.step.is_none_or(|step| step_of(record) == Some(step))
            };
            let here = (fault.record.is_none() && fault.step.is_none()) || records.iter().any(named);
            if !here {
                continue;
            }
            if fault.passes > 0 {
                fault.passes -= 1;
                continue;
            }
            tracing::warn!(?point, "a fault was ordered here");
            let _ = rustix::process::kill_process(rustix::process::getpid(), fault.signal);
            // Continued after a stop: once is enough.
            fault.passes = u64::MAX;
        }
    }
}

fn step_of(record: &Record) -> Option<u64> {
    match record {
        Record::Accepted { step, .. } | Record::Converted { step, .. } => Some(*step),
        Record::Committed { commit, .. } => Some(commit.step),
        Record::Ordered { order: conductor::OrderKind::Train { step, .. }, .. } => Some(*step),
        Record::VersionAdvanced { version, .. } => Some(*version),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_cannot_be_read_is_an_error_and_not_a_silence() {
        for bad in [
            "explode:point=after-journal",
            "kill:point=nowhere",
            "kill:record=Accepted",
            "kill",
            "kill:point=after-journal,colour=red",
        ] {
            assert!(Faults::parse(bad, 1).is_err(), "{bad}");
        }
        assert_eq!(
            Faults::parse("kill:point=after-journal,record=Accepted,step=3; stop:point=engine-updated,epoch=*", 1)
                .unwrap()
                .0
                .len(),
            2
        );
        assert_eq!(Faults::parse("kill:point=after-journal", 2).unwrap().0.len(), 0, "a successor lives");
    }
}
