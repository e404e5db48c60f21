//! CPU backend.
pub type CpuBackend = crate::ReferenceBackend;
