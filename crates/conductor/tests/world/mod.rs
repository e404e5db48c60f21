//! A world around the brain: workers, engines, trainers, a volume and a journal, as state machines driven by a seed.
//!
//! Every message may be late, every process may die, and the conductor may die between any two records. What the real
//! binary promises is kept here too: a command is carried out only when the records before it are in the journal, and an
//! event is delivered only to the conductor whose command it answers.
#![allow(dead_code)]

pub mod asks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use conductor::{
    AttemptConfig, BatchStats, Command, Conductor, Converted, DataFile, EvalEvery, Event, Frozen, GiveBack, Grant,
    Live, Record, Reply, ReplyId, Resumed, RunConfig, SettingsAsked, State, Step, TooStale, Unreached, Warm,
    check::Audit, microbatch::Shape,
};
use control::wire::{
    CheckpointRequest, ClaimRequest, CompleteRequest, EngineAddress, FailRequest, Finished, GroupSummary, Layout,
    LeaseRequest, NextRequest, Order, Outcome, RefusalKind, Report, ReportRequest, RewardConfig, Sampling, Start,
    TaskKind, TrainMetrics, Work, WorkerId,
};
use rl::{GroupAdvantage, LossConfig, LossReduction, OptimizerConfig, ScheduleKind, StdKind};
use straw::Ref;

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True `n` times in a thousand.
    pub fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }
}

/// References in one pack.
const REFS_OF_A_PACK: u64 = 16;

/// What may go wrong, in thousandths of the turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub conductor: u64,
    pub trainer: u64,
    pub zombie: u64,
    pub worker: u64,
    pub engine: u64,
    pub update: u64,
    pub group: u64,
    pub silence: u64,
    pub operator: u64,
}

impl Faults {
    pub fn many() -> Self {
        Self {
            conductor: 15,
            trainer: 12,
            zombie: 400,
            worker: 10,
            engine: 10,
            update: 60,
            group: 40,
            silence: 5,
            operator: 4,
        }
    }
}

pub fn config(asynchronous: bool, warm: bool) -> RunConfig {
    let file = |path: &str, rows| DataFile {
        path: path.to_owned(),
        keys: ["prompt".to_owned(), "label".to_owned()],
        rows,
        sha256: format!("sha of {path}"),
    };
    let optimizer = OptimizerConfig {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.0,
        clip_grad_norm: 1.0,
        schedule: ScheduleKind::Constant,
        warmup_steps: 0,
        decay_steps: 10,
        min_lr: 0.0,
    };
    RunConfig {
        frozen: Frozen {
            run: "uid".to_owned(),
            model_dir: "model".to_owned(),
            model: "tiny".to_owned(),
            run_dir: "runs/uid".to_owned(),
            init: Start::Random { seed: 1 },
            resume_from: None,
            data: file("train.jsonl", 13),
            held_out: Some(file("eval.jsonl", 5)),
            shuffle_seed: 42,
            sampling_seed: 7,
            sampling: Sampling { temperature: 1.0, max_new_tokens: 8, stop_token_ids: vec![] },
            samples_per_prompt: 4,
            asynchronous,
            max_staleness: if asynchronous { 2 } else { 0 },
            too_stale: TooStale::Requeue,
            prompts_per_step: 3,
            rollouts_per_update: 12,
            over_sampling: 4,
            drop_zero_std: false,
            reward: RewardConfig::ExactMatch,
            warm: warm.then(|| Warm {
                data: file("warm.jsonl", 9),
                batch_size: 4,
                max_steps: 12,
                check_every: 4,
                stop_at_pass_rate: Some(0.5),
                eval_prompts: 5,
            }),
        },
        attempt: AttemptConfig {
            loss: LossConfig {
                clip_low: 0.2,
                clip_high: 0.2,
                clip_c: None,
                kl: None,
                entropy_coef: 0.0,
                tis: None,
                reduction: LossReduction::TokenMean,
            },
            advantage: GroupAdvantage { std_kind: StdKind::Unbiased },
            optimizer,
            warm_optimizer: warm.then_some(optimizer),
            recompute: false,
            tokens_max: 64,
        },
        live: Live {
            total_steps: 7,
            checkpoint_every: 3,
            checkpoint_keep: 2,
            eval: Some(EvalEvery { steps: 4, prompts: 4 }),
        },
    }
}

struct SimWorker {
    id: WorkerId,
    lives: u64,
    /// Grant, and the version it began with.
    held: BTreeMap<u64, (Grant, u64)>,
    finished: Vec<Finished>,
    failed: Vec<FailRequest>,
    asked: Option<ReplyId>,
    /// The call, and the submissions in it.
    offered: Option<(ReplyId, Vec<String>)>,
    renewed: u64,
}

struct SimEngine {
    address: EngineAddress,
    alive: bool,
    version: u64,
    paused: bool,
    /// Loading: version, folder, and the conductor that wants to hear of it.
    job: Option<(u64, String, u64)>,
    answers: u64,
}

struct SimTrainer {
    attempt: u64,
    incarnation: u64,
    epoch: Option<u64>,
    done: u64,
    /// What it has learnt, which makes the digest of its weights.
    learnt: String,
    busy: Option<Work>,
    reported: Option<(u64, Report)>,
    asked: Option<ReplyId>,
    over: bool,
    layout: Layout,
}

