//! A limit on everything. Each is checked where data enters, and again where it is read back.

use crate::{Error, Result};

/// Bytes of one encoded record, meta and tensors and padding together.
pub const RECORD_BYTES_MAX: u64 = 16 << 30;
/// Bytes of the opaque meta of one record.
pub const META_BYTES_MAX: u64 = 64 << 20;
/// Records of one publish call (they share one extent).
pub const RECORDS_PER_EXTENT_MAX: usize = 4096;
/// Tensors of one record.
pub const TENSORS_PER_RECORD_MAX: usize = 256;
/// Packs whose blocks one record shares ([`crate::Store::update`]); beyond that blocks are copied.
pub const SHARES_MAX: usize = 16;
/// Dimensions of one tensor.
pub const RANK_MAX: usize = 8;
/// Bytes of a tensor's name.
pub const TENSOR_NAME_BYTES_MAX: usize = 128;
/// Bytes of an owner's name (a pack's file name begins with it).
pub const OWNER_BYTES_MAX: usize = 100;
/// Bytes of a submission id.
pub const SUBMISSION_BYTES_MAX: usize = 200;
/// Bytes of an encoded header (pack, extent or record) or footer.
pub const HEADER_BYTES_MAX: u64 = 256 << 20;
/// Receipts a writer remembers for its own retries; the oldest go first.
pub const RECEIPTS_MAX: usize = 65_536;
/// Records of one journal transaction.
pub const RECORDS_PER_TXN_MAX: usize = 65_536;
/// Bytes of one journal transaction.
pub const TXN_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one snapshot of the journal's state.
pub const SNAPSHOT_BYTES_MAX: u64 = 4 << 30;
/// Live tasks of one queue.
pub const TASKS_MAX: usize = 16 << 20;
/// Bytes of a task's opaque input.
pub const TASK_INPUT_BYTES_MAX: usize = 1 << 20;
/// References of one task's result, one task's partial progress, one batch or one owner.
pub const REFS_MAX: usize = 65_536;
/// Groups of one batch.
pub const BATCH_GROUPS_MAX: usize = 65_536;
/// Bytes of a reason (a failure or a drop); longer ones are cut.
pub const REASON_BYTES_MAX: usize = 1024;
/// Consumers of one queue beside its batches.
pub const CONSUMERS_MAX: usize = 256;
/// Bytes that a consumer stores with its acknowledgements.
pub const CONSUMER_STATE_BYTES_MAX: usize = 64 << 10;
/// Checkpoints of one queue, and forks that hold some.
pub const CHECKPOINTS_MAX: usize = 1024;
/// Bytes of the model's record in a checkpoint.
pub const CHECKPOINT_MODEL_BYTES_MAX: usize = 1 << 20;
/// Names of retired packs that a queue remembers at most on account of packs that are still being written.
pub const RETIRED_NAMES_MAX: usize = 4096;
/// Bytes of a key in an archive.
pub const ARCHIVE_KEY_BYTES_MAX: usize = 1024;
/// Leases one worker may hold.
pub const LEASES_PER_WORKER_MAX: usize = 4096;

/// Refuses a value above its limit.
pub(crate) fn at_most(what: &'static str, value: u64, max: u64) -> Result<()> {
    if value > max { Err(Error::Limit { what, value, max }) } else { Ok(()) }
}

/// Refuses a name that could not be (the beginning of) a file name everywhere.
pub(crate) fn name(what: &'static str, name: &str, max: usize) -> Result<()> {
    let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = !name.is_empty() && name.len() <= max;
    let begins = name.bytes().next().is_some_and(good);
    if fits && begins && name.bytes().all(|c| good(c) || matches!(c, b'.' | b'_' | b'-')) {
        Ok(())
    } else {
        Err(Error::BadName { what, name: name.to_owned(), max })
    }
}
