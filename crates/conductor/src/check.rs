//! The checker: reads records and verifies that everything happened once. Written apart from [`crate::State`] and
//! remembering only what the rules need, so that a defect there does not hide here. The conductor runs it over every record
//! before it writes it; tests and `thresh straw verify` run it over a whole journal.

use std::collections::BTreeMap;

use control::wire::{Report as Done, Start};
use serde::{Deserialize, Serialize};
use straw::queue::Settled;

use crate::{ATTEMPTS_MAX, Error, OrderKind, Position, Record, State};

/// Violations kept; the first is what matters.
const VIOLATIONS_KEPT: usize = 100;
/// Below are groups of the training data.
const EVAL_TASKS: u64 = crate::EVAL_TASKS;

/// What the rules need to remember of a journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    records: u64,
    conductor_epoch: u64,
    warm: bool,
    drawn: Settled,
    completed: Settled,
    batched: Settled,
    dropped: Settled,
    failures: BTreeMap<u64, u32>,
    dropped_by_reason: BTreeMap<String, u64>,
    batches: u64,
    batch_groups: u64,
    converted: Settled,
    given: BTreeMap<u64, u64>,
    trainer_epoch: u64,
    attempt: u64,
    trainer: Option<Attempt>,
    began: Position,
    boundary: Position,
    commits: u64,
    committed_steps: Settled,
    trained: u64,
    replays: u64,
    version: u64,
    version_ordered: u64,
    intent: Option<u64>,
    generate_calls: u64,
    finished: bool,
    violations: Vec<String>,
}

/// The trainer epoch at hand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Attempt {
    /// Where its lineage was last committed.
    since: Position,
    /// What it has learnt.
    at: Position,
    done: u64,
    order: Option<OrderKind>,
}

/// What a journal says, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Records read.
    pub records: u64,
    /// Groups drawn from the data.
    pub groups_drawn: u64,
    /// Groups that were finished.
    pub groups_completed: u64,
    /// Groups that are in a batch.
    pub groups_batched: u64,
    /// Groups dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Groups that are neither in a batch nor dropped (the queue).
    pub groups_open: u64,
    /// Batches of RL steps.
    pub batches: u64,
    /// RL steps of this run on the way to the last commit.
    pub steps_committed: u64,
    /// Times a step was learnt, replays included.
    pub steps_trained: u64,
    /// Of those, replays.
    pub replays: u64,
    /// Commits.
    pub commits: u64,
    /// Trainer epochs.
    pub trainer_epochs: u64,
    /// Conductor epochs.
    pub conductor_epochs: u64,
    /// The current version.
    pub version: u64,
    /// Generate calls of the groups that were finished.
    pub generate_calls: u64,
    /// The end is journaled.
    pub finished: bool,
    /// Groups that were in a batch twice, or learnt twice in the committed lineage.
    pub doubled: u64,
    /// Groups, or committed steps, that are missing.
    pub lost: u64,
    /// Broken rules, in the order they were met.
    pub violations: Vec<String>,
}

impl Report {
    /// No rule was broken.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty() && self.doubled == 0 && self.lost == 0
    }
}

/// Reads a whole journal: its snapshot, if it has one, and the records after it.
///
/// # Errors
/// When bytes are not a record or a snapshot.
pub fn journal<'a>(snapshot: Option<&[u8]>, records: impl IntoIterator<Item = &'a [u8]>) -> Result<Report, Error> {
    let mut audit = match snapshot {
        Some(bytes) => Snapshot::decode(bytes)?.audit,
        None => Audit::default(),
    };
    for bytes in records {
        audit.observe(&Record::decode(bytes)?);
    }
    Ok(audit.report())
}

