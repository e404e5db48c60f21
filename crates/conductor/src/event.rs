//! What reaches the brain, and what it wants done.

use std::collections::BTreeSet;

use control::wire::{
    CheckpointReply, CheckpointRequest, ClaimReply, ClaimRequest, CompactReply, CompactRequest, CompleteReply,
    CompleteRequest, EngineAddress, FailReply, FailRequest, LeaseRequest, NextReply, NextRequest, Progress, Refusal,
    RenewReply, RenewRequest, ReportReply, ReportRequest, Sampling, Scores, SettingsReply, StepRecord, TaskKind,
};
use rl::GroupAdvantage;
use straw::{PackInfo, Ref};

use crate::{Converted, Error, Record, RunConfig};

/// A request that waits for its answer; the binary knows which.
pub type ReplyId = u64;

/// Something happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// `POST /v1/lease`
    Lease(ReplyId, LeaseRequest),
    /// `POST /v1/renew`
    Renew(ReplyId, RenewRequest),
    /// `POST /v1/complete`
    Complete(ReplyId, Box<CompleteRequest>),
    /// `POST /v1/fail`
    Fail(ReplyId, FailRequest),
    /// A task that was leased and that nobody can work on: its row is of no use.
    Unusable {
        /// The lease.
        lease: String,
        /// The task.
        task: u64,
        /// Why.
        reason: String,
    },
    /// `POST /v1/claim`
    Claim(ReplyId, ClaimRequest),
    /// `POST /v1/next`
    Next(ReplyId, NextRequest),
    /// `POST /v1/report`
    Report(ReplyId, Box<ReportRequest>),
    /// `POST /v1/settings`
    Settings(ReplyId, Box<SettingsAsked>),
    /// `POST /v1/checkpoint`
    Checkpoint(ReplyId, CheckpointRequest),
    /// `POST /v1/compact`
    Compact(ReplyId, CompactRequest),
    /// `GET /v1/progress`
    Progress(ReplyId),
    /// The run's folder was looked for: why it is not there, if so.
    Volume(Option<String>),
    /// The engines that the Service names now.
    Engines(Vec<EngineAddress>),
    /// An engine was asked what it serves.
    EngineProbed {
        /// Which.
        url: String,
        /// The version, 0 for none of ours.
        result: Result<u64, Unreached>,
    },
    /// [`Command::UpdateEngine`] ended.
    EngineUpdated {
        /// Which.
        url: String,
        /// To which version.
        version: u64,
        /// Paused, loaded and acknowledged.
        result: Result<(), String>,
    },
    /// [`Command::ResumeEngine`] ended.
    EngineResumed {
        /// Which.
        url: String,
        /// It generates.
        result: Result<(), String>,
    },
    /// [`Command::Convert`] ended.
    Converted {
        /// Which batch.
        step: u64,
        /// Written, or why not.
        result: Result<Box<Converted>, String>,
    },
    /// [`Command::ConvertWarm`] ended.
    WarmConverted {
        /// Update of the first batch.
        first: u64,
        /// Written, or why not.
        result: Result<Vec<Converted>, String>,
    },
    /// [`Command::VerifyTiles`] ended.
    TilesVerified {
        /// Which trainer epoch.
        trainer_epoch: u64,
        /// Its order.
        seq: u64,
        /// They are what was reported.
        result: Result<(), TilesProblem>,
    },
    /// [`Command::Score`] ended.
    Scored {
        /// Which version.
        version: u64,
        /// Largest difference, and tokens compared; or why there is nothing to compare.
        result: Result<(f64, u64), String>,
    },
    /// [`Command::ListFolders`] ended: folders of tiles and weights, relative to the run's.
    FoldersFound(Vec<String>),
    /// [`Command::DeleteFolder`] ended.
    FolderDeleted {
        /// Which.
        folder: String,
        /// It is gone.
        result: Result<(), String>,
    },
    /// [`Command::ListPacks`] ended: all packs but the one being written here.
    PacksFound(Vec<PackInfo>),
    /// [`Command::CopyRecords`] ended: from where to where, or why not.
    RecordsCopied(Result<Vec<(Ref, Ref)>, String>),
    /// Time passed.
    Tick,
}

