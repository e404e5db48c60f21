//! The run as people and the operator see it.

use control::wire::{EngineProgress, Progress, QueueProgress, RunPhase, TrainerProgress, Wait, WorkerProgress};

use crate::{
    Conductor, Source, State, TRAINER_HEARTBEAT_MS,
    memory::{Memory, is_admitted},
    state::EVAL_TASKS,
    workers::holder,
};

/// A worker that was not heard of for this long is not shown any more.
const WORKER_SHOWN_MS: u64 = 60_000;

impl Conductor {
    /// How a run stands that nobody conducts: what its journal adds up to, without what only a living conductor knows.
    #[must_use]
    pub fn standing(state: State, now: u64) -> Progress {
        let epoch = state.conductor_epoch;
        let nobody = Self { state, memory: Memory::new(Source::new(0, 0), Source::new(0, 0)), epoch };
        Progress { waits: Vec::new(), ..nobody.progress(now) }
    }

    /// All of it.
    #[must_use]
    pub fn progress(&self, now: u64) -> Progress {
        let state = &self.state;
        let run = state.run.as_ref();
        let trainer = state.trainer.as_ref();
        let position = trainer.map_or_else(|| state.boundary(), |trainer| trainer.position);
        let heard_ms_ago = self.memory.trainer_heard_ms.map(|heard| now.saturating_sub(heard));
        let doing = match trainer.map(|trainer| (&trainer.order, trainer.stopped)) {
            Some((Some(order), _)) => order.describe(),
            Some((None, true)) => "stopped".to_owned(),
            Some((None, false)) => "waiting".to_owned(),
            None => "not started".to_owned(),
        };
        let live = heard_ms_ago.is_some_and(|ago| ago < TRAINER_HEARTBEAT_MS)
            && trainer.is_some_and(|trainer| !trainer.stopped);
        let warm = run.and_then(|run| run.config.frozen.warm.as_ref());
        Progress {
            conductor_epoch: self.epoch,
            settings_number: run.map_or(0, |run| run.settings.number),
            phase: self.phase(),
            step: if position.rl { position.step } else { 0 },
            total_steps: run.map_or(0, |run| run.settings.live.total_steps),
            warm_step: position.warm_step,
            warm_steps_max: warm.map_or(0, |warm| warm.max_steps),
            pass_rate: state.warm_result.and_then(|result| result.pass_rate()),
            weight_version: state.version,
            commit: state.commits.back().map(|commit| commit.commit.clone()),
            commits: state.commits_total,
            attempt: state.attempt,
            trainer_epoch: state.trainer_epoch,
            trainer: TrainerProgress { live, doing, heard_ms_ago },
            checkpoints_done: state
                .checkpoints
                .iter()
                .filter(|asked| asked.done)
                .map(|asked| asked.id.clone())
                .collect(),
            engines: self.engine_progress(),
            workers: self.worker_progress(now),
            queue: self.queue_progress(),
            samples: self.memory.brought.progress(),
            data_epoch: state.cursor.epoch,
            data_offset: state.cursor.offset,
            last_step: state.last_step.clone(),
            waits: self.waits(),
            failure: state.failure.clone(),
            events: state.events.iter().map(|(_, text)| text.clone()).collect(),
        }
    }

    fn phase(&self) -> RunPhase {
        let state = &self.state;
        match &state.trainer {
            _ if state.finished => RunPhase::Finished,
            _ if state.failure.is_some() => RunPhase::Failed,
            None => RunPhase::Starting,
            Some(trainer) if trainer.position.rl => RunPhase::Rl,
            Some(_) => RunPhase::WarmStart,
        }
    }

    fn engine_progress(&self) -> Vec<EngineProgress> {
        let engines = self.memory.engines.iter();
        let mut shown: Vec<EngineProgress> = engines
            .map(|(url, engine)| EngineProgress {
                name: engine.name.clone(),
                url: url.clone(),
                live: engine.live,
                admitted: is_admitted(engine, self.state.version),
                version: engine.version.unwrap_or(0),
            })
            .collect();
        shown.sort_by(|a, b| a.name.cmp(&b.name));
        shown
    }

    fn worker_progress(&self, now: u64) -> Vec<WorkerProgress> {
        let workers = self.memory.workers.values().filter(|seen| now < seen.heard_ms + WORKER_SHOWN_MS);
        workers
            .map(|seen| WorkerProgress {
                worker: seen.id.clone(),
                leases: u32::try_from(self.state.queue.leases_of(&holder(&seen.id)).count()).unwrap_or(u32::MAX),
                heard_ms_ago: now.saturating_sub(seen.heard_ms),
            })
            .collect()
    }