impl Audit {
    /// Takes the next record.
    pub fn observe(&mut self, record: &Record) {
        self.records += 1;
        match record {
            Record::Opened { conductor_epoch, config, resumed, .. } => {
                self.demand(*conductor_epoch > self.conductor_epoch, || {
                    format!("conductor epoch {conductor_epoch} does not rise")
                });
                self.conductor_epoch = *conductor_epoch;
                self.demand(config.is_some() == (self.records == 1), || {
                    "only the first record says what the run is".to_owned()
                });
                if let Some(config) = config {
                    self.warm = config.frozen.warm.is_some();
                    self.began = Position { rl: !self.warm, ..Position::default() };
                    if let Some(resumed) = resumed {
                        self.began = Position::of(&resumed.commit);
                        self.batches = resumed.commit.step;
                        resumed.groups.iter().for_each(|group| self.draw(group.group_index));
                    }
                    self.boundary = self.began;
                }
                let fits = resumed.is_none() || (config.is_some() && self.began.rl);
                self.demand(fits, || {
                    "a run begins with another's commit, and before the end of its warm start".to_owned()
                });
            }
            Record::Refilled { groups, .. } => groups.iter().for_each(|group| self.draw(group.group_index)),
            Record::Completed { task, summary, .. } => {
                if *task < EVAL_TASKS {
                    let (known, new) = (self.drawn.contains(*task), self.completed.insert(*task));
                    self.demand(known, || format!("group {task} was finished and never drawn"));
                    self.demand(new, || format!("group {task} was finished twice: it was generated again"));
                    let over = self.dropped.contains(*task);
                    self.demand(!over, || format!("group {task} was finished after it was dropped"));
                }
                self.generate_calls += u64::from(summary.generate_calls);
            }
            Record::TaskFailed { task, .. } => {
                if *task < EVAL_TASKS {
                    let failures = self.failures.entry(*task).or_default();
                    *failures += 1;
                    if *failures >= ATTEMPTS_MAX {
                        self.failures.remove(task);
                        self.drop_group(*task, "failed");
                    }
                }
            }
            Record::Requeued { groups, .. } => {
                for (old, new) in groups {
                    self.drop_group(*old, "requeued");
                    self.draw(new.group_index);
                }
            }
            Record::Dropped { groups, reason } => {
                groups.iter().for_each(|group| self.drop_group(*group, reason.class()))
            }
            Record::Accepted { step, groups, .. } => self.accept(*step, groups),
            Record::Converted { step, .. } => {
                let (known, new) = (*step < self.batches, self.converted.insert(*step));
                self.demand(known && new, || {
                    format!("the batch of step {step} is converted twice, or was never accepted")
                });
            }
            Record::Claimed { trainer_epoch, attempt, start, .. } => self.claim(*trainer_epoch, *attempt, start),
            Record::Ordered { trainer_epoch, seq, order, .. } => self.order(*trainer_epoch, *seq, order),
            Record::Reported { trainer_epoch, seq, report, .. } => self.report_of(*trainer_epoch, *seq, report),
            Record::Committed { trainer_epoch, seq, commit, .. } => {
                let position = Position::of(commit);
                let order = self.answer(*trainer_epoch, *seq);
                let saved = matches!(&order, Some(OrderKind::Save { position: asked, folder }) if *asked == position && *folder == commit.folder);
                self.demand(saved, || format!("the commit at {position} answers {order:?}"));
                self.commit(position);
            }
            Record::VersionAdvanced { version, engines, .. } => {
                let (before, intent) = (self.version, self.intent.take());
                self.demand(*version > before, || format!("version {version} follows {before}"));
                self.demand(intent == Some(*version), || {
                    format!("version {version} is served without an intent ({intent:?})")
                });
                self.demand(!engines.is_empty(), || format!("version {version} advanced without an engine"));
                self.version = *version;
            }
            Record::Settings { .. }
            | Record::WarmConverted { .. }
            | Record::Rescored { .. }
            | Record::EvalStarted { .. }
            | Record::EvalFinished { .. }
            | Record::CheckpointAsked { .. }
            | Record::CheckpointReached { .. }
            | Record::FolderDeleted { .. }
            | Record::PacksRetired { .. }
            | Record::PacksForgotten { .. }
            | Record::RecordsMoved { .. }
            | Record::TrainerRefused { .. }
            | Record::Failed { .. } => {}
        }
    }

    fn draw(&mut self, group: u64) {
        let new = group < EVAL_TASKS && self.drawn.insert(group);
        self.demand(new, || format!("group {group} was drawn twice"));
    }

    fn drop_group(&mut self, group: u64, reason: &str) {
        let (known, batched, new) =
            (self.drawn.contains(group), self.batched.contains(group), self.dropped.insert(group));
        self.demand(known && !batched && new, || {
            format!("group {group} was dropped ({reason}) without being there, from a batch, or twice")
        });
        self.failures.remove(&group);
        *self.dropped_by_reason.entry(reason.to_owned()).or_default() += 1;
    }

