//! What follows from the state, without changing it.

use std::collections::{BTreeMap, BTreeSet};

use control::wire::{GroupSummary, Order, ScoreSet, TrainOrder};
use straw::queue::{self, BatchId};

use super::{EVAL_TASKS, State, Trainer, row_of};
use crate::{
    Drawn, Error, Position, microbatch,
    order::{OrderKind, epoch_of},
    resumed,
};

/// Samples that are scored by trainer and engines after a publication, and tokens of each.
const SCORED_SAMPLES: u64 = 8;
const SCORED_TOKENS_MAX: u32 = 64;

impl State {
    /// Where the very first attempt of a run without another's commit begins.
    #[must_use]
    pub fn initial_position(&self) -> Position {
        let warm = self.run.as_ref().is_some_and(|run| run.config.frozen.warm.is_some());
        Position { rl: !warm, warm_step: 0, step: 0 }
    }

    /// Position of the last commit, if there is one.
    #[must_use]
    pub fn committed_position(&self) -> Option<Position> {
        self.commits.back().map(|commit| Position::of(&commit.commit))
    }

    /// The recovery boundary.
    #[must_use]
    pub fn boundary(&self) -> Position {
        self.committed_position().unwrap_or_else(|| self.initial_position())
    }

    /// RL groups may be generated: the warm start, if any, is over and committed.
    #[must_use]
    pub fn in_rl(&self) -> bool {
        self.run.is_some() && self.boundary().rl
    }

    /// RL steps learnt into a version. Only versions of the RL phase, and the last one of the warm start, have groups.
    #[must_use]
    pub fn step_of_version(&self, version: u64) -> Option<u64> {
        self.versions.get(&version).map(|v| v.position.step)
    }

    /// Distance between `step` and the weights of `version`, in steps.
    #[must_use]
    pub fn staleness(&self, step: u64, version: u64) -> u64 {
        step.saturating_sub(self.step_of_version(version).unwrap_or(0))
    }

    /// The order at hand as the trainer is told it. A repeated poll, under whatever conductor, gets the same.
    #[must_use]
    pub fn wire_order(&self) -> Option<(u64, Order)> {
        let trainer = self.trainer.as_ref()?;
        let order = match trainer.order.clone()? {
            OrderKind::TrainWarm { update, replay } => {
                let converted = &self.warm_batches.get(&update)?.converted;
                let phase = control::wire::Phase::WarmStart;
                Order::Train(TrainOrder {
                    phase,
                    step: update,
                    replay,
                    batch: converted.batch.clone(),
                    // A warm-start update is one batch.
                    updates: microbatch::plan(&converted.shapes(), u64::MAX, trainer.tokens_max, trainer.layout.dp),
                    version_digests: BTreeMap::new(),
                })
            }
            OrderKind::Train { step, replay } => {
                let batch = self.batches.get(&step)?;
                let converted = batch.converted.as_ref()?;
                let per_update = self.run.as_ref()?.config.frozen.rollouts_per_update;
                let versions = self.versions.range(batch.version_min..=batch.version_max.max(batch.version_min));
                Order::Train(TrainOrder {
                    phase: control::wire::Phase::Rl,
                    step,
                    replay,
                    batch: converted.batch.clone(),
                    updates: microbatch::plan(&converted.shapes(), per_update, trainer.tokens_max, trainer.layout.dp),
                    version_digests: versions.map(|(version, entry)| (*version, entry.digest.clone())).collect(),
                })
            }
            OrderKind::Save { position, folder } => {
                Order::Save { step: position.step, warm_step: position.warm_step, warming: !position.rl, folder }
            }
            OrderKind::Publish { version, folder, score } => Order::Publish { version, folder, score },
            OrderKind::BeginRl => Order::BeginRl,
            OrderKind::Export { folder } => Order::Export { folder },
            OrderKind::Stop { reason } => Order::Stop { reason },
            OrderKind::Finish => Order::Finish,
        };
        Some((trainer.done + 1, order))
    }

    /// Samples of the last learnt batch to be scored on both sides, if this trainer's publications are compared so: spread
    /// over the batch.
    #[must_use]
    pub fn score_set(&self, trainer: &Trainer) -> Option<ScoreSet> {
        let (batch, samples) = self.scorable.clone().filter(|_| trainer.rescore)?;
        let count = samples.min(SCORED_SAMPLES);
        let positions = (0..count).filter_map(|n| u32::try_from(n * samples / count.max(1)).ok()).collect();
        Some(ScoreSet { batch, samples: positions, tokens_max: SCORED_TOKENS_MAX })
    }