    fn queue_progress(&self) -> QueueProgress {
        let queue = &self.state.queue;
        QueueProgress {
            waiting: queue.pending_len() as u64,
            leased: queue.leases().len() as u64,
            ready: self.state.ready().count() as u64,
            retained_batches: (self.state.batches.len()
                + self.state.warm_batches.values().filter(|batch| batch.given_to.is_some()).count())
                as u64,
            dropped: self.state.dropped.clone(),
        }
    }

    /// What is waited for now, each with the time it began.
    pub(crate) fn waits(&self) -> Vec<Wait> {
        let wait = |(what, owner, until_ms): (String, &str, Option<u64>)| {
            let since_ms = self.memory.waiting.get(&what).copied().unwrap_or(0);
            Wait { what, owner: owner.to_owned(), since_ms, until_ms }
        };
        self.wanting().into_iter().map(wait).collect()
    }

    /// Keeps the time at which each wait began.
    pub(crate) fn note_waits(&mut self, now: u64) {
        let wanting = self.wanting();
        self.memory.waiting.retain(|what, _| wanting.iter().any(|(wanted, _, _)| wanted == what));
        for (what, _, _) in wanting {
            self.memory.waiting.entry(what).or_insert(now);
        }
    }

    /// What is waited for, who must act, until when. Most telling first.
    fn wanting(&self) -> Vec<(String, &'static str, Option<u64>)> {
        let state = &self.state;
        let mut all = Vec::new();
        let Some(run) = &state.run else { return all };
        if state.finished || state.failure.is_some() {
            return all;
        }
        let memory = &self.memory;
        for (what, effort) in [("a batch", &memory.converting), ("warm-start batches", &memory.warm_converting)] {
            if let Some(problem) = &effort.problem {
                all.push((format!("writing {what}: {problem}"), "storage", Some(effort.retry_ms)));
            }
        }
        if let Some(verifying) = &memory.verifying
            && let Some(problem) = &verifying.problem
        {
            all.push((format!("reading tiles: {problem}"), "storage", verifying.again_ms));
        }
        if let Some(problem) = &memory.volume_away {
            all.push((problem.clone(), "storage", None));
        }
        if let Some(problem) = &memory.trainer_waits {
            all.push((format!("the trainer, {problem}"), "storage", None));
        }
        if run.settings.paused {
            all.push(("the run to be resumed: it is suspended".to_owned(), "user", None));
        }
        match &state.trainer {
            None => all.push(("the first trainer attempt to claim".to_owned(), "operator", None)),
            Some(trainer) if trainer.stopped || trainer.refused.is_some() => {
                all.push((format!("the attempt after {}", trainer.attempt), "operator", None));
            }
            Some(_) => {}
        }
        if let Some((attempt, until)) = memory.held.filter(|(attempt, _)| *attempt == state.attempt) {
            all.push((format!("attempt {attempt} to be ended: it has saved as asked"), "operator", Some(until)));
        }
        let live = memory.engines.values().filter(|engine| engine.live).count();
        if live == 0 {
            all.push((format!("an engine that answers, of {} named", memory.engines.len()), "serving", None));
        }
        for (url, engine) in &memory.engines {
            if let (true, Some(problem)) = (engine.live, &engine.problem) {
                let name = if engine.name.is_empty() { url } else { &engine.name };
                all.push((format!("engine {name} to take its weights: {problem}"), "serving", Some(engine.retry_ms)));
            }
        }
        if let Some(publishing) = &state.publishing {
            let until = memory.publication.map(|(_, since)| since + crate::PUBLISH_PATIENCE_MS);
            all.push((format!("engines to acknowledge version {}", publishing.version), "serving", until));
        }
        if let Some(eval) = &state.eval {
            let left = state.queue.tasks().filter(|task| task.id.0 >= EVAL_TASKS).count();
            let note = self.generation_note();
            all.push((
                format!("{left} of {} evaluation prompts at {}{note}", eval.prompts, eval.position),
                "workers",
                None,
            ));
        }
        let step = state.accepted();
        if state.in_rl() && step < run.settings.live.total_steps && state.live() > 0 {
            let (ready, wanted) = (state.ready().count(), run.config.frozen.prompts_per_step);
            let note = self.generation_note();
            all.push((format!("groups of step {step}, {ready} of {wanted} are there{note}"), "workers", None));
        }
        if let Some((step, _)) = state.batches.iter().find(|(_, batch)| batch.converted.is_none()) {
            all.push((format!("the batch of step {step} to be converted"), "conductor", None));
        }
        if let Some(order) = state.trainer.as_ref().and_then(|trainer| trainer.order.as_ref()) {
            all.push((format!("the trainer, {}", order.describe()), "trainer", None));
        }
        all
    }

    /// What people should know of generation that makes no headway.
    fn generation_note(&self) -> String {
        match &self.state.last_failure {
            _ if self.memory.workers.is_empty() => " (no worker has come)".to_owned(),
            Some(why) => format!(" (the last group failed: {why})"),
            None => String::new(),
        }
    }
}