/// Why an engine could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// Nobody listens there: the process is gone, rather than slow.
    pub gone: bool,
    /// What the transport said.
    pub message: String,
}

/// Why tiles were not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TilesProblem {
    /// They cannot be read now.
    Unreadable(String),
    /// They are not what was reported.
    Wrong(String),
}

/// Settings as asked for, resolved by the binary as the run's own configuration was.
#[derive(Clone, Debug, PartialEq)]
pub struct SettingsAsked {
    /// Strictly rising.
    pub number: u64,
    /// Attempts up to this are fenced.
    pub fence_attempts_up_to: u64,
    /// No leases there.
    pub cordoned_nodes: Vec<String>,
    /// No new groups.
    pub paused: bool,
    /// The spec as it stands.
    pub config: Result<Box<RunConfig>, Error>,
}

/// Work for a worker, without the text of its row.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// Unique across conductor epochs.
    pub lease: String,
    /// The task.
    pub task: u64,
    /// Duration from now.
    pub lease_ms: u64,
    /// Training or evaluation.
    pub kind: TaskKind,
    /// Row of the training data or of the held-out data.
    pub row: u64,
    /// One seed per sample.
    pub seeds: Vec<u64>,
    /// How to draw.
    pub sampling: Sampling,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Reply {
    Lease { grants: Vec<Grant>, engines: Vec<EngineAddress>, abandon: Vec<u64> },
    Renew(RenewReply),
    Complete(CompleteReply),
    Fail(FailReply),
    Claim(Box<ClaimReply>),
    Next(Box<NextReply>),
    Report(ReportReply),
    Settings(SettingsReply),
    Checkpoint(CheckpointReply),
    Compact(CompactReply),
    Progress(Box<Progress>),
    Refused(Refusal),
}

/// Something to be done once the records before it are durable. Each ends in the event of the same name.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Answer a request.
    Reply(ReplyId, Reply),
    /// Read groups, convert them to one batch, write it.
    Convert {
        /// The step.
        step: u64,
        /// The groups and where they lie, ascending.
        groups: Vec<(u64, Ref)>,
        /// Baseline.
        advantage: GroupAdvantage,
    },
    /// Make warm-start batches, write them in one go.
    ConvertWarm {
        /// Update of the first.
        first: u64,
        /// Rows of each.
        rows: Vec<Vec<u64>>,
    },
    /// Check tiles against what was reported.
    VerifyTiles {
        /// Which trainer epoch.
        trainer_epoch: u64,
        /// Its order.
        seq: u64,
        /// Where, relative to the run's folder.
        folder: String,
        /// SHA-256 of index.json, hex.
        index_digest: String,
    },
    /// Pause, load, ask which version it serves. It stays paused.
    UpdateEngine {
        /// Which.
        url: String,
        /// The version.
        version: u64,
        /// Its folder, relative to the run's.
        folder: String,
    },
    /// Let it generate.
    ResumeEngine {
        /// Which.
        url: String,
    },
    /// Let engines score what the trainer has scored with the same weights.
    Score {
        /// The version they must serve.
        version: u64,
        /// What the trainer says.
        scores: Scores,
        /// Base URLs of the engines.
        engines: Vec<String>,
    },
    /// List the folders of tiles and weights.
    ListFolders,
    /// List straw's packs.
    ListPacks,
    /// Remove packs that were retired. Nothing follows.
    RemovePacks {
        /// All that were retired and are not gone yet: a removal that was cut short is finished. It is [`straw::Member::remove`]'s, of
        /// the queue [`straw::pool::MAIN`].
        retired: BTreeSet<String>,
    },
    /// Write records of a pack once more, in another one.
    CopyRecords {
        /// The pack that they need no more then.
        out_of: String,
        /// In order of their place.
        records: Vec<Ref>,
    },
    /// Delete a folder that no record names.
    DeleteFolder {
        /// Relative to the run's.
        folder: String,
    },
}

/// What a step wants: records first, all of them durable, then the commands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// To be appended in this order.
    pub records: Vec<Record>,
    /// To be done after that.
    pub commands: Vec<Command>,
    /// Lines of `steps.jsonl` that these records brought forth.
    pub step_records: Vec<StepRecord>,
}
