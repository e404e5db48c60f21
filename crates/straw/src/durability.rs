//! Durability as a type.

use serde::{Deserialize, Serialize};

/// What a returned call survives.
///
/// | | this process dies | the machine loses power |
/// |---|---|---|
/// | [`Durability::Process`] | kept | may be lost, whole or in part (a reader notices by checksum) |
/// | [`Durability::Machine`] | kept | kept |
///
/// Neither survives the loss of the volume itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Durability {
    /// Written to the operating system, not synced. For bytes that can be made again.
    Process,
    /// Synced (`fdatasync`) before the call returns. Everything that durable state refers to is written with this one.
    #[default]
    Machine,
}
