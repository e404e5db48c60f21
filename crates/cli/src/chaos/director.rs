//! Plays a schedule on a living run: watches what it tells, strikes when a moment has come, and notices the deaths that were
//! armed.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;
use api::{Outcome, RLJobStatus};
use control::wire::Progress;
use k8s_openapi::api::core::v1::Pod;
use local::{
    event::Event,
    fault::Fault,
    run::{Command, Update, of_role, tail_of},
};
use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};

use super::{
    kill::{ConductorDeath, Moment, Strike, TrainerDeath},
    manifest,
    schedule::Schedule,
};

/// The moment of a strike is waited for so long; then it falls whatever goes on.
const PATIENCE: Duration = Duration::from_secs(4);
/// An armed death that has not come after so many steps is replaced by a signal.
const STEPS_UNTIL_REPLACED: u64 = 24;
/// While kills are left the run has no end in sight: however quick its steps and slow this machine, none comes too late.
pub const WITHOUT_END: u64 = 1_000_000;
/// Steps that are left when the last kill has been played, so that the run shows that it goes on.
const LAST_STEPS: u64 = 8;
/// Enough of a log to find the last words of a life in.
const TAIL_LINES: usize = 400;
/// What a trainer and a conductor log when a fault strikes them, and what a conductor logs before.
const TRAINER_STRUCK: &str = "injected fault";
const CONDUCTOR_STRUCK: &str = "a fault was ordered here";
const CONDUCTOR_REIGNS: &str = "conductor reigns";

/// Used where a schedule has run out and kills are still owed.
const PLAIN: Strike = Strike { place: 1, moment: Moment::Any, after_ms: 0, together: false };

/// A strike that waits for its moment.
#[derive(Debug, Default)]
struct Aim {
    /// Since when it might fall.
    ready: Option<Instant>,
    /// When it falls.
    due: Option<Instant>,
}

impl Aim {
    /// True when it is to fall now.
    fn falls(&mut self, strike: Strike, progress: &Progress) -> bool {
        let now = Instant::now();
        let ready = *self.ready.get_or_insert(now);
        if self.due.is_none() && (strike.moment.is_now(progress) || ready.elapsed() >= PATIENCE) {
            self.due = Some(now + Duration::from_millis(strike.after_ms));
        }
        self.due.is_some_and(|due| due <= now)
    }
}

/// Deaths of the trainer.
#[derive(Debug, Default)]
struct Trainer {
    played: usize,
    /// The living attempt, and how many commits there were before it.
    living: u64,
    commits_before: u64,
    ended: u64,
    struck: u64,
    steps: u64,
    aim: Aim,
}

/// Deaths of the conductor.
#[derive(Debug, Default)]
struct Conductor {
    played: usize,
    epoch: u64,
    struck: u64,
    steps: u64,
    aim: Aim,
}

/// Deaths of engines or workers.
#[derive(Debug, Default)]
struct Replicas {
    played: usize,
    steps: u64,
    aim: Aim,
}

/// The manifest that is played.
#[derive(Debug)]
pub struct Manifest {
    /// Where the run watches it.
    pub path: PathBuf,
    /// What it says, but for its number of steps, which is [`WITHOUT_END`] there while kills are left.
    pub text: String,
    /// Of the text.
    pub total_steps: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Director {
    schedule: Schedule,
    kills: usize,
    state: PathBuf,
    manifest: Manifest,
    conductor_pod: String,
    orders: mpsc::Sender<Command>,
    progress: Option<Progress>,
    /// The run has been given its end.
    bounded: bool,
    trainer: Trainer,
    conductor: Conductor,
    engines: Replicas,
    workers: Replicas,
    events: Vec<Event>,
}

impl Director {
    /// For the run called `name` with the state folder `state`.
    pub fn new(
        schedule: Schedule,
        name: &str,
        state: PathBuf,
        manifest: Manifest,
        orders: mpsc::Sender<Command>,
    ) -> Self {
        let Schedule { trainer, conductor, engines, workers } = &schedule;
        Self {
            kills: trainer.len() + conductor.len() + engines.len() + workers.len(),
            schedule,
            state,
            manifest,
            conductor_pod: format!("{}-0", plan::build::conductor_name(name)),
            orders,
            progress: None,
            bounded: false,
            trainer: Trainer::default(),
            conductor: Conductor { epoch: 1, ..Conductor::default() },
            engines: Replicas::default(),
            workers: Replicas::default(),
            events: Vec::new(),
        }
    }