    fn accept(&mut self, step: u64, groups: &[u64]) {
        let due = self.batches;
        self.demand(step == due, || format!("the batch of step {step} is accepted where step {due} is due"));
        self.demand(!groups.is_empty(), || format!("the batch of step {step} is empty"));
        for group in groups {
            let (finished, dropped, new) =
                (self.completed.contains(*group), self.dropped.contains(*group), self.batched.insert(*group));
            self.demand(finished, || format!("group {group} is in the batch of step {step} and was never finished"));
            self.demand(!dropped, || format!("group {group} is in the batch of step {step} although it was dropped"));
            self.demand(new, || format!("group {group} is in two batches, the second of step {step}"));
            self.failures.remove(group);
        }
        self.batches = step + 1;
        self.batch_groups += groups.len() as u64;
    }

    fn claim(&mut self, epoch: u64, attempt: u64, start: &Start) {
        let (before, highest, boundary) = (self.trainer_epoch, self.attempt, self.boundary);
        self.demand(epoch > before && attempt >= highest, || {
            format!("trainer epoch {epoch}, attempt {attempt}, after {before} and {highest}")
        });
        let at = match start {
            Start::Commit(commit) => Position::of(commit),
            _ => self.began,
        };
        self.demand(at == boundary, || format!("trainer epoch {epoch} begins at {at}, the boundary is {boundary}"));
        self.trainer_epoch = epoch;
        self.attempt = attempt;
        self.trainer = Some(Attempt { since: at, at, done: 0, order: None });
    }

    fn order(&mut self, epoch: u64, seq: u64, order: &OrderKind) {
        let (highest, at) = (self.trainer_epoch, self.trainer.as_ref().map(|trainer| trainer.at));
        self.demand(epoch == highest, || format!("an order to trainer epoch {epoch}, the highest is {highest}"));
        match order {
            OrderKind::Train { step, replay } => {
                let converted = self.converted.contains(*step);
                self.demand(converted, || format!("step {step} is ordered before its batch is converted"));
                self.demand(at.is_some_and(|at| at.rl && at.step == *step), || {
                    format!("step {step} is ordered at {at:?}")
                });
                let before = self.given.insert(*step, epoch);
                let again = before.is_some_and(|before| before < epoch);
                self.demand(again == *replay, || {
                    format!("step {step} was given to {before:?} before, and is called replay: {replay}")
                });
                self.demand(before != Some(epoch), || format!("step {step} is given to trainer epoch {epoch} twice"));
            }
            OrderKind::Publish { version, .. } => {
                let before = self.version_ordered;
                self.demand(*version > before, || format!("version {version} is ordered after {before}"));
                self.version_ordered = *version;
            }
            _ => {}
        }
        let fits = match &mut self.trainer {
            Some(trainer) => {
                let fits = trainer.order.is_none() && seq == trainer.done + 1;
                trainer.order = Some(order.clone());
                fits
            }
            None => false,
        };
        self.demand(fits, || format!("order {seq} of trainer epoch {epoch} is out of turn"));
    }

    /// The order that a report answers.
    fn answer(&mut self, epoch: u64, seq: u64) -> Option<OrderKind> {
        let highest = self.trainer_epoch;
        self.demand(epoch == highest, || {
            format!("a report of trainer epoch {epoch} counts although {highest} has claimed")
        });
        let trainer = self.trainer.as_mut()?;
        let order = trainer.order.take();
        let fits = order.is_some() && seq == trainer.done + 1;
        trainer.done = seq;
        self.demand(fits, || format!("report {seq} of trainer epoch {epoch} is out of turn"));
        order
    }

