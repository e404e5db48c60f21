//! Durable queues and a packed tensor store, for many processes on one shared file system.
//!
//! * [`Store`]: records (opaque meta and typed tensors) in append-only packs. A [`Ref`] says pack, offset, length and
//!   checksum, so a read is one `pread`; [`Store::read_rows`] reads some rows and checks only the blocks they lie in. A record that
//!   is an older one with changes writes only the blocks that changed ([`Store::update`]); tensors may be compressed
//!   ([`Record::compressed`]); sealed packs may be mapped ([`Store::mapped`]); and a [`ReadAhead`] reads what is needed next.
//! * [`Journal`]: an ordered log of atomic transactions with one owner at a time. A claim raises the *epoch* and fences
//!   every earlier owner before it can acknowledge anything more.
//! * [`Queue`]: which work there is, who holds it, what was accepted, which bytes are still needed. A pure state machine
//!   whose durable changes are values ([`queue::Op`]) for the journal.
//! * [`Archive`]: records kept under keys, by reference, for as long as a queue holds them.
//! * [`Coordinator`]: a queue with its journal, for many threads: what they decide while one sync is under way shares the next.
//!
//! # What it is not
//!
//! Not a server and not a client: it opens no socket, no thread of it outlives a call (but those of a [`ReadAhead`], which end with
//! it), and it reads no clock (`now` is an argument). It knows no JSON (but for the settings that JuiceFS shows, [`mount_probe`]) and nothing of training. It is no database: payloads are found by reference only.
//!
//! # Invariants
//!
//! 1. *Acknowledged is durable.* What returned `Ok` survives what its [`Durability`] says; a transaction or a publish is
//!    there whole or not at all.
//! 2. *A reference never lies.* It gives the bytes that were published or an error, never others.
//! 3. *One owner.* Whatever an owner acknowledged, its successor has read; whatever it did not, no one needs.
//! 4. *Nothing that durable state can reach is removed.* A pack is given up in the journal ([`Queue::retire`]) before its
//!    file goes, and the queue refuses references into it from then on. A reference names all packs that its record needs, those that it
//!    shares blocks of included ([`Ref::packs`]), so whoever holds it holds them.
//!
//! # On disk
//!
//! ```text
//! packs/OWNER-NUMBER.pack     header | extent | extent | ... | footer      (the footer once its writer sealed it)
//!   extent                    header { submission, table of records } | record | record ...
//!   record                    head { names, types, shapes, a checksum for each 64 KiB } | table, if blocks are shared or
//!                             compressed { where each lies } | tensors | meta
//! packs/pool/                 which queues use the packs, what they gave up, and the era (see [`pool`])
//! journal/epoch-N             claim of epoch N, created exclusively: the fence
//! journal/seg-N-K.log         header { seals the segment before it at a length } | frame | frame ...
//! journal/snap-L-N.snap       the owner's state after transaction L
//! ```
//! All checksums are CRC-32C, seeded with file name and offset, so that bytes of another place never pass. Every structure
//! is written once at its place; nothing is ever written over with other bytes. One publish is one gathered write and one
//! `fdatasync`, shared with whoever publishes at the same time; folders are synced only when a name appeared.
//!
//! # What a failure leaves
//!
//! | failure | outcome |
//! |---|---|
//! | process killed, power lost | what was acknowledged is there; the call under way is there whole or not at all |
//! | a write or sync fails | [`Error::Io`]; the pack or the journal is not used further, its bytes are not trusted: after a failed sync a file can look durable and not be |
//! | volume full | [`Error::OutOfSpace`]; the same call works again once there is space |
//! | two owners | the one of the lower epoch gets [`Error::Fenced`] instead of an acknowledgement |
//! | damaged bytes | [`Error::Corrupt`] with file and offset; [`verify`] lists them all. Of an unsealed segment the very last frame alone cannot be told from a torn one |
//! | bytes not visible yet on a shared mount | one look with the file opened anew, then [`Error::NotVisible`] |
//!
//! [`SimFs`] plays all of these; the tests crash a run at each of its writes, syncs and renames, and play random histories of
//! owners, workers and readers on hosts that freeze in the middle of a call, fail, or are lost.
//!
//! # Left out, so far
//!
//! * *Mapping on shared mounts.* A mapped file that another host cuts short ends the process (SIGBUS) instead of giving an error;
//!   there, and unless it is asked for, a read copies once. Nothing is read straight into a device's memory.
//! * *A digest that an adversary cannot forge.* Checksums (CRC-32C) tell damage and stale bytes; whoever can write the volume is trusted.
//! * *Ids, codecs and token counts of records, and lists of the records that one depends upon.* Meta is the caller's and is not looked
//!   at, so that a result belongs to its task is said by the submission, not checked in the record. A set of records is a list
//!   of references, and what keeps them is whoever holds that list in the queue.
//! * *Booleans, complex and strided tensors, and more than [`limits::RANK_MAX`] dimensions.* A mask is `u8`; tensors are dense.
//! * *Compressed meta, and sharing of blocks that happen to be alike.* Only what an update leaves alone is shared.
//! * *A fence for writers.* One that was taken for dead may still write; the queue refuses what it wrote once its pack was given up,
//!   and it publishes again ([`Writer::retired`]).
//! * *A handle that crosses `fork(2)`.* A child opens its own.
//!
//! Zeros are written ahead of a journal's frames and not of a pack's extents: of 132 KiB, a group of 32 publishers, that gained
//! 1.0x to 1.7x, and of 256 KiB nothing (ext4, by turns).
//!
//! Of queues:
//!
//! * *Who submits decides how much and until when.* There are no estimates, no back-pressure, no end of input and no drain. Tasks
//!   have three classes and a key, and lanes that are asked for apart; no other priorities.
//! * *Ids make a submission happen once.* A task id that was used is refused, whatever the task; there is no request id, and no
//!   producer's cursor: whoever has one journals it in the same transaction. Finished ids that follow each other are one range in
//!   memory; others are remembered one by one, for ever.
//! * *Progress ends a lease.* [`Queue::yield_partial`] replaces a task's parts and frees the task; to go on is to lease it again.
//! * *A lease is no secret*, and says nothing of what a record holds: results are not opened, so nobody checks that they carry the
//!   attempt's name. Who may speak for a worker is the caller's affair, as is that a consumer's name has one user.
//! * *A reader without a lease is not waited for.* What it reads may be collected: it gets [`Error::PackMissing`], never other
//!   bytes. Nor is a publication that nobody accepted kept for longer than its writer's lease and the collector's patience; an
//!   owner ([`Queue::retain`]) keeps what it names until it is released by hand: it has no end of its own.
//! * *What is released is forgotten.* Its task is answered [`queue::Completion::Settled`] for ever, without position or reference.
//! * *All that is unfinished is in memory*, about 60 bytes for a small task, and checkpoints copy it, but for the payloads.
//! * *One pool, one folder.* It can be moved, since names are relative. References do not cross pools, and a pool has no identity
//!   that a wrong mount could be told by, but for the journal beside it.
//! * *Calls block.* There is no asynchronous interface, and none for other languages. Linux alone.
//!
//! # Giving space back
//!
//! [`Store::packs`], [`Collector::candidates`], [`Queue::retire`] (journal it), [`Member::remove`]; in this order, and then
//! [`Collector::horizon`] and [`Queue::forget`]. On a start call [`Member::remove`] with [`Queue::retired`], to finish what was
//! interrupted.
//!
//! * *Who died?* A writer holds an advisory lock on the pack that it adds to; a pack that is not sealed and whose lock can be had
//!   has lost its writer ([`PackInfo::abandoned`]). No clock tells that. On a mount that does not share locks between hosts such
//!   a pack is kept.
//! * *Who else?* Queues may share a pool ([`Queue::fork`]). Each registers ([`Store::register`]) before it refers to anything,
//!   and a file goes when all of them have given its pack up ([`pool`] has the rule and why it holds).
//! * *What of a pack that is mostly dead?* Its live records move to another one, and every reference that the queue holds with
//!   them ([`compact`]); old references lead there for as long as the record is needed ([`Queue::resolve`]).
//! * *For how long?* A retired name is refused for ever and remembered for a while: an old era's name needs no memory.
//!
//! # A whole program
//!
//! ```
//! use std::sync::Arc;
//! use straw::queue::{BatchId, Completion, LeaseTerms, NewTask, Op, TaskId};
//! use straw::{Journal, Queue, RealFs, Record, Store, Tensor};
//!
//! fn run() -> Result<(), Box<dyn std::error::Error>> {
//!     let folder = tempfile::tempdir()?;
//!     let fs: Arc<RealFs> = RealFs::new();
//!     let store = Store::open(fs.clone(), folder.path().join("packs"))?;
//!
//!     // The owner claims the journal and rebuilds its queue: a snapshot, then the operations behind it.
//!     let (journal, found) = Journal::claim(fs.clone(), folder.path().join("journal"), "conductor-0")?;
//!     let mut queue = Queue::replay(found.snapshot.as_deref(), &found.txns)?;
//!     queue.begin_epoch(found.epoch);
//!
//!     // Journal first, then apply.
//!     let commit = |queue: &mut Queue, op: Op| -> Result<(), Box<dyn std::error::Error>> {
//!         journal.append(&[postcard::to_stdvec(&op)?])?;
//!         Ok(queue.apply(&op)?)
//!     };
//!     let row = NewTask { id: TaskId(0), input: b"row 17".to_vec(), attempts_max: 3 };
//!     let op = queue.submit(vec![row])?;
//!     commit(&mut queue, op)?;
//!
//!     // A worker leases the task, publishes its result, and completes it by reference.
//!     let lease = queue.acquire("worker-0", 1, 0, LeaseTerms::default()).remove(0);
//!     let tokens = Tensor::from_vec(&[2, 3], vec![1i32, 2, 3, 4, 5, 6])?;
//!     let writer = store.writer("worker-0")?;
//!     let refs = writer.publish("group-0", &[Record::new("{}").with("tokens", tokens)])?;
//!     if let Completion::Accept(op) = queue.complete(lease.task, lease.attempt, "group-0", &refs)? {
//!         commit(&mut queue, op)?;
//!     }
//!
//!     // The group becomes a batch; a trainer reads the rows it needs.
//!     let positions: Vec<_> = queue.unbatched().map(|(position, _)| position).collect();
//!     let op = queue.plan_batch(BatchId(0), &positions)?;
//!     commit(&mut queue, op)?;
//!     let rows = store.read_rows(&refs[0], "tokens", 1..2)?;
//!     assert_eq!(rows.to_vec::<i32>()?, [4, 5, 6]);
//!
//!     // A snapshot makes the next start short.
//!     journal.snapshot(journal.last(), &postcard::to_stdvec(&queue)?)?;
//!     writer.seal();
//!     Ok(())
//! }
//! # run().unwrap();
//! ```
#![deny(unsafe_code)] // allowed in `mapping`, and where a test counts what is allocated
#![deny(missing_docs, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod archive;
mod blob;
mod collect;
pub mod compact;
mod compression;
mod coordinator;
mod dtype;
mod durability;
mod error;
mod extent;
mod frame;
mod front;
pub mod fs;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod head;
mod inspect;
pub mod journal;
mod laid;
pub mod limits;
mod mapped;
mod mapping;
pub mod mount_probe;
pub mod owners;
mod pack;
pub mod pool;
pub mod queue;
mod read_ahead;
mod real_fs;
mod record;
mod reference;
pub mod repair;
mod scan;
mod sim_fs;
mod store;
mod tensor;
mod update;
pub mod watched_fs;
mod writer;

pub use archive::{Archive, Entry};
pub use collect::{Collector, PackInfo};
pub use compression::Compression;
pub use coordinator::Coordinator;
pub use dtype::{DType, Element};
pub use durability::Durability;
pub use error::{Error, Result};
pub use fs::Fs;
pub use head::BLOCK_BYTES;
pub use inspect::{
    Claim, Damage, Inspection, JournalReport, PackReport, QueueReport, SegmentReport, SnapshotReport, inspect, verify,
    verify_refs,
};
pub use journal::{Journal, Lsn, Recovered, Txn};
pub use mapped::Mapped;
pub use pool::Member;
pub use queue::Queue;
pub use read_ahead::ReadAhead;
pub use real_fs::{RealFs, create_dirs_durably};
pub use record::{NamedTensor, Record};
pub use reference::{Ref, Share};
pub use sim_fs::{Fault, SimFs};
pub use store::{Options, Store, TensorInfo};
pub use tensor::Tensor;
pub use update::Update;
pub use writer::Writer;