    /// Folders that may not be deleted: those that a record names and that are not garbage, and the one being written.
    #[must_use]
    pub fn folders_in_use(&self) -> BTreeSet<String> {
        let commits = self.commits.iter().map(|commit| commit.commit.folder.clone());
        let weights = self.versions.get(&self.version).map(|version| version.folder.clone());
        let intent = self.publishing.as_ref().map(|publishing| publishing.folder.clone());
        let writing = self.trainer.as_ref().and_then(|trainer| match &trainer.order {
            Some(OrderKind::Save { folder, .. } | OrderKind::Publish { folder, .. }) => Some(folder.clone()),
            _ => None,
        });
        commits.chain(weights).chain(intent).chain(writing).collect()
    }

    /// True when `folder`, found on disk, is an orphan: of an epoch below the living one's, and named by nothing.
    #[must_use]
    pub fn is_orphan(&self, folder: &str) -> bool {
        epoch_of(folder).is_some_and(|epoch| epoch < self.trainer_epoch) && !self.folders_in_use().contains(folder)
    }

    /// Refuses to begin a run in a folder where it has been learning already: `folders` are those of tiles and weights.
    ///
    /// # Errors
    /// [`Error::JournalLost`] names one of them.
    pub fn check_volume(&self, folders: &[String]) -> Result<(), Error> {
        // What was copied from another run for a beginning that did not come about is not of this one's making.
        match folders.iter().find(|folder| epoch_of(folder) != Some(resumed::COPIED_EPOCH)) {
            Some(folder) if self.run.is_none() => Err(Error::JournalLost { folder: folder.clone() }),
            _ => Ok(()),
        }
    }

    /// RL steps whose batch was accepted: the next one to accept.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.queue.next_batch().0
    }

    /// Unfinished training groups.
    pub fn unfinished(&self) -> impl Iterator<Item = &queue::Task> {
        self.queue.tasks().filter(|task| task.id.0 < EVAL_TASKS)
    }

    /// Finished training groups in no batch, in order of completion.
    pub fn ready(&self) -> impl Iterator<Item = (u64, &GroupSummary)> {
        let groups = self.queue.unbatched().map(|(_, accepted)| accepted.task.0).filter(|group| *group < EVAL_TASKS);
        groups.filter_map(|group| self.summaries.get(&group).map(|summary| (group, summary)))
    }

    /// Training groups in no batch, finished or not.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.unfinished().count() as u64 + self.ready().count() as u64
    }

    /// Groups in no batch and the rows they were drawn from: the queue as a commit records it.
    #[must_use]
    pub fn queued(&self) -> Vec<Drawn> {
        let unfinished = self.unfinished().map(|task| (task.id, &task.input));
        let ready = self.queue.unbatched().map(|(_, accepted)| (accepted.task, &accepted.input));
        let mut all: Vec<Drawn> = unfinished
            .chain(ready)
            .filter(|(id, _)| id.0 < EVAL_TASKS)
            .map(|(id, input)| Drawn { group_index: id.0, row: row_of(input) })
            .collect();
        all.sort_unstable_by_key(|drawn| drawn.group_index);
        all
    }

    /// Groups that are in no step below `step`, and the rows they were drawn from.
    pub(super) fn unlearnt(&self, step: u64) -> Vec<Drawn> {
        let later = self.queue.accepted().filter(|(_, accepted)| accepted.batch.is_some_and(|batch| batch.0 >= step));
        let later = later.map(|(_, accepted)| Drawn { group_index: accepted.task.0, row: row_of(&accepted.input) });
        let mut all: Vec<Drawn> = later.chain(self.queued()).collect();
        all.sort_unstable_by_key(|drawn| drawn.group_index);
        all
    }

    /// The groups of a retained batch and where they lie.
    #[must_use]
    pub fn batch_groups(&self, step: u64) -> Vec<(u64, straw::Ref)> {
        let positions = self.queue.batch(BatchId(step)).into_iter().flat_map(|batch| &batch.positions);
        let groups = positions.filter_map(|position| self.queue.accepted_at(*position));
        groups.filter_map(|accepted| Some((accepted.task.0, accepted.result.first()?.clone()))).collect()
    }
}
