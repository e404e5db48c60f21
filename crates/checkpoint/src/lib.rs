//! A training state and a model on disk.
//!
//! - **tiles** ([`save`], [`load`], [`tile_index`]): weights, masters and moments as rectangles of global tensors in
//!   ordinary safetensors files, with `index.json` and `meta.json`. Any data × tensor parallel layout loads what any
//!   other saved.
//! - **Hugging Face folders** ([`hf`], [`publish`]): read by slices, written whole; every tensor keeps its bytes.
//! - **digests** ([`digest`], [`weights_digest`]): one name for all weights, the same in every layout and on disk.
//!
//! What it is NOT: nothing here decides which checkpoint counts. There is no marker file and no `latest`; the run's
//! journal names a folder and the SHA-256 of its index, and that is the only truth. Nothing here deletes a folder.
//!
//! Invariants
//! - Every element of every tensor is in exactly one tile; checked before an index is written and after one is read.
//! - What bears its final name (an index, a published folder) is complete, durable, and never changes.
//! - Every tile is checked against its checksum when it is read; every file hangs on the digest of the index.
//! - A tensor that is missing is an error that names it; nothing is made up and nothing left out.
//! - A save or a load succeeds on all ranks or on none.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod agree;
pub mod digest;
pub mod disk;
mod dtype;
mod error;
mod fingerprint;
pub mod hf;
mod load;
mod meta;
pub mod publish;
mod rect;
mod safetensors_file;
mod save;
mod shard;
pub mod tile_index;

pub use disk::{Disk, RealDisk};
pub use error::{Error, Result};
pub use fingerprint::Fingerprint;
pub use load::{Checkpoint, load};
pub use meta::{Meta, Position, Rng};
pub use publish::{ExportTypes, FILE_BYTES_MAX, PublishTo, publish};
pub use rect::{Rect, rectangles};
pub use safetensors_file::{SafetensorsFile, TensorInfo};
pub use save::{INDEX_FILE, META_FILE, Saved, bytes_of_save, save};
pub use shard::weights_digest;