/// An event on its way, and the conductor it is for (0: whoever reigns).
struct Flying {
    event: Event,
    to: u64,
}

pub struct World {
    pub config: RunConfig,
    pub rng: Rng,
    pub now: u64,
    pub journal: Vec<Record>,
    /// What became of `resumeFrom`, until the run has begun.
    resumed: Option<Result<Resumed, String>>,
    pub conductor: Option<Conductor>,
    pub audit: Audit,
    pub faults: Faults,
    pub epochs: u64,
    flying: VecDeque<Flying>,
    next_reply: ReplyId,
    /// Requests the reigning conductor has not answered: who asked.
    workers: Vec<SimWorker>,
    engines: Vec<SimEngine>,
    trainers: Vec<SimTrainer>,
    attempt: u64,
    folders: BTreeSet<String>,
    /// Digest of the weights each folder holds.
    contents: BTreeMap<String, String>,
    settings: u64,
    checkpoints: u64,
    next_ref: u64,
    /// Space is given back at these times instead of hardly ever.
    pub give_back: Option<GiveBack>,
    /// Bytes of each pack whose file is there.
    packs: BTreeMap<String, u64>,
    pub removed_packs: BTreeSet<String>,
    pub moved: u64,
    /// Times each group was generated.
    pub generated: BTreeMap<u64, u64>,
    pub deaths: BTreeMap<&'static str, u64>,
    /// Nobody works: groups wait.
    pub workers_idle: bool,
    pub pass_rate: f64,
    pub alike: bool,
    stopped_by_operator: bool,
    pub trace: Vec<String>,
}

impl World {
    pub fn new(seed: u64, config: RunConfig, faults: Faults) -> Self {
        let engine = |n: usize| SimEngine {
            address: EngineAddress { name: format!("engine-{n}"), url: format!("http://e{n}") },
            alive: true,
            version: 0,
            paused: false,
            job: None,
            answers: 0,
        };
        let worker = |n: usize| SimWorker {
            id: WorkerId { name: format!("worker-{n}"), incarnation: "0".to_owned(), node: format!("node-{n}") },
            lives: 0,
            held: BTreeMap::new(),
            finished: Vec::new(),
            failed: Vec::new(),
            asked: None,
            offered: None,
            renewed: 0,
        };
        Self {
            config,
            rng: Rng::new(seed),
            now: 1_000_000,
            journal: Vec::new(),
            resumed: None,
            conductor: None,
            audit: Audit::default(),
            faults,
            epochs: 0,
            flying: VecDeque::new(),
            next_reply: 1,
            workers: (0..2).map(worker).collect(),
            engines: (0..2).map(engine).collect(),
            trainers: Vec::new(),
            attempt: 0,
            folders: BTreeSet::new(),
            contents: BTreeMap::new(),
            settings: 0,
            checkpoints: 0,
            next_ref: 0,
            give_back: None,
            packs: BTreeMap::new(),
            removed_packs: BTreeSet::new(),
            moved: 0,
            generated: BTreeMap::new(),
            deaths: BTreeMap::new(),
            workers_idle: false,
            pass_rate: 0.6,
            alike: false,
            stopped_by_operator: false,
            trace: Vec::new(),
        }
    }

    /// Will begin as its configuration asks, with a commit of `other`.
    pub fn resume(&mut self, other: &World) {
        let from = self.config.frozen.resume_from.as_ref().expect("the configuration asks for it");
        let found = conductor::resumed::find(other.state(), from, &self.config);
        if let Ok(found) = &found {
            let folder = found.resumed.commit.folder.clone();
            self.contents.insert(folder.clone(), other.contents[&found.folder].clone());
            self.folders.insert(folder);
        }
        self.resumed = Some(found.map(|found| found.resumed));
    }

    /// Step that the run began with.
    fn began(&self) -> u64 {
        self.resumed.iter().flatten().map(|resumed| resumed.commit.step).sum()
    }

    /// Turns with faults, then without until the run is over. Gives the turns it took.
    pub fn run(&mut self, faulty_turns: u64, turns_max: u64) -> u64 {
        for turn in 0..turns_max {
            if turn == faulty_turns {
                self.faults = Faults::default();
            }
            self.turn();
            if self.is_over() {
                return turn;
            }
        }
        let progress = self.conductor.as_ref().map(|c| {
            let mut shown = c.progress(self.now);
            shown.events.clear();
            shown.last_step = None;
            shown
        });
        let trainers: Vec<_> = self
            .trainers
            .iter()
            .filter(|trainer| !trainer.over)
            .map(|t| (t.attempt, t.epoch, t.done, t.asked, t.busy.is_some(), t.reported.is_some()))
            .collect();
        let last: Vec<_> = self.trace.iter().rev().take(12).collect();
        panic!(
            "not over after {turns_max} turns: {progress:?}\nattempt {}, trainers {trainers:?}\nlast: {last:#?}",
            self.attempt
        );
    }

    pub fn is_over(&self) -> bool {
        self.conductor.as_ref().is_some_and(|c| c.state().finished || c.state().failure.is_some())
            && self.trainers.iter().all(|trainer| trainer.over)
    }

