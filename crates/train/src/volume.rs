//! A volume that is full or away is waited for: what this attempt holds in memory is worth more than the time it waits, and
//! a successor would find the volume no better.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tensor::Comm;

use crate::error::Error;
use crate::stop::Stop;

/// Pauses between tries.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A wait is logged this often.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// What this rank waits for on the volume, if it does; rank 0's goes to the conductor with its pulse.
#[derive(Clone, Debug, Default)]
pub struct Waiting(Arc<Mutex<Option<String>>>);

impl Waiting {
    /// The wait at hand.
    #[must_use]
    pub fn now(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, what: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }
}

/// The run's folder as all ranks of an attempt see it.
#[derive(Clone)]
pub(crate) struct Volume {
    pub(crate) world: Arc<dyn Comm>,
    pub(crate) run_dir: PathBuf,
    /// Set by SIGTERM: nobody waits any longer then.
    pub(crate) stop: Stop,
    pub(crate) waiting: Waiting,
}

impl Volume {
    /// Does `act` until the volume takes it on every rank. Collective: `act` must have the same collectives on every rank,
    /// or fail on all of them where it fails on one.
    ///
    /// # Errors
    /// Any of `act` that is not the volume's; [`Error::Terminated`] when asked to end while waiting.
    pub(crate) fn takes<T>(&self, what: &str, mut act: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let began = Instant::now();
        let mut said: Option<Instant> = None;
        let mut pause = PAUSE;
        loop {
            let result = act();
            let problem = match &result {
                Ok(_) => String::new(),
                // A rank that leaves here ends the others' wait for it.
                Err(error) if !self.is_of_the_volume(error) => return result,
                Err(error) => error.to_string(),
            };
            let Some(problem) = self.first_problem(&problem)? else {
                if said.is_some() {
                    tracing::info!(waited_s = began.elapsed().as_secs(), "{what}: the volume takes it again");
                    self.waiting.set(None);
                }
                return result;
            };
            if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
                said = Some(Instant::now());
                tracing::warn!(waited_s = began.elapsed().as_secs(), "{what}: waiting for the volume: {problem}");
            }
            self.waiting.set(Some(format!("{what}: {problem}")));
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            if self.asked_to_end()? {
                return Err(Error::Terminated);
            }
        }
    }

    /// What the first rank that failed says. A rank that only heard of it says nothing new.
    fn first_problem(&self, mine: &str) -> Result<Option<String>, Error> {
        let all = self.world.all_gather_bytes(mine.as_bytes())?;
        let told = all.iter().map(|text| String::from_utf8_lossy(text)).filter(|text| !text.is_empty());
        Ok(told.min_by_key(|text| text.starts_with("rank ")).map(std::borrow::Cow::into_owned))
    }

    /// Whether any rank was asked to end. Collective.
    pub(crate) fn asked_to_end(&self) -> Result<bool, Error> {
        let mine = [u8::from(self.stop.is_asked())];
        Ok(self.world.all_gather_bytes(&mine)?.iter().any(|flag| flag.first() == Some(&1)))
    }

    /// Whether an error passes when the volume has space, or is back; or is another rank's, which says so itself.
    fn is_of_the_volume(&self, error: &Error) -> bool {
        let away = || !self.run_dir.exists();
        match error {
            Error::Io { source, .. }
            | Error::Straw(straw::Error::Io { source, .. })
            | Error::Checkpoint(checkpoint::Error::Io { source, .. }) => {
                passes(source) || (source.kind() == io::ErrorKind::NotFound && away())
            }
            Error::Straw(straw::Error::OutOfSpace { .. } | straw::Error::NotVisible { .. }) => true,
            Error::Straw(straw::Error::PackMissing { .. }) => away(),
            Error::Checkpoint(checkpoint::Error::Rank { .. }) => true,
            _ => false,
        }
    }
}

/// A full disk or quota, a mount that has died, a server that does not answer.
fn passes(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::StorageFull
            | K::QuotaExceeded
            | K::NotConnected
            // Of the requests that were under way when a mount died.
            | K::ConnectionAborted
            | K::StaleNetworkFileHandle
            | K::TimedOut
            | K::HostUnreachable
    ) || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}
