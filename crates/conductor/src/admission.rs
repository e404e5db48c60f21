//! Admission: which groups are generated, which are chosen for a step, and which leave. One path for both modes: Sync is a
//! staleness of 0 in which groups beyond the step's are dropped.

use crate::{Command, Conductor, Converted, DropReason, Error, Record, Step, TooStale};

/// Warm-start batches made ahead of the trainer.
const WARM_AHEAD: u64 = 32;
/// Batches made in one go: they share one sync.
const WARM_CHUNK: u64 = 16;
/// Accepted RL batches that wait for the trainer, in Async mode.
const ACCEPTED_AHEAD: u64 = 1;

impl Conductor {
    pub(crate) fn drive_groups(&mut self, now: u64, out: &mut Step) -> Result<(), Error> {
        if !self.state.in_rl() || self.state.version == 0 || self.state.finished || self.state.failure.is_some() {
            return Ok(());
        }
        self.turn_away(out)?;
        self.accept(now, out)?;
        self.drop_unwanted(out)?;
        self.refill(out)
    }

    /// Finished groups that may not be trained: too stale for the next step, or without any spread where that is asked for.
    fn turn_away(&mut self, out: &mut Step) -> Result<(), Error> {
        let Some(run) = &self.state.run else { return Ok(()) };
        let frozen = &run.config.frozen;
        let (too_stale, step) = (frozen.too_stale, self.state.accepted());
        if frozen.drop_zero_std {
            // A group of one has no spread to ask for.
            let alike =
                |rewards: &[f64]| rewards.len() > 1 && rewards.windows(2).all(|pair| matches!(pair, [a, b] if a == b));
            let groups: Vec<u64> =
                self.state.ready().filter(|(_, summary)| alike(&summary.rewards)).map(|(group, _)| group).collect();
            self.drop_groups(groups, DropReason::ZeroStd, out)?;
        }
        let stale = |version: u64| self.state.staleness(step, version) > self.staleness_max();
        let groups: Vec<u64> =
            self.state.ready().filter(|(_, summary)| stale(summary.version_min)).map(|(group, _)| group).collect();
        if groups.is_empty() {
            return Ok(());
        }
        if too_stale == TooStale::Drop {
            return self.drop_groups(groups, DropReason::TooStale, out);
        }
        let mut cursor = self.state.cursor;
        let rows: std::collections::BTreeMap<u64, u64> =
            self.state.queued().iter().map(|drawn| (drawn.group_index, drawn.row)).collect();
        let groups = groups
            .into_iter()
            .map(|group| {
                let again =
                    crate::Drawn { group_index: cursor.next_group, row: rows.get(&group).copied().unwrap_or(0) };
                cursor.next_group += 1;
                self.memory.first_lease_ms.remove(&group);
                (group, again)
            })
            .collect();
        self.emit(out, Record::Requeued { groups, cursor })
    }

    fn staleness_max(&self) -> u64 {
        self.state.run.as_ref().map_or(0, |run| run.config.frozen.max_staleness)
    }

    /// Chooses the next step's groups as soon as there are enough: oldest weights first, then first come.
    fn accept(&mut self, now: u64, out: &mut Step) -> Result<(), Error> {
        let Some(run) = &self.state.run else { return Ok(()) };
        let frozen = &run.config.frozen;
        let (step, wanted) = (self.state.accepted(), frozen.prompts_per_step as usize);
        let ahead = if frozen.asynchronous { ACCEPTED_AHEAD } else { 0 };
        if step >= run.settings.live.total_steps || step > self.state.trained + ahead {
            return Ok(());
        }
        let mut ready: Vec<(u64, u64)> =
            self.state.ready().map(|(group, summary)| (summary.version_min, group)).collect();
        if ready.len() < wanted {
            return Ok(());
        }
        // Stable: groups of one version stay in order of completion.
        ready.sort_by_key(|(version, _)| *version);
        let mut groups: Vec<u64> = ready.into_iter().take(wanted).map(|(_, group)| group).collect();
        // In the batch they are in order of their index, so that it does not depend on who was faster.
        groups.sort_unstable();
        let began = groups.iter().filter_map(|group| self.memory.first_lease_ms.remove(group)).min().unwrap_or(now);
        let (cursor, version) = (self.state.cursor, self.state.version);
        let generate_ms = now.saturating_sub(began);
        self.emit(out, Record::Accepted { step, groups, cursor, version, generate_ms, time_ms: now })
    }

    /// Groups that no step will take: in Sync mode those left when the step of the current weights is full, in both modes
    /// those left when the run has all its steps.
    fn drop_unwanted(&mut self, out: &mut Step) -> Result<(), Error> {
        let Some(run) = &self.state.run else { return Ok(()) };
        let step = self.state.accepted();
        let over = step >= run.settings.live.total_steps;
        let full = !run.config.frozen.asynchronous && Some(step) > self.state.step_of_version(self.state.version);
        if !over && !full {
            return Ok(());
        }
        let groups: Vec<u64> = self.state.queued().iter().map(|drawn| drawn.group_index).collect();
        self.drop_groups(groups, if over { DropReason::RunOver } else { DropReason::Surplus }, out)
    }