    pub fn state(&self) -> &State {
        self.conductor.as_ref().expect("a conductor reigns").state()
    }

    fn note(&mut self, what: impl Into<String>) {
        self.trace.push(what.into());
        if self.trace.len() > 4000 {
            self.trace.drain(..2000);
        }
    }

    /// One thing happens.
    pub fn turn(&mut self) {
        self.now += self.rng.below(20);
        if self.conductor.is_none() {
            self.enthrone();
            return;
        }
        if self.rng.permille(self.faults.conductor) {
            self.depose();
            return;
        }
        self.people_die();
        if self.rng.permille(self.faults.operator) {
            self.operator_acts();
        }
        match self.rng.below(10) {
            0..=3 => self.deliver(),
            4 | 5 if self.workers_idle => {}
            4 | 5 => self.worker_acts(),
            6 | 7 => self.trainer_acts(),
            8 => self.engine_acts(),
            _ => {
                if self.rng.permille(self.faults.silence) {
                    self.now += 40_000;
                }
                self.send(Event::Tick, 0);
            }
        }
    }

    /// Turns until `done` holds.
    pub fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        for _ in 0..200_000 {
            if self.conductor.is_some() && done(self) {
                return;
            }
            self.turn();
        }
        panic!("never: {what}");
    }

    /// Hands an event to the conductor now; gives the commands, which are carried out too, and the answer to this request.
    pub fn now(&mut self, event: impl FnOnce(ReplyId) -> Event) -> (Vec<Command>, Option<Reply>) {
        let id = self.next_reply;
        self.next_reply += 1;
        let step = self.conductor.as_mut().expect("a conductor reigns").step(event(id), self.now).unwrap();
        let commands = step.commands.clone();
        self.commit(step);
        let answer = commands.iter().find_map(|command| match command {
            Command::Reply(to, reply) if *to == id => Some(reply.clone()),
            _ => None,
        });
        (commands, answer)
    }

    /// The conductor dies, and another takes over. Gives what it commands at once.
    pub fn succeed(&mut self) {
        self.depose();
        self.enthrone();
    }

    /// Nobody but the test acts from now on.
    pub fn hush(&mut self) {
        self.flying.clear();
    }

    /// The engines as the Service names them.
    pub fn engines_named(&self) -> Event {
        Event::Engines(self.engines.iter().map(|engine| engine.address.clone()).collect())
    }

    pub fn engine_urls(&self) -> Vec<String> {
        self.engines.iter().map(|engine| engine.address.url.clone()).collect()
    }

    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    pub fn new_ref(&mut self) -> Ref {
        self.fresh_ref()
    }

    pub fn claim_request(&self, attempt: u64, incarnation: &str) -> ClaimRequest {
        let layout = Layout { dp: 2, tp: 1, pp: 1, cp: 1 };
        ClaimRequest {
            run: "uid".to_owned(),
            attempt,
            incarnation: incarnation.to_owned(),
            pod: "t-0".to_owned(),
            layout,
        }
    }

    // ------------------------------------------------------------ the conductor

    /// A conductor takes over, with nothing but the journal.
    fn enthrone(&mut self) {
        self.epochs += 1;
        let mut state = State::default();
        for record in &self.journal {
            state.apply(record).expect("a journal can be replayed");
        }
        // A snapshot is as good as the records before it.
        let snapshot = conductor::Snapshot { state, audit: self.audit.clone(), steps_bytes: 0 };
        let state = conductor::Snapshot::decode(&snapshot.encode().unwrap()).unwrap().state;
        let resumed = self.resumed.clone().filter(|_| state.run.is_none());
        let (mut conductor, step) = Conductor::open(state, self.epochs, "pod", self.config.clone(), resumed, self.now)
            .expect("a journal can be taken over");
        if let Some(rule) = self.give_back {
            conductor.set_give_back(rule);
        }
        self.conductor = Some(conductor);
        self.note(format!("conductor {}", self.epochs));
        self.commit(step);
        let engines = self.engines.iter().map(|engine| engine.address.clone()).collect();
        self.send(Event::Engines(engines), 0);
    }

    /// The conductor is gone, and with it every request it held.
    fn depose(&mut self) {
        self.died("conductor");
        self.conductor = None;
        self.flying.clear();
        for worker in &mut self.workers {
            (worker.asked, worker.offered) = (None, None);
        }
        for trainer in &mut self.trainers {
            trainer.asked = None;
        }
    }

    fn died(&mut self, who: &'static str) {
        *self.deaths.entry(who).or_default() += 1;
        self.note(format!("{who} dies"));
    }

    fn deliver(&mut self) {
        for _ in 0..1 + self.rng.below(4) {
            if self.flying.is_empty() {
                return;
            }
            // Mostly in order, sometimes not.
            let at = if self.rng.permille(200) { self.rng.below(self.flying.len() as u64) as usize } else { 0 };
            let Some(Flying { event, to }) = self.flying.remove(at) else { return };
            let Some(conductor) = &mut self.conductor else { return };
            if to != 0 && to != conductor.epoch() {
                continue;
            }
            let step = conductor.step(event, self.now).expect("the brain is consistent");
            if !self.commit(step) {
                return;
            }
        }
    }

    /// Journals, then acts. With some probability the conductor dies in between: after any number of the records, having
    /// done any number of the commands. False then.
    fn commit(&mut self, step: Step) -> bool {
        let Step { records, commands, .. } = step;
        let dies = !records.is_empty() && self.rng.permille(self.faults.conductor * 3);
        let durable = if dies { self.rng.below(records.len() as u64 + 1) as usize } else { records.len() };
        for record in records.iter().take(durable) {
            let record = Record::decode(&record.encode().unwrap()).unwrap();
            self.audit.observe(&record);
            self.trace.push(format!("{record:?}").chars().take(200).collect());
            self.journal.push(record);
        }
        if let Some(violation) = self.audit.first_violation() {
            panic!("{violation}\nlast: {:#?}", self.trace.iter().rev().take(40).collect::<Vec<_>>());
        }
        let acted = match dies {
            true if durable < records.len() => 0,
            true => self.rng.below(commands.len() as u64 + 1) as usize,
            false => commands.len(),
        };
        for command in commands.into_iter().take(acted) {
            self.perform(command);
        }
        if dies {
            self.depose();
        }
        !dies
    }

    fn perform(&mut self, command: Command) {
        let epoch = self.epochs;
        match command {
            Command::Reply(id, reply) => self.answer(id, reply),
            Command::Convert { step, groups, .. } => {
                assert!(!groups.is_empty(), "a batch has groups");
                groups.iter().for_each(|(_, group)| self.is_there(group));
                let shapes: Vec<Shape> = groups
                    .iter()
                    .flat_map(|(group, _)| {
                        (0..4).map(move |n| Shape { tokens: 10, loss_tokens: 5, rollout_id: group * 1024 + n })
                    })
                    .collect();
                let batch = Converted::new(
                    self.fresh_ref(),
                    &shapes,
                    BatchStats { samples: shapes.len() as u64, ..BatchStats::default() },
                );
                let result = if self.rng.permille(self.faults.update) {
                    Err("no space".to_owned())
                } else {
                    Ok(Box::new(batch))
                };
                self.send(Event::Converted { step, result }, epoch);
            }
            Command::ConvertWarm { first, rows } => {
                let shapes = [Shape { tokens: 9, loss_tokens: 4, rollout_id: 0 }];
                let batches =
                    rows.iter().map(|_| Converted::new(self.fresh_ref(), &shapes, BatchStats::default())).collect();
                let result =
                    if self.rng.permille(self.faults.update) { Err("no space".to_owned()) } else { Ok(batches) };
                self.send(Event::WarmConverted { first, result }, epoch);
            }
            Command::VerifyTiles { trainer_epoch, seq, folder, .. } => {
                assert!(self.folders.contains(&folder), "{folder} is verified and not there");
                self.send(Event::TilesVerified { trainer_epoch, seq, result: Ok(()) }, epoch);
            }
            Command::UpdateEngine { url, version, folder } => {
                let Some(engine) = self.engines.iter_mut().find(|engine| engine.address.url == url) else { return };
                if !engine.alive {
                    self.send(Event::EngineUpdated { url, version, result: Err("gone".to_owned()) }, epoch);
                    return;
                }
                engine.paused = true;
                engine.job = Some((version, folder, epoch));
            }
            Command::ResumeEngine { url } => {
                let Some(engine) = self.engines.iter_mut().find(|engine| engine.address.url == url) else { return };
                if engine.alive {
                    engine.paused = false;
                }
                let result = if engine.alive { Ok(()) } else { Err("gone".to_owned()) };
                self.send(Event::EngineResumed { url, result }, epoch);
            }
            Command::ListFolders => {
                let folders = self.folders.iter().cloned().collect();
                self.send(Event::FoldersFound(folders), epoch);
            }
            Command::Score { version, engines, scores } => {
                assert!(!engines.is_empty());
                self.is_there(&scores.set.batch);
                let result = if self.rng.permille(self.faults.update) { Err("busy".to_owned()) } else { Ok((0.0, 8)) };
                self.send(Event::Scored { version, result }, epoch);
            }
            Command::ListPacks if self.give_back.is_some() => {
                let written = [self.pack_of("p"), self.pack_of("c")];
                let packs = self.packs.iter().filter(|(name, _)| !written.contains(name));
                let info = |(name, bytes): (&String, &u64)| straw::PackInfo {
                    name: name.clone(),
                    owner: "nobody".to_owned(),
                    bytes: *bytes,
                    sealed: true,
                    abandoned: false,
                };
                let packs = packs.map(info).collect();
                self.send(Event::PacksFound(packs), epoch);
            }
            Command::ListPacks => {}
            Command::RemovePacks { retired } => {
                for pack in retired {
                    if self.packs.remove(&pack).is_some() {
                        self.removed_packs.insert(pack);
                    }
                }
            }
            Command::CopyRecords { records, .. } => {
                let result = if self.rng.permille(self.faults.update) {
                    Err("no space".to_owned())
                } else {
                    records.iter().for_each(|record| self.is_there(record));
                    Ok(records.into_iter().map(|record| (record.clone(), self.copy_of(&record))).collect())
                };
                self.send(Event::RecordsCopied(result), epoch);
            }
            Command::DeleteFolder { folder } => {
                self.folders.remove(&folder);
                self.send(Event::FolderDeleted { folder, result: Ok(()) }, epoch);
            }
        }
    }

    /// The pack that is written to now: of workers and conversions, or of copies.
    fn pack_of(&self, kind: &str) -> String {
        format!("{kind}-{}", self.next_ref / REFS_OF_A_PACK)
    }

    fn fresh_ref(&mut self) -> Ref {
        self.next_ref += 1;
        self.place("p", self.next_ref as u32)
    }

    /// Its copy: the same bytes elsewhere.
    fn copy_of(&mut self, record: &Ref) -> Ref {
        self.next_ref += 1;
        self.moved += 1;
        self.place("c", record.crc)
    }

    fn place(&mut self, kind: &str, crc: u32) -> Ref {
        let pack = self.pack_of(kind);
        *self.packs.entry(pack.clone()).or_default() += 100;
        Ref { pack, offset: self.next_ref * 100, len: 100, head: 10, crc, ..Ref::default() }
    }

    /// Whoever reads it now finds it.
    fn is_there(&self, record: &Ref) {
        assert!(!self.removed_packs.contains(&record.pack), "{record:?} is read, and its pack is gone");
    }

    fn send(&mut self, event: Event, to: u64) {
        self.flying.push_back(Flying { event, to });
    }

    fn ask(&mut self, event: impl FnOnce(ReplyId) -> Event) -> ReplyId {
        let id = self.next_reply;
        self.next_reply += 1;
        self.send(event(id), self.epochs);
        id
    }

    fn answer(&mut self, id: ReplyId, reply: Reply) {
        if let Some(at) = self.workers.iter().position(|worker| worker.asked == Some(id)) {
            self.worker_leased(at, reply);
        } else if let Some(at) =
            self.workers.iter().position(|worker| worker.offered.as_ref().is_some_and(|(asked, _)| *asked == id))
        {
            self.worker_offered(at, &reply);
        } else if let Some(at) = self.trainers.iter().position(|trainer| trainer.asked == Some(id)) {
            self.trainer_answered(at, reply);
        }
        // Else: whoever asked has died meanwhile.
    }

    // ------------------------------------------------------------ workers

    /// The version of some engine that generates now.
    fn generating_version(&mut self) -> Option<u64> {
        let open: Vec<u64> = self
            .engines
            .iter()
            .filter(|engine| engine.alive && !engine.paused && engine.version > 0)
            .map(|engine| engine.version)
            .collect();
        let at = self.rng.below(open.len() as u64) as usize;
        open.get(at).copied()
    }

    fn worker_leased(&mut self, at: usize, reply: Reply) {
        let version = self.generating_version();
        let worker = &mut self.workers[at];
        worker.asked = None;
        if let Reply::Lease { grants, abandon, .. } = reply {
            for task in abandon {
                worker.held.remove(&task);
            }
            for grant in grants {
                assert_eq!(grant.seeds.len(), if grant.kind == TaskKind::Eval { 1 } else { 4 });
                // A worker that is at it already takes the new lease over.
                let version = worker.held.get(&grant.task).map(|(_, version)| *version).or(version).unwrap_or(0);
                worker.held.insert(grant.task, (grant, version));
            }
        }
    }

    fn worker_offered(&mut self, at: usize, reply: &Reply) {
        let Some((_, offered)) = self.workers[at].offered.take() else { return };
        match reply {
            Reply::Complete(reply) => {
                assert_eq!(reply.outcomes.len(), offered.len(), "an answer for each");
                for (submission, outcome) in offered.iter().zip(&reply.outcomes) {
                    if matches!(outcome, Outcome::Refused { kind: RefusalKind::PackCollected, .. }) {
                        // Published again, into another pack.
                        let group = self.fresh_ref();
                        let finished = &mut self.workers[at].finished;
                        let again = finished.iter_mut().find(|finished| finished.submission == *submission);
                        again.into_iter().for_each(|finished| finished.group = group.clone());
                        continue;
                    }
                    assert!(!matches!(outcome, Outcome::Refused { .. }), "nothing is wrong with it: {outcome:?}");
                    self.workers[at].finished.retain(|finished| finished.submission != *submission);
                }
            }
            Reply::Refused(refusal) if refusal.kind == RefusalKind::Unavailable => {}
            other => panic!("an offer was answered with {other:?}"),
        }
    }

    fn worker_acts(&mut self) {
        let at = self.rng.below(self.workers.len() as u64) as usize;
        let version = self.generating_version();
        let fails = self.rng.permille(self.faults.group);
        let (reward, alike) = (self.pass_rate, self.alike);
        let group_ref = self.fresh_ref();
        let choice = self.rng.next();
        let rewards: Vec<f64> =
            (0..4).map(|_| if self.rng.permille((reward * 1000.0) as u64) { 1.0 } else { 0.0 }).collect();
        let worker = &mut self.workers[at];
        if worker.offered.is_none() && !worker.finished.is_empty() && choice.is_multiple_of(3) {
            // One, or a few in one call.
            let index = (choice / 3) as usize % worker.finished.len();
            let few = 1 + (choice / 1000) as usize % 3;
            let results: Vec<Finished> = worker.finished.iter().skip(index).take(few).cloned().collect();
            let submissions = results.iter().map(|finished| finished.submission.clone()).collect();
            let request = CompleteRequest { worker: worker.id.clone(), results };
            let id = self.ask(|id| Event::Complete(id, Box::new(request)));
            self.workers[at].offered = Some((id, submissions));
            return;
        }
        if self.now > worker.renewed + 4_000 && !worker.held.is_empty() {
            worker.renewed = self.now;
            let (id, leases) = (
                worker.id.clone(),
                worker.held.iter().map(|(task, (grant, _))| (grant.lease.clone(), *task)).collect(),
            );
            self.ask(|reply| Event::Renew(reply, control::wire::RenewRequest { worker: id, leases }));
            return;
        }
        // Finish something, if an engine generates.
        if let (Some(now_at), false) = (version, worker.held.is_empty()) {
            let index = (choice / 7) as usize % worker.held.len();
            let Some((&task, _)) = worker.held.iter().nth(index) else { return };
            let Some((grant, began)) = worker.held.remove(&task) else { return };
            if fails {
                let (id, lease) = (worker.id.clone(), grant.lease);
                self.ask(|reply| {
                    Event::Fail(reply, FailRequest { worker: id, lease, task, reason: "a fault".to_owned() })
                });
                return;
            }
            // Requests wait for an engine: whatever it was leased at, it is generated by what answers now or before.
            let began = if began == 0 { now_at } else { began };
            let samples = grant.seeds.len();
            let mut rewards: Vec<f64> = rewards.into_iter().take(samples).collect();
            if alike && grant.kind == TaskKind::Train && task.is_multiple_of(3) {
                rewards = vec![1.0; samples];
            }
            if grant.kind == TaskKind::Eval && grant.row == 0 && reward > 0.0 {
                // Seldom right is right sometimes.
                rewards = vec![1.0];
            }
            let summary = GroupSummary {
                group_index: task,
                rewards,
                failed: 0,
                version_min: began.min(now_at),
                version_max: began.max(now_at),
                response_tokens: 5,
                tokens: 10,
                generate_calls: samples as u32,
            };
            let submission = format!("{}/{}/{task}", worker.id.incarnation, grant.lease);
            worker.finished.push(Finished { lease: grant.lease, task, submission, group: group_ref, summary });
            *self.generated.entry(task).or_default() += 1;
            return;
        }
        if worker.asked.is_none() {
            let (id, want) = (worker.id.clone(), 4u32.saturating_sub(worker.held.len() as u32));
            let asked = self.ask(|reply| Event::Lease(reply, LeaseRequest { worker: id, want, wait_ms: 2_000 }));
            self.workers[at].asked = Some(asked);
        }
    }

    // ------------------------------------------------------------ engines

    fn engine_acts(&mut self) {
        let at = self.rng.below(self.engines.len() as u64) as usize;
        let fails = self.rng.permille(self.faults.update);
        let engine = &mut self.engines[at];
        if !engine.alive {
            engine.alive = true;
            (engine.version, engine.paused, engine.job) = (0, false, None);
        }
        let url = engine.address.url.clone();
        if let Some((version, folder, epoch)) = engine.job.take() {
            let there = self.folders.contains(&folder);
            if !fails && there {
                self.engines[at].version = version;
                self.engines[at].answers += 1;
                self.send(Event::EngineUpdated { url, version, result: Ok(()) }, epoch);
            } else {
                assert!(there || epoch != self.epochs, "{folder} was deleted under an engine that was told to load it");
                self.send(Event::EngineUpdated { url, version, result: Err("a fault".to_owned()) }, epoch);
            }
            return;
        }
        let version = engine.version;
        self.send(Event::EngineProbed { url, result: Ok(version) }, 0);
    }

    // ------------------------------------------------------------ trainers

    fn trainer_acts(&mut self) {
        let living = self.trainers.iter().any(|trainer| trainer.attempt == self.attempt && !trainer.over);
        if !living {
            let over = self.conductor.as_ref().is_some_and(|c| c.state().finished || c.state().failure.is_some());
            if !over || self.attempt == 0 {
                self.start_attempt();
                return;
            }
            // Zombies still have to learn that it is over.
        }
        let living: Vec<usize> = (0..self.trainers.len()).filter(|at| !self.trainers[*at].over).collect();
        if living.is_empty() {
            return;
        }
        let at = living[self.rng.below(living.len() as u64) as usize];
        let trainer = &mut self.trainers[at];
        if trainer.asked.is_some() {
            return;
        }
        let Some(trainer_epoch) = trainer.epoch else {
            let request = ClaimRequest {
                run: "uid".to_owned(),
                attempt: trainer.attempt,
                incarnation: trainer.incarnation.to_string(),
                pod: "t-0".to_owned(),
                layout: trainer.layout,
            };
            let id = self.ask(|reply| Event::Claim(reply, request));
            self.trainers[at].asked = Some(id);
            return;
        };
        if let Some((seq, report)) = trainer.reported.clone() {
            let request = ReportRequest { run: "uid".to_owned(), trainer_epoch, seq, report };
            let id = self.ask(|reply| Event::Report(reply, Box::new(request)));
            self.trainers[at].asked = Some(id);
            return;
        }
        if let Some(work) = trainer.busy.take() {
            self.obey(at, work, trainer_epoch);
            return;
        }
        let request =
            NextRequest { run: "uid".to_owned(), trainer_epoch, done: trainer.done, wait_ms: 1_000, waiting_for: None };
        let id = self.ask(|reply| Event::Next(reply, request));
        self.trainers[at].asked = Some(id);
    }

    fn start_attempt(&mut self) {
        self.attempt += 1;
        let dp = 1 + self.rng.below(3) as usize;
        let trainer = SimTrainer {
            attempt: self.attempt,
            incarnation: self.rng.next(),
            epoch: None,
            done: 0,
            learnt: String::new(),
            busy: None,
            reported: None,
            asked: None,
            over: false,
            layout: Layout { dp, tp: 1, pp: 1, cp: 1 },
        };
        self.trainers.push(trainer);
        self.stopped_by_operator = false;
    }

    /// What rank 0 does with an order. A zombie does it too: it does not know that it is one.
    fn obey(&mut self, at: usize, work: Work, epoch: u64) {
        let read = match &work.order {
            Order::Train(order) => Some(&order.batch),
            Order::Publish { score: Some(set), .. } => Some(&set.batch),
            _ => None,
        };
        let claimed = self.journal.iter().rev().find_map(|record| match record {
            Record::Claimed { trainer_epoch, .. } => Some(*trainer_epoch),
            _ => None,
        });
        // Who is superseded may find nothing any more.
        if claimed == Some(epoch) {
            read.into_iter().for_each(|batch| self.is_there(batch));
        }
        let trainer = &mut self.trainers[at];
        let report = match &work.order {
            Order::Train(order) => {
                let layout = trainer.layout;
                for update in &order.updates {
                    assert_eq!(update.micro_batches.len(), layout.dp, "the plan is for this attempt's layout");
                }
                let name = if order.phase == control::wire::Phase::Rl { "s" } else { "w" };
                // The batch's own bytes, wherever they lie: the same step with another batch would be another history.
                trainer.learnt.push_str(&format!("{name}{}@{},", order.step, order.batch.crc));
                Report::Trained(Box::new(TrainMetrics { tokens: 100, ..TrainMetrics::default() }))
            }
            Order::Save { folder, .. } => {
                assert!(folder.ends_with(&format!("-e{epoch}")), "{folder} is this epoch's own");
                let digest = trainer.learnt.clone();
                self.folders.insert(folder.clone());
                self.contents.insert(folder.clone(), digest.clone());
                Report::Tiles { index_digest: format!("index of {digest}"), weights_digest: digest, bytes: 1 }
            }
            Order::Publish { folder, score, .. } => {
                assert!(folder.ends_with(&format!("-e{epoch}")), "{folder} is this epoch's own");
                let digest = trainer.learnt.clone();
                self.folders.insert(folder.clone());
                self.contents.insert(folder.clone(), digest.clone());
                let scored = |set: control::wire::ScoreSet| {
                    assert_eq!(set.samples.len(), 8, "spread over the batch: {:?}", set.samples);
                    control::wire::Scores { set, log_probs: vec![vec![-1.0]; 8] }
                };
                Report::Weights { weights_digest: digest, bytes: 1, scores: score.clone().map(scored) }
            }
            Order::BeginRl => {
                trainer.learnt.push_str("rl,");
                Report::RlBegun
            }
            Order::Export { .. } => Report::Exported { bytes: 1 },
            Order::Stop { .. } => Report::Stopping,
            Order::Finish => Report::Finished,
        };
        self.trainers[at].reported = Some((work.seq, report));
    }

    fn trainer_answered(&mut self, at: usize, reply: Reply) {
        let contents = &self.contents;
        let trainer = &mut self.trainers[at];
        trainer.asked = None;
        match reply {
            Reply::Claim(claim) => {
                trainer.epoch = Some(claim.trainer_epoch);
                if let Start::Commit(commit) = &claim.start {
                    assert!(self.folders.contains(&commit.folder), "the commit's tiles {} are gone", commit.folder);
                    trainer.learnt = contents[&commit.folder].clone();
                    assert_eq!(trainer.learnt, commit.weights_digest, "tiles hold what the commit says");
                }
            }
            Reply::Next(next) => {
                if let Some(work) = next.work {
                    assert_eq!(work.seq, trainer.done + 1);
                    trainer.busy = Some(work);
                }
            }
            Reply::Report(_) => {
                if let Some((seq, report)) = trainer.reported.take() {
                    trainer.done = seq;
                    trainer.over = matches!(report, Report::Stopping | Report::Finished);
                }
            }
            Reply::Refused(refusal) if refusal.kind == RefusalKind::Fenced => {
                trainer.over = true;
                assert!(
                    trainer.attempt < self.attempt || self.stopped_by_operator,
                    "the living attempt {} is refused: {}",
                    trainer.attempt,
                    refusal.message
                );
            }
            Reply::Refused(refusal) => panic!("the trainer is refused: {refusal:?}"),
            other => panic!("the trainer is answered with {other:?}"),
        }
    }

    // ------------------------------------------------------------ deaths

    fn people_die(&mut self) {
        if self.rng.permille(self.faults.trainer) {
            self.trainer_dies();
        }
        if self.rng.permille(self.faults.worker) {
            let at = self.rng.below(self.workers.len() as u64) as usize;
            self.worker_dies(at);
        }
        if self.rng.permille(self.faults.engine) {
            let at = self.rng.below(self.engines.len() as u64) as usize;
            self.engine_dies(at);
        }
    }

    /// The living attempt dies, and the operator starts the next.
    pub fn trainer_dies(&mut self) {
        let living = self.trainers.iter().position(|trainer| trainer.attempt == self.attempt && !trainer.over);
        let Some(at) = living else { return };
        self.died("trainer");
        // Some live on, on a node that nobody reaches: their epoch is superseded when the next attempt claims.
        if !self.rng.permille(self.faults.zombie) {
            self.trainers[at].over = true;
        }
        self.start_attempt();
    }

    fn worker_dies(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        worker.lives += 1;
        worker.id.incarnation = worker.lives.to_string();
        worker.held.clear();
        worker.finished.clear();
        (worker.asked, worker.offered) = (None, None);
        self.died("worker");
    }

    fn engine_dies(&mut self, at: usize) {
        let engine = &mut self.engines[at];
        engine.alive = false;
        let url = engine.address.url.clone();
        if let Some((version, _, epoch)) = engine.job.take() {
            let url = url.clone();
            self.send(Event::EngineUpdated { url, version, result: Err("reset".to_owned()) }, epoch);
        }
        self.send(Event::EngineProbed { url, result: Err(Unreached::gone("refused")) }, 0);
        self.died("engine");
    }

    /// Every process is killed at once. What is left is the journal and the volume.
    pub fn everybody_dies(&mut self) {
        self.trainer_dies();
        (0..self.workers.len()).for_each(|at| self.worker_dies(at));
        (0..self.engines.len()).for_each(|at| self.engine_dies(at));
        self.succeed();
    }

    /// Folders on the volume.
    pub fn folders(&self) -> &BTreeSet<String> {
        &self.folders
    }

    /// Rows of the groups of each accepted batch, by step.
    pub fn rows_by_step(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut rows = BTreeMap::new();
        let mut steps = BTreeMap::new();
        for record in &self.journal {
            match record {
                Record::Opened { resumed: Some(resumed), .. } => {
                    rows.extend(resumed.groups.iter().map(|drawn| (drawn.group_index, drawn.row)))
                }
                Record::Refilled { groups, .. } => {
                    rows.extend(groups.iter().map(|drawn| (drawn.group_index, drawn.row)))
                }
                Record::Requeued { groups, .. } => {
                    rows.extend(groups.iter().map(|(_, drawn)| (drawn.group_index, drawn.row)))
                }
                Record::Accepted { step, groups, .. } => {
                    steps.insert(*step, groups.iter().map(|group| rows[group]).collect());
                }
                _ => {}
            }
        }
        steps
    }

    fn operator_acts(&mut self) {
        if self.rng.permille(500) {
            self.settings += 1;
            let number = self.settings;
            let mut config = self.config.clone();
            config.attempt.tokens_max = 32 + self.rng.below(64);
            config.live.checkpoint_every = 1 + self.rng.below(4);
            self.config.attempt = config.attempt.clone();
            self.config.live = config.live.clone();
            let asked = SettingsAsked {
                number,
                fence_attempts_up_to: 0,
                cordoned_nodes: vec![],
                paused: false,
                config: Ok(Box::new(config)),
            };
            self.ask(|reply| Event::Settings(reply, Box::new(asked)));
        } else {
            self.checkpoints += 1;
            let request = CheckpointRequest {
                id: format!("c{}", self.checkpoints),
                attempt: self.attempt,
                then_stop: self.rng.permille(500),
            };
            self.ask(|reply| Event::Checkpoint(reply, request));
        }
    }

    /// What must hold at the end of a run, besides what the checker has looked at all along.
    pub fn check_end(&self) {
        let mut state = State::default();
        for record in &self.journal {
            state.apply(record).unwrap();
        }
        assert_eq!(&state, self.state(), "the state is what the journal adds up to");
        let report = self.audit.report();
        assert!(report.is_sound(), "{report:#?}");
        assert!(report.finished);
        let total = self.state().run.as_ref().unwrap().settings.live.total_steps;
        let steps = total - self.began();
        assert_eq!(report.steps_committed, steps, "{report:#?}");
        assert_eq!(report.groups_batched, steps * self.config.frozen.prompts_per_step);
        assert_eq!(self.state().exported.map(|position| position.step), Some(total));
        // The weights served at the end are those of the last commit, and no older folder is left named.
        let state = self.state();
        let commit = &state.commits.back().unwrap().commit;
        assert_eq!(state.versions[&state.version].digest, commit.weights_digest);
        assert!(
            state.commits.len() as u64
                <= state.run.as_ref().unwrap().settings.live.checkpoint_keep.max(self.config.live.checkpoint_keep)
        );
    }
}