    fn report_of(&mut self, epoch: u64, seq: u64, report: &Done) {
        let order = self.answer(epoch, seq);
        let trainer = self.trainer.get_or_insert_default();
        match (&order, report) {
            (Some(OrderKind::TrainWarm { update, .. }), Done::Trained(_)) => {
                let fits = !trainer.at.rl && trainer.at.warm_step == *update;
                trainer.at.warm_step = update + 1;
                self.demand(fits, || format!("warm-start update {update} is out of turn"));
            }
            (Some(OrderKind::Train { step, replay }), Done::Trained(_)) => {
                trainer.at.step = step + 1;
                self.trained += 1;
                self.replays += u64::from(*replay);
            }
            (Some(OrderKind::Publish { version, .. }), Done::Weights { .. }) => {
                let before = self.intent.replace(*version);
                self.demand(before.is_none(), || format!("intent {version} while {before:?} is open"));
            }
            (Some(OrderKind::BeginRl), Done::RlBegun) => trainer.at.rl = true,
            (Some(OrderKind::Finish), Done::Finished) => self.finished = true,
            (Some(OrderKind::Export { .. }), Done::Exported { .. })
            | (Some(OrderKind::Stop { .. }), Done::Stopping) => {}
            _ => self.demand(false, || format!("{report:?} answers {order:?}")),
        }
    }

    fn commit(&mut self, position: Position) {
        let boundary = self.boundary;
        let trainer = self.trainer.get_or_insert_default();
        let (since, at) = (trainer.since, trainer.at);
        trainer.since = position;
        self.demand(position == at, || format!("a commit at {position} of a trainer that stands at {at}"));
        self.demand(since == boundary, || format!("a commit that follows {since}, while the boundary is {boundary}"));
        self.demand(position > boundary || self.commits == 0, || {
            format!("the boundary moves from {boundary} to {position}")
        });
        for step in since.step..position.step {
            let new = self.committed_steps.insert(step);
            self.demand(new, || format!("step {step} is learnt twice on the way to the commit at {position}"));
        }
        self.boundary = position;
        self.commits += 1;
        // Steps before the boundary are over.
        self.given = self.given.split_off(&position.step);
    }

    fn demand(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds && self.violations.len() < VIOLATIONS_KEPT {
            self.violations.push(format!("record {}: {}", self.records, otherwise()));
        }
    }

    /// The first broken rule.
    #[must_use]
    pub fn first_violation(&self) -> Option<&str> {
        self.violations.first().map(String::as_str)
    }

    /// All in numbers.
    #[must_use]
    pub fn report(&self) -> Report {
        // Committed steps are a prefix of all steps of this run, each with a batch; and in a run that is over nothing is left open.
        let committed = self.committed_steps.len();
        let missing =
            (self.began.step..self.boundary.step).filter(|step| !self.committed_steps.contains(*step)).count() as u64;
        let open = self.drawn.len().saturating_sub(self.batched.len() + self.dropped.len());
        let lost = missing + if self.finished { open } else { 0 };
        Report {
            records: self.records,
            groups_drawn: self.drawn.len(),
            groups_completed: self.completed.len(),
            groups_batched: self.batched.len(),
            dropped: self.dropped_by_reason.clone(),
            groups_open: open,
            batches: self.batches,
            steps_committed: committed,
            steps_trained: self.trained,
            replays: self.replays,
            commits: self.commits,
            trainer_epochs: self.trainer_epoch,
            conductor_epochs: self.conductor_epoch,
            version: self.version,
            generate_calls: self.generate_calls,
            finished: self.finished,
            doubled: self.batch_groups - self.batched.len().min(self.batch_groups),
            lost,
            violations: self.violations.clone(),
        }
    }
}

/// What a snapshot of the journal holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The state.
    pub state: State,
    /// What the checker remembers.
    pub audit: Audit,
    /// Length of `steps.jsonl` that belongs to it.
    pub steps_bytes: u64,
}

/// First byte of every snapshot.
const FORMAT: u8 = 1;

impl Snapshot {
    /// As bytes.
    ///
    /// # Errors
    /// Never for states made by this crate; the encoder's error otherwise.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        postcard::to_extend(self, vec![FORMAT])
            .map_err(|error| Error::Undecodable { what: "snapshot", why: error.to_string() })
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are not a snapshot of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bad = |why: String| Error::Undecodable { what: "snapshot", why };
        match bytes.split_first() {
            Some((&FORMAT, body)) => postcard::from_bytes(body).map_err(|error| bad(error.to_string())),
            Some((format, _)) => Err(bad(format!("format {format}, this version reads {FORMAT}"))),
            None => Err(bad("empty".to_owned())),
        }
    }
}
