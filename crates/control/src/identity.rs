//! The environment every process of a run is given.

use std::path::PathBuf;

/// A variable that is missing or empty, by name, with what it is for.
#[derive(Debug, thiserror::Error)]
#[error("environment variable {name} is not set; it holds {holds}. Thresh sets it on the pods it makes")]
pub struct MissingVariable {
    name: &'static str,
    holds: &'static str,
}

/// Who this process is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Pod name.
    pub pod: String,
    /// Uid of the pod: a successor of the same name has another.
    pub uid: String,
    /// Node name.
    pub node: String,
    /// Address to listen on.
    pub address: String,
    /// Root of the volume.
    pub volume: PathBuf,
}

impl Identity {
    /// Reads `POD_NAME`, `POD_UID`, `NODE_NAME`, `POD_IP`, `THRESH_VOLUME`.
    ///
    /// # Errors
    /// Names the first variable that is missing.
    pub fn from_env() -> Result<Self, MissingVariable> {
        Ok(Self {
            pod: variable("POD_NAME", "the pod's name")?,
            uid: variable("POD_UID", "the pod's uid")?,
            node: variable("NODE_NAME", "the node's name")?,
            address: variable("POD_IP", "the pod's address")?,
            volume: variable("THRESH_VOLUME", "the folder the volume is mounted at")?.into(),
        })
    }
}

/// The value of a variable that must be there.
///
/// # Errors
/// Names the variable and what it holds.
pub fn variable(name: &'static str, holds: &'static str) -> Result<String, MissingVariable> {
    std::env::var(name).ok().filter(|value| !value.is_empty()).ok_or(MissingVariable { name, holds })
}