    /// Kills so far.
    pub fn played(&self) -> usize {
        self.trainer.played + self.conductor.played + self.engines.played + self.workers.played
    }

    /// What was done since the last call, for people.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Takes what the run tells.
    pub fn see(&mut self, update: &Update) {
        match update {
            Update::Status(status) => self.see_attempts(status),
            Update::Progress(progress) => {
                let epoch = progress.conductor_epoch;
                if epoch > self.conductor.epoch {
                    self.see_reign(epoch);
                }
                self.progress = Some((**progress).clone());
            }
            Update::Step(_) => {
                let lanes = [&mut self.trainer.steps, &mut self.conductor.steps];
                for steps in lanes.into_iter().chain([&mut self.engines.steps, &mut self.workers.steps]) {
                    *steps += 1;
                }
            }
            Update::Event(event) => {
                if event.reason == "Ended" && event.text.contains(&self.conductor_pod) {
                    self.see_conductors_end();
                }
            }
        }
    }

    /// The conductor's process has ended: if by a fault that was armed, its log says so already.
    fn see_conductors_end(&mut self) {
        let epoch = self.conductor.epoch;
        if let Some(death @ ConductorDeath::Armed { .. }) = self.conductor_death(epoch)
            && self.conductor.struck < epoch
            && struck_itself(&self.conductor_log(), epoch)
        {
            self.conductor.struck = epoch;
            self.conductor.played += 1;
            self.killed(&format!("conductor, epoch {epoch}, {death}"));
        }
    }

    fn conductor_log(&self) -> Vec<String> {
        tail_of(&self.state.join("logs").join(format!("{}.log", self.conductor_pod)), TAIL_LINES)
    }

    fn see_attempts(&mut self, status: &RLJobStatus) {
        if let Some(last) = status.last_attempt.as_ref().filter(|last| last.id > self.trainer.ended) {
            self.trainer.ended = last.id;
            let log = last.pod_name.as_ref().map(|pod| self.state.join("logs").join(format!("{pod}.log")));
            let by_itself =
                log.is_some_and(|log| tail_of(&log, TAIL_LINES).iter().any(|line| line.contains(TRAINER_STRUCK)));
            match self.trainer_death(last.id) {
                _ if self.trainer.struck >= last.id => {}
                Some(TrainerDeath::Armed { rank, point }) if by_itself => {
                    self.trainer.played += 1;
                    self.killed(&format!("rank {rank} of attempt {} at {point}", last.id));
                }
                // The run's own end, and what the conductor asks for, are no news.
                _ if matches!(last.outcome, Outcome::Complete) => {}
                _ => self.note(format!("attempt {} ended without a kill: {}", last.id, last.message)),
            }
        }
        if let Some(living) = status.attempt.as_ref().filter(|attempt| attempt.id > self.trainer.living) {
            self.trainer.living = living.id;
            self.trainer.commits_before = living.commits_at_start;
            self.trainer.steps = 0;
            self.trainer.aim = Aim::default();
        }
    }

    /// A conductor answers with a new epoch: those before it have ended, and its log says how.
    fn see_reign(&mut self, new: u64) {
        let log = self.conductor_log();
        for epoch in self.conductor.epoch..new {
            match self.conductor_death(epoch) {
                _ if self.conductor.struck >= epoch => {}
                Some(death @ ConductorDeath::Armed { .. }) if struck_itself(&log, epoch) => {
                    self.conductor.played += 1;
                    self.killed(&format!("conductor, epoch {epoch}, {death}"));
                }
                _ => self.note(format!("the conductor of epoch {epoch} ended without a kill")),
            }
        }
        let (played, struck) = (self.conductor.played, self.conductor.struck);
        self.conductor = Conductor { played, struck, epoch: new, ..Conductor::default() };
    }

