//! Evaluations on held-out prompts: the warm start's pass rate, and one every so many steps. And the comparison of trainer
//! and engines by scoring the same samples with the same weights.

use straw::queue::TaskId;

use crate::{Command, Conductor, Error, EvalFor, Position, Record, State, Step, Warm};

/// A reward from here on is a right answer.
const PASSED: f64 = 1.0;

impl State {
    /// The warm start's pass rate is to be measured after this many updates.
    #[must_use]
    pub(crate) fn warm_check_due(&self, warm: &Warm, update: u64) -> bool {
        let measurable =
            self.run.as_ref().is_some_and(|run| run.config.frozen.held_out.is_some()) && warm.eval_prompts > 0;
        let regular = warm.stop_at_pass_rate.is_some() && update.is_multiple_of(warm.check_every);
        measurable && update > 0 && (regular || update >= warm.max_steps)
    }

    /// The warm start was measured after this many updates, or later by an earlier attempt.
    #[must_use]
    pub(crate) fn warm_checked(&self, update: u64) -> bool {
        self.warm_result.is_some_and(|result| result.position.warm_step >= update)
    }

    /// An evaluation of these weights is wanted and was not made yet.
    #[must_use]
    pub(crate) fn eval_due(&self, position: Position) -> Option<(EvalFor, u64)> {
        let run = self.run.as_ref()?;
        let rows = run.config.frozen.held_out.as_ref()?.rows;
        let live = &run.settings.live;
        if position.rl {
            let every = live.eval?;
            let due =
                position.step > 0 && (position.step.is_multiple_of(every.steps) || position.step >= live.total_steps);
            let made = self.rl_result.is_some_and(|result| result.position.step >= position.step);
            (due && !made).then_some((EvalFor::Rl, every.prompts.min(rows)))
        } else {
            let warm = run.config.frozen.warm.as_ref()?;
            let due = self.warm_check_due(warm, position.warm_step) && !self.warm_checked(position.warm_step);
            due.then_some((EvalFor::WarmStart, warm.eval_prompts.min(rows)))
        }
    }
}

impl Conductor {
    /// Asks the engines what the trainer was asked, once they serve the version it was asked about.
    pub(crate) fn drive_scoring(&mut self, now: u64, out: &mut Step) {
        let Some((version, scores)) = &self.state.unscored else { return };
        let engines: Vec<String> = self.engines_for_workers().into_iter().map(|engine| engine.url).collect();
        // An earlier version is not waited for: what it scored is of no use any more.
        let busy = self.memory.scoring.busy == Some(*version) || self.memory.scoring.retry_ms > now;
        if *version == self.state.version && !busy && !engines.is_empty() {
            self.memory.scoring.busy = Some(*version);
            out.commands.push(Command::Score { version: *version, scores: scores.clone(), engines });
        }
    }

    pub(crate) fn on_scored(
        &mut self,
        version: u64,
        result: Result<(f64, u64), String>,
        now: u64,
        out: &mut Step,
    ) -> Result<(), Error> {
        if self.memory.scoring.busy != Some(version) {
            return Ok(());
        }
        match result {
            Ok((gap_max, tokens)) => {
                self.memory.scoring.succeeded();
                self.emit(out, Record::Rescored { version, gap_max, tokens })
            }
            Err(problem) => {
                self.memory.scoring.failed(now, problem);
                Ok(())
            }
        }
    }

    pub(crate) fn drive_evals(&mut self, now: u64, out: &mut Step) -> Result<(), Error> {
        if let Some(eval) = &self.state.eval {
            let tasks = || (eval.first_task..eval.first_task + eval.prompts).map(TaskId);
            let queue = &self.state.queue;
            if tasks().any(|task| queue.task(task).is_some()) {
                return Ok(());
            }
            // Prompts that were given up have no summary.
            let answers =
                tasks().filter_map(|task| self.state.summaries.get(&task.0)).flat_map(|summary| &summary.rewards);
            let passed = answers.clone().filter(|reward| **reward >= PASSED).count() as u64;
            let answered = answers.count() as u64;
            return self.emit(out, Record::EvalFinished { passed, answered, time_ms: now });
        }
        let state = &self.state;
        if state.publishing.is_some() || state.finished || state.failure.is_some() {
            return Ok(());
        }
        let Some(position) = state.versions.get(&state.version).map(|version| version.position) else { return Ok(()) };
        let Some((purpose, prompts)) = state.eval_due(position) else { return Ok(()) };
        let (version, first_task) = (state.version, state.next_eval_task);
        self.emit(out, Record::EvalStarted { purpose, version, position, first_task, prompts })
    }
}