    fn drop_groups(&mut self, groups: Vec<u64>, reason: DropReason, out: &mut Step) -> Result<(), Error> {
        if groups.is_empty() {
            return Ok(());
        }
        self.abandon(&groups);
        self.emit(out, Record::Dropped { groups, reason })
    }

    /// Draws new groups while what is under way could still be trained within the allowed staleness: with weights that have
    /// learnt `s` steps, groups are wanted for steps up to `s + max_staleness`.
    fn refill(&mut self, out: &mut Step) -> Result<(), Error> {
        let Some(run) = &self.state.run else { return Ok(()) };
        let frozen = &run.config.frozen;
        let (step, total) = (self.state.accepted(), run.settings.live.total_steps);
        let Some(learnt) = self.state.step_of_version(self.state.version) else { return Ok(()) };
        if run.settings.paused || step >= total {
            return Ok(());
        }
        let until = (learnt + frozen.max_staleness + 1).min(total);
        let wanted = until.saturating_sub(step) * frozen.prompts_per_step;
        let room = wanted.saturating_sub(self.state.live());
        if room == 0 {
            return Ok(());
        }
        let surplus = if frozen.asynchronous { 0 } else { frozen.over_sampling - frozen.prompts_per_step };
        let (groups, cursor) = self.memory.source.draw(self.state.cursor, room + surplus);
        if groups.is_empty() {
            return Ok(());
        }
        self.emit(out, Record::Refilled { groups, cursor })
    }

    /// Starts conversions that are due.
    pub(crate) fn drive_conversions(&mut self, now: u64, out: &mut Step) {
        if self.memory.converting.may_start(now)
            && let Some(step) =
                self.state.batches.iter().find(|(_, batch)| batch.converted.is_none()).map(|(step, _)| *step)
            && let Some(run) = &self.state.run
        {
            self.memory.converting.busy = Some(step);
            let (groups, advantage) = (self.state.batch_groups(step), run.settings.attempt.advantage);
            out.commands.push(Command::Convert { step, groups, advantage });
        }
        self.convert_warm(now, out);
    }

    fn convert_warm(&mut self, now: u64, out: &mut Step) {
        let state = &self.state;
        let Some(warm) = state.run.as_ref().and_then(|run| run.config.frozen.warm.as_ref()) else { return };
        let at = state.trainer.as_ref().map_or_else(|| state.boundary(), |trainer| trainer.position);
        if state.boundary().rl || at.rl || !self.memory.warm_converting.may_start(now) {
            return;
        }
        let first = state.warm_batches.last_key_value().map_or(state.boundary().warm_step, |(update, _)| update + 1);
        let until = warm.max_steps.min(at.warm_step + WARM_AHEAD).min(first + WARM_CHUNK);
        // Not one by one: wait until a whole chunk, or the last part, is due.
        if first >= until || (until < first + WARM_CHUNK && until < warm.max_steps) {
            return;
        }
        let (batch, rows) = (warm.batch_size, warm.data.rows);
        let source = &mut self.memory.warm_source;
        let mut row = |place: u64| source.row(place / rows.max(1), place % rows.max(1)).unwrap_or(0);
        let rows =
            (first..until).map(|update| (update * batch..(update + 1) * batch).map(&mut row).collect()).collect();
        self.memory.warm_converting.busy = Some(first);
        out.commands.push(Command::ConvertWarm { first, rows });
    }

    pub(crate) fn on_converted(
        &mut self,
        step: u64,
        result: Result<Box<Converted>, String>,
        now: u64,
        out: &mut Step,
    ) -> Result<(), Error> {
        if self.memory.converting.busy != Some(step) {
            return Ok(());
        }
        match result {
            Ok(batch) => {
                self.memory.converting.succeeded();
                self.emit(out, Record::Converted { step, batch })
            }
            Err(problem) => {
                self.memory.converting.failed(now, problem);
                Ok(())
            }
        }
    }

    pub(crate) fn on_warm_converted(
        &mut self,
        first: u64,
        result: Result<Vec<Converted>, String>,
        now: u64,
        out: &mut Step,
    ) -> Result<(), Error> {
        if self.memory.warm_converting.busy != Some(first) {
            return Ok(());
        }
        match result {
            Ok(batches) => {
                self.memory.warm_converting.succeeded();
                // The warm start may have ended meanwhile.
                if self.state.boundary().rl { Ok(()) } else { self.emit(out, Record::WarmConverted { first, batches }) }
            }
            Err(problem) => {
                self.memory.warm_converting.failed(now, problem);
                Ok(())
            }
        }
    }
}