    /// How an attempt ends; a signal where the schedule is over and kills are owed.
    fn trainer_death(&self, attempt: u64) -> Option<TrainerDeath> {
        let place = usize::try_from(attempt.checked_sub(1)?).ok()?;
        let owed = self.trainer.played < self.schedule.trainer.len();
        self.schedule.trainer.get(place).copied().or(owed.then_some(TrainerDeath::Struck(PLAIN)))
    }

    fn conductor_death(&self, epoch: u64) -> Option<ConductorDeath> {
        let place = usize::try_from(epoch.checked_sub(1)?).ok()?;
        let owed = self.conductor.played < self.schedule.conductor.len();
        self.schedule.conductor.get(place).copied().or(owed.then_some(ConductorDeath::Struck(PLAIN)))
    }

    /// The signal that the trainer waits for, if its attempt may be struck now.
    fn trainer_strike(&self, progress: &Progress) -> Option<Strike> {
        let Trainer { living, struck, ended, steps, commits_before, .. } = self.trainer;
        if living == 0 || struck >= living || ended >= living || progress.attempt != living || !progress.trainer.live {
            return None;
        }
        match self.trainer_death(living)? {
            TrainerDeath::Struck(strike) => (progress.commits > commits_before).then_some(strike),
            TrainerDeath::Armed { .. } => (steps > STEPS_UNTIL_REPLACED).then_some(PLAIN),
        }
    }

    fn conductor_strike(&self, progress: &Progress) -> Option<Strike> {
        let Conductor { epoch, struck, steps, .. } = self.conductor;
        if struck >= epoch || progress.conductor_epoch != epoch {
            return None;
        }
        match self.conductor_death(epoch)? {
            ConductorDeath::Struck(strike) => (steps > 0).then_some(strike),
            ConductorDeath::Armed { .. } => (steps > STEPS_UNTIL_REPLACED).then_some(PLAIN),
        }
    }

    fn replica_strike(replicas: &Replicas, strikes: &[Strike]) -> Option<Strike> {
        strikes.get(replicas.played).copied().filter(|_| replicas.steps > 0)
    }

    /// Does what is due. The run must be driven meanwhile.
    pub async fn act(&mut self) -> Result<()> {
        let Some(progress) = self.progress.clone() else { return Ok(()) };
        self.bound(&progress)?;
        let trainer = self.trainer_strike(&progress);
        let conductor = self.conductor_strike(&progress);
        let engine = Self::replica_strike(&self.engines, &self.schedule.engines);
        let worker = Self::replica_strike(&self.workers, &self.schedule.workers);
        let mut due = [
            trainer.is_some_and(|strike| self.trainer.aim.falls(strike, &progress)),
            conductor.is_some_and(|strike| self.conductor.aim.falls(strike, &progress)),
            engine.is_some_and(|strike| self.engines.aim.falls(strike, &progress)),
            worker.is_some_and(|strike| self.workers.aim.falls(strike, &progress)),
        ];
        let strikes = [trainer, conductor, engine, worker];
        let together =
            due.iter().zip(strikes).any(|(due, strike)| *due && strike.is_some_and(|strike| strike.together));
        if together {
            due = strikes.map(|strike| strike.is_some());
        }
        if !due.contains(&true) {
            return Ok(());
        }
        let Some(pods) = self.pods().await else { return Ok(()) };
        let company = due.iter().filter(|due| **due).count() > 1;
        let during = during(&progress, company);
        if let Some(strike) = trainer.filter(|_| due[0]) {
            let name = of_role(&pods, "trainer").first().map(|pod| plan::pod_facts::name(pod).to_owned());
            let who = if strike.place == 0 { "launcher".into() } else { format!("rank process {}", strike.place - 1) };
            if self.signal(name, strike.place).await {
                let living = self.trainer.living;
                self.trainer.struck = living;
                self.trainer.played += 1;
                self.killed(&format!("{who} of attempt {living}, {during}"));
            }
        }
        if due[1] && self.signal(Some(self.conductor_pod.clone()), 0).await {
            let epoch = self.conductor.epoch;
            self.conductor.struck = epoch;
            self.conductor.played += 1;
            self.killed(&format!("conductor, epoch {epoch}, {during}"));
        }
        if let Some(strike) = engine.filter(|_| due[2])
            && let Some(pod) = self.strike_replica("engine", strike, &pods).await
        {
            self.engines = Replicas { played: self.engines.played + 1, ..Replicas::default() };
            self.killed(&format!("engine {pod}, {during}"));
        }
        if let Some(strike) = worker.filter(|_| due[3])
            && let Some(pod) = self.strike_replica("worker", strike, &pods).await
        {
            self.workers = Replicas { played: self.workers.played + 1, ..Replicas::default() };
            self.killed(&format!("worker {pod}, {during}"));
        }
        Ok(())
    }

