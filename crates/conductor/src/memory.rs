//! What a conductor knows and forgets with its process: who was heard of, what engines serve, who waits for an answer.
//! Losing it loses time, never a fact.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use control::wire::{EngineAddress, SamplesProgress, WorkerId};

use straw::Collector;

use crate::{GiveBack, ReplyId, Source, compaction::Emptying};

/// A worker that was heard of.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSeen {
    pub id: WorkerId,
    pub heard_ms: u64,
    /// Its lease request that is held back.
    pub parked: Option<ParkedLease>,
    /// Tasks it was given whose result is no longer wanted.
    pub abandon: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct ParkedLease {
    pub reply: ReplyId,
    pub want: usize,
    pub until_ms: u64,
}

/// An engine that the Service names.
#[derive(Clone, Debug)]
pub(crate) struct EngineSeen {
    pub name: String,
    pub live: bool,
    /// Probes in a row that failed.
    pub failed_probes: u32,
    /// What it said it serves.
    pub version: Option<u64>,
    /// We told it to generate, with the version above.
    pub open: bool,
    /// An update is under way.
    pub updating: Option<u64>,
    /// Updates that failed in a row.
    pub failed_updates: u32,
    /// What the last one said.
    pub problem: Option<String>,
    /// Not before.
    pub retry_ms: u64,
}

impl EngineSeen {
    pub fn new(name: String) -> Self {
        Self {
            name,
            live: false,
            failed_probes: 0,
            version: None,
            open: false,
            updating: None,
            failed_updates: 0,
            problem: None,
            retry_ms: 0,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ParkedNext {
    pub reply: ReplyId,
    pub trainer_epoch: u64,
    pub attempt: u64,
    pub until_ms: u64,
}

/// Tiles that were reported and are being checked.
#[derive(Clone, Debug)]
pub(crate) struct Verifying {
    pub trainer_epoch: u64,
    pub seq: u64,
    pub index_digest: String,
    pub weights_digest: String,
    /// The report, and its repetitions.
    pub replies: Vec<ReplyId>,
    /// Check again at this time (the last try could not read them).
    pub again_ms: Option<u64>,
    pub problem: Option<String>,
}

/// Something that is tried again after a failure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effort {
    /// Under way: the batch it is for.
    pub busy: Option<u64>,
    pub failures: u32,
    pub retry_ms: u64,
    pub problem: Option<String>,
}

impl Effort {
    pub fn may_start(&self, now_ms: u64) -> bool {
        self.busy.is_none() && self.retry_ms <= now_ms
    }

    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub fn failed(&mut self, now_ms: u64, problem: String) {
        self.busy = None;
        self.failures += 1;
        self.retry_ms = now_ms + backoff_ms(self.failures);
        self.problem = Some(problem);
    }
}

/// Groups over which the share of invalid samples is taken.
const GROUPS_JUDGED: usize = 32;

/// How the last groups that workers brought were: a broken judge or engine shows here, whatever becomes of the groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Brought {
    /// Samples of a group, and how many of them were invalid.
    groups: VecDeque<(u64, u64)>,
    reason: Option<String>,
}

impl Brought {
    /// A group came. `reason` is why samples of it were invalid, where that is known.
    pub fn note(&mut self, samples: u64, invalid: u64, reason: Option<&str>) {
        self.groups.push_back((samples, invalid));
        if self.groups.len() > GROUPS_JUDGED {
            self.groups.pop_front();
        }
        if let Some(reason) = reason {
            self.reason = Some(reason.to_owned());
        }
    }

    pub fn progress(&self) -> SamplesProgress {
        let sum = |of: fn(&(u64, u64)) -> u64| self.groups.iter().map(of).sum();
        let (brought, invalid) = (sum(|group| group.0), sum(|group| group.1));
        SamplesProgress { brought, invalid, reason: self.reason.clone().filter(|_| invalid > 0) }
    }
}

/// 100 ms, doubled each time, at most 5 s.
pub(crate) fn backoff_ms(failures: u32) -> u64 {
    (100u64 << failures.saturating_sub(1).min(6)).min(5_000)
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub workers: BTreeMap<String, WorkerSeen>,
    pub brought: Brought,
    pub engines: BTreeMap<String, EngineSeen>,
    pub trainer_heard_ms: Option<u64>,
    /// Why the volume is away, while it is.
    pub volume_away: Option<String>,
    /// What it waits for on the volume.
    pub trainer_waits: Option<String>,
    pub parked_next: Option<ParkedNext>,
    /// An attempt that has saved because it is about to be ended, and until when it waits for that.
    pub held: Option<(u64, u64)>,
    pub verifying: Option<Verifying>,
    pub converting: Effort,
    pub warm_converting: Effort,
    pub scoring: Effort,
    /// When the publication at hand began here, and its version.
    pub publication: Option<(u64, u64)>,
    /// First lease of each group that is in no batch.
    pub first_lease_ms: BTreeMap<u64, u64>,
    /// Folders being deleted, and when to try those again that could not be.
    pub deleting: BTreeMap<String, Option<u64>>,
    /// Chooses packs that may be given up.
    pub collector: Collector,
    /// When to look at the packs next.
    pub collect_ms: u64,
    pub give_back: GiveBack,
    pub emptying: Emptying,
    /// What is waited for, since when.
    pub waiting: BTreeMap<String, u64>,
    pub source: Source,
    pub warm_source: Source,
}

impl Memory {
    pub fn new(source: Source, warm_source: Source) -> Self {
        Self {
            workers: BTreeMap::new(),
            brought: Brought::default(),
            engines: BTreeMap::new(),
            trainer_heard_ms: None,
            volume_away: None,
            trainer_waits: None,
            parked_next: None,
            held: None,
            verifying: None,
            converting: Effort::default(),
            warm_converting: Effort::default(),
            scoring: Effort::default(),
            publication: None,
            first_lease_ms: BTreeMap::new(),
            deleting: BTreeMap::new(),
            collector: Collector::new(GiveBack::default().settle_ms),
            collect_ms: 0,
            give_back: GiveBack::default(),
            emptying: Emptying::default(),
            waiting: BTreeMap::new(),
            source,
            warm_source,
        }
    }

    pub fn set_give_back(&mut self, rule: GiveBack) {
        self.collector = Collector::new(rule.settle_ms);
        self.give_back = rule;
    }

    /// Engines that workers may use: live, at the version that was journaled last, and told to generate with it.
    pub fn admitted(&self, version: u64) -> Vec<EngineAddress> {
        let open = self.engines.iter().filter(|(_, engine)| is_admitted(engine, version));
        open.map(|(url, engine)| EngineAddress { name: engine.name.clone(), url: url.clone() }).collect()
    }
}

pub(crate) fn is_admitted(engine: &EngineSeen, version: u64) -> bool {
    engine.live && engine.open && version > 0 && engine.version == Some(version)
}
