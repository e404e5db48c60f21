//! What can go wrong on this machine, in a form its user can act on.

use std::path::PathBuf;

/// Failures of the local node. Each says what, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another `thresh run` holds the folder.
    #[error(
        "{path}: another `thresh run` (pid {pid}) works in this state folder\n  fix: stop it first, or choose another folder with --state",
        path = path.display()
    )]
    Busy {
        /// The state folder.
        path: PathBuf,
        /// Who holds it, as far as it wrote that down.
        pid: String,
    },
    /// There is no state folder, and none can be made.
    #[error("the state folder {path} cannot be made: {source}\n  fix: name one that can be, with --state", path = path.display())]
    NoState {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file or folder could not be read or written.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    File {
        /// read, write, create…
        doing: &'static str,
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// There is no manifest to read.
    #[error("cannot read {path}: {reason}\n  fix: {fix}", path = path.display())]
    NoManifest {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// A file of the state folder does not hold what it should.
    #[error(
        "{path} is damaged: {reason}\n  fix: restore it, or start anew with another --state folder (the volume's run folder is not touched)",
        path = path.display()
    )]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// `status.json` does not hold what it should. It is written, and not read, by whoever runs the run.
    #[error("{path} is damaged: {reason}\n  fix: `thresh run` writes it anew, and goes on with the run", path = path.display())]
    DamagedStatus {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Every loopback subnet is taken.
    #[error("no free loopback subnet in 127.77.0.0/16: {taken} are locked under {folder}\n  fix: stop other runs on this machine", folder = folder.display())]
    NoAddress {
        /// How many are held by others.
        taken: usize,
        /// Where the locks are.
        folder: PathBuf,
    },
    /// A pod template asks for something this node cannot give.
    #[error("pod {pod}: {field}: {reason}")]
    Template {
        /// The pod.
        pod: String,
        /// Path of the field in the pod.
        field: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A program could not be started.
    #[error("cannot start {program}: {source}", program = program.display())]
    Spawn {
        /// Which.
        program: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A process of an earlier run would not die.
    #[error(
        "process {pid} of an earlier run of this folder survives SIGKILL\n  fix: see what holds it (cat /proc/{pid}/stack), then run again"
    )]
    Leftover {
        /// Which.
        pid: i32,
    },
    /// A file given with a claim does not exist.
    #[error("--volume {claim}={path}: no such folder\n  fix: create it, or leave --volume out", path = path.display())]
    NoVolume {
        /// The claim.
        claim: String,
        /// The folder.
        path: PathBuf,
    },
    /// The volume that is named now does not hold the run that the state folder speaks of.
    #[error(
        "the run {run} is not on {now}: its journal and its commits are in {was}\n  fix: {fix}, or start a new run with another --state folder",
        now = now.display(), was = was.display()
    )]
    OtherVolume {
        /// Its name.
        run: String,
        /// The volume's folder as it is named now.
        now: PathBuf,
        /// The run's folder when it was last seen.
        was: PathBuf,
        /// How to go on with the run.
        fix: String,
    },
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Attaches what was being done to which file.
pub(crate) trait At<T> {
    fn at(self, doing: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, doing: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| Error::File { doing, path: path.into(), source })
    }
}