    async fn strike_replica(&self, role: &str, strike: Strike, pods: &[Pod]) -> Option<String> {
        let pods = of_role(pods, role);
        let pod = pods.get(strike.place % pods.len().max(1))?;
        let name = plan::pod_facts::name(pod).to_owned();
        self.signal(Some(name.clone()), 0).await.then_some(name)
    }

    /// SIGKILL to a process of a pod; true when there was one.
    async fn signal(&self, pod: Option<String>, place: usize) -> bool {
        let Some(pod) = pod else { return false };
        let (answer, played) = oneshot::channel();
        let fault = Fault::SignalProcess { pod, place, signal: Signal::KILL };
        self.orders.send(Command::Fault(fault, answer)).await.is_ok() && played.await.unwrap_or(false)
    }

    async fn pods(&self) -> Option<Vec<Pod>> {
        let (answer, pods) = oneshot::channel();
        self.orders.send(Command::Pods(answer)).await.ok()?;
        pods.await.ok()
    }

    /// Gives the run its end once all kills have been played: the manifest's own, or a few steps from here.
    fn bound(&mut self, progress: &Progress) -> Result<()> {
        if self.bounded || self.played() < self.kills {
            return Ok(());
        }
        let total = self.manifest.total_steps.max(progress.step + LAST_STEPS);
        if let Some(text) = manifest::with_total_steps(&self.manifest.text, total) {
            local::folder::replace(&self.manifest.path, text.as_bytes())?;
            self.note(format!("all kills are played: the run ends with step {total}"));
        }
        self.bounded = true;
        Ok(())
    }

    fn killed(&mut self, whom: &str) {
        let text = format!("kill {}/{}: {whom}", self.played(), self.kills);
        self.events.push(Event::now(true, "Chaos", text));
    }

    fn note(&mut self, text: String) {
        self.events.push(Event::now(false, "Chaos", text));
    }
}

/// Whether a conductor's log says that a fault struck it in this epoch.
fn struck_itself(log: &[String], epoch: u64) -> bool {
    let reign = format!("epoch={epoch} ");
    let begins = |line: &String| line.contains(CONDUCTOR_REIGNS);
    let Some(start) = log.iter().rposition(|line| begins(line) && line.contains(&reign)) else { return false };
    log[start..].iter().skip(1).take_while(|line| !begins(line)).any(|line| line.contains(CONDUCTOR_STRUCK))
}

/// What went on when a signal was sent.
fn during(progress: &Progress, company: bool) -> String {
    let updating = if Moment::Updating.is_now(progress) { ", engines updating" } else { "" };
    let company = if company { ", together" } else { "" };
    format!("trainer: {}, {} leased{updating}{company}", progress.trainer.doing, progress.queue.leased)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_counted_for_the_reign_whose_log_it_ends() {
        let log: Vec<String> = [
            "INFO conductor reigns epoch=1 records=0",
            "WARN a fault was ordered here point=AfterJournal",
            "INFO conductor reigns epoch=2 records=9",
            "INFO conductor reigns epoch=12 records=9",
            "WARN a fault was ordered here point=EngineUpdated",
        ]
        .map(str::to_owned)
        .to_vec();
        let struck: Vec<u64> = (0..14).filter(|epoch| struck_itself(&log, *epoch)).collect();
        assert_eq!(struck, [1, 12]);
    }
}
