//! Continuous batching: every iteration decodes one token of each running sequence, and works through prompts with what is left
//! of the token budget.
//!
//! The scheduler is one thread that owns sequences, pages, prefix tree and model; everybody else sends it [`Command`]s. Its
//! rules:
//! - Decode first, then prompts under way, then waiting ones, first come first served.
//! - Out of pages: idle cached pages go first, then the youngest running sequence is retracted (it waits again and its KV is
//!   computed again later). The oldest always goes on, so every sequence ends.
//! - Weights change between iterations only. KV of other weights is never read by a sequence that started after the change.
//! - What a sequence draws depends on its tokens, its seed and the weights; on nothing that is decided here.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use tensor::ops::{SampleParams, TokenStats};
use tokio::sync::oneshot;

use crate::{
    command::{Command, Install, Installed, Load, PauseMode},
    metrics::Metrics,
    outcome::{Alternatives, Finish, Scored},
    pages::{PAGE_TOKENS, PageId, Pages, pages_for},
    prefix::{PrefixTree, ROOT},
    runner::{Batch, RunError, Runner},
    sequence::Sequence,
    shared::Shared,
};

/// An idle scheduler looks up this often, which is what its heartbeat says.
const IDLE_TICK: Duration = Duration::from_millis(500);
/// Throughput is averaged over this.
const RATE_WINDOW: Duration = Duration::from_secs(2);

/// What bounds an iteration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// Prompt tokens of one iteration.
    pub(crate) prefill_tokens: usize,
    pub(crate) prefix_cache: bool,
}

/// A part of a sequence that the current iteration computes.
#[derive(Clone, Copy)]
struct Piece {
    /// Index into `running`.
    at: usize,
    /// Tokens from `computed` on.
    count: usize,
}

/// A prompt position whose successor's log-prob is wanted.
#[derive(Clone, Copy)]
struct Scoring {
    /// Index into `running`.
    at: usize,
    position: usize,
}

/// The scheduler's whole state.
pub(crate) struct Scheduler {
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    metrics: Metrics,
    bounds: Bounds,
    runner: Runner,
    end_tokens: Vec<u32>,

    waiting: VecDeque<Sequence>,
    /// In the order of their admission.
    running: Vec<Sequence>,
    pages: Pages,
    tree: PrefixTree,

    version: Arc<str>,
    /// Counts changes of weights.
    generation: u64,
    has_weights: bool,
    paused: bool,
    draining: bool,
    stopping: bool,
    installing: Option<(Box<Install>, oneshot::Sender<Installed>)>,

    // Reused from iteration to iteration.
    batch: Batch,
    pieces: Vec<Piece>,
    drawing: Vec<usize>,
    scoring: Vec<Scoring>,
    scored_rows: Vec<i32>,
    sample_params: Vec<SampleParams>,
    temperatures: Vec<f32>,
    targets: Vec<u32>,
    found: Vec<PageId>,

    rate: Rate,
    prompt_tokens: u64,
    cached_tokens: u64,
}

impl Scheduler {
    pub(crate) fn new(
        commands: Receiver<Command>,
        shared: Arc<Shared>,
        metrics: Metrics,
        bounds: Bounds,
        runner: Runner,
        end_tokens: Vec<u32>,
    ) -> Self {
        let pages = Pages::new(runner.pages());
        let has_weights = runner.has_weights();
        Self {
            version: shared.weight_version(),
            commands,
            shared,
            metrics,
            bounds,
            runner,
            end_tokens,
            waiting: VecDeque::new(),
            running: Vec::new(),
            pages,
            tree: PrefixTree::new(),
            generation: 0,
            has_weights,
            paused: false,
            draining: false,
            stopping: false,
            installing: None,
            batch: Batch::default(),
            pieces: Vec::new(),
            drawing: Vec::new(),
            scoring: Vec::new(),
            scored_rows: Vec::new(),
            sample_params: Vec::new(),
            temperatures: Vec::new(),
            targets: Vec::new(),
            found: Vec::new(),
            rate: Rate::new(),
            prompt_tokens: 0,
            cached_tokens: 0,
        }
    }

    /// Runs until it is told to stop, or the front is gone.
    ///
    /// # Errors
    /// When the model cannot compute any more; everything in flight is lost.
    pub(crate) fn run(mut self) -> Result<(), RunError> {
        loop {
            self.shared.beat();
            if !self.busy() {
                match self.commands.recv_timeout(IDLE_TICK) {
                    Ok(command) => self.obey(command),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command);
            }
            self.install_if_possible();
            if self.stopping {
                self.abort_all();
            }
            if (self.stopping || self.draining) && self.running.is_empty() && self.waiting.is_empty() {
                return Ok(());
            }
            if self.busy() {
                self.step()?;
            }
            self.publish();
        }
    }

    /// Whether an iteration has something to compute.
    fn busy(&self) -> bool {
        let admissible = !self.waiting.is_empty() && self.installing.is_none();
        self.has_weights && !self.paused && (!self.running.is_empty() || admissible)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => {
                let sequence = Sequence::new(*submission);
                self.metrics.requests.inc();
                // Seats that the next iteration fills do not count.
                let seats = self.bounds.running.saturating_sub(self.running.len());
                if self.waiting.len() >= self.bounds.waiting.saturating_add(seats) {
                    self.end(sequence, Finish::QueueFull);
                } else if !self.has_weights {
                    // The front refuses these; one may have been on its way.
                    self.end(sequence, Finish::Failed("the engine has no weights".to_owned()));
                } else {
                    self.waiting.push_back(sequence);
                }
            }
            Command::Abort(id) => self.abort(id),
            Command::AbortAll => self.abort_all(),
            Command::Pause(mode, done) => {
                match mode {
                    PauseMode::Abort => self.abort_all(),
                    PauseMode::Retract => self.retract_from(0),
                    PauseMode::InPlace => {}
                }
                self.paused = true;
                let _ = done.send(());
            }
            Command::Continue(done) => {
                self.paused = false;
                let _ = done.send(());
            }
            Command::Flush(done) => {
                // What waits during a pause holds no KV.
                let idle = self.running.is_empty() && (self.waiting.is_empty() || self.paused);
                if idle {
                    self.tree.clear(&mut self.pages);
                }
                let _ = done.send(idle);
            }
            Command::Install(install, done) => {
                if install.abort_all {
                    self.abort_all();
                }
                // The front sends one at a time; an older one has been given up.
                self.installing = Some((install, done));
            }
            Command::Rename { version, abort_all, done } => {
                if abort_all {
                    self.abort_all();
                }
                self.version = version.into();
                self.shared.set_weight_version(self.version.clone());
                let _ = done.send(());
            }
            Command::Load(answer) => drop(answer.send(self.load())),
            Command::Drain => self.draining = true,
            Command::Stop => self.stopping = true,
        }
    }

    /// Changes the weights once no running sequence needs the old ones: at once when generation is paused, else when the running
    /// ones have ended (waiting ones stay where they are).
    fn install_if_possible(&mut self) {
        if self.installing.as_ref().is_some_and(|(_, done)| done.is_closed()) {
            self.installing = None;
        }
        if !(self.paused || self.running.is_empty()) {
            return;
        }
        let Some((install, done)) = self.installing.take() else { return };
        self.runner.install(install.weights);
        self.has_weights = true;
        self.generation += 1;
        // Entries of the old weights could never be read again.
        self.tree.clear(&mut self.pages);
        if let Some(version) = install.version {
            self.version = version.into();
        }
        self.shared.installed(self.version.clone(), install.model_path);
        self.metrics.weight_updates.inc();
        let flushed = !install.flush_cache || self.running.is_empty();
        let paused_requests = if self.paused { self.running.len() + self.waiting.len() } else { 0 };
        let _ = done.send(Installed { flushed, paused_requests });
    }

    // ------------------------------------------------------------------ ends

    fn abort(&mut self, id: u64) {
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            let sequence = self.running.remove(at);
            self.end(sequence, Finish::Aborted);
        } else if let Some(at) = self.waiting.iter().position(|sequence| sequence.id == id)
            && let Some(sequence) = self.waiting.remove(at)
        {
            self.end(sequence, Finish::AbortedWaiting);
        }
    }

    fn abort_all(&mut self) {
        while let Some(sequence) = self.running.pop() {
            self.end(sequence, Finish::Aborted);
        }
        while let Some(sequence) = self.waiting.pop_front() {
            self.end(sequence, Finish::AbortedWaiting);
        }
    }

    /// Ends a sequence that is in neither list any more.
    fn end(&mut self, mut sequence: Sequence, finish: Finish) {
        self.release(&mut sequence);
        if matches!(finish, Finish::Aborted | Finish::AbortedWaiting) {
            self.metrics.aborted.inc();
        }
        sequence.finish(finish, &self.version, &self.metrics);
    }

    fn release(&mut self, sequence: &mut Sequence) {
        for page in sequence.pages.drain(..) {
            self.pages.release(page);
        }
        sequence.computed = 0;
        sequence.node = ROOT;
        sequence.known_pages = 0;
    }

    /// Running sequences from index `first` on wait again, before all that wait already, in their order.
    fn retract_from(&mut self, first: usize) {
        while self.running.len() > first
            && let Some(mut sequence) = self.running.pop()
        {
            self.release(&mut sequence);
            sequence.retractions += 1;
            self.metrics.retractions.inc();
            self.waiting.push_front(sequence);
        }
    }

    // ------------------------------------------------------------------ one iteration

    fn step(&mut self) -> Result<(), RunError> {
        self.choose();
        if self.pieces.is_empty() {
            return Ok(());
        }
        self.assemble();
        self.runner.forward(&self.batch)?;
        for piece in &self.pieces {
            self.running[piece.at].computed += piece.count;
        }
        self.remember_pages();
        self.draw_and_score()?;
        self.settle();
        Ok(())
    }

    /// Fills `pieces`, retracting and admitting on the way.
    fn choose(&mut self) {
        self.pieces.clear();
        // Sequences that decode. Victims of a shortage are younger than the one in need, so chosen ones stay.
        let mut at = 0;
        while at < self.running.len() {
            if self.running[at].decoding() {
                if !self.provide(at, 1) {
                    self.make_room(at);
                    continue;
                }
                self.pieces.push(Piece { at, count: 1 });
            }
            at += 1;
        }
        // Prompts under way.
        let decoding = self.pieces.len();
        let mut budget =
            self.bounds.prefill_tokens.saturating_sub(decoding).max(PAGE_TOKENS.min(self.bounds.prefill_tokens));
        let mut rows = self.runner.rows_max().saturating_sub(decoding);
        let mut at = 0;
        while at < self.running.len() && budget > 0 {
            if !self.running[at].decoding() {
                let count = self.chunk(at, budget, &mut rows);
                if count == 0 {
                    at += 1;
                    continue;
                }
                if !self.provide(at, count) {
                    if self.pieces.is_empty() {
                        self.make_room(at);
                        continue;
                    }
                    break;
                }
                self.pieces.push(Piece { at, count });
                budget -= count;
            }
            at += 1;
        }
        self.admit(&mut budget, &mut rows);
    }

    /// Takes waiting sequences in while seats, budget and pages allow it.
    fn admit(&mut self, budget: &mut usize, rows: &mut usize) {
        if self.installing.is_some() || self.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        // Pages that running sequences will want soon: the rest of their tokens and the next one.
        let mut promised: usize = (self.running.iter())
            .map(|sequence| pages_for(sequence.tokens.len() + 1).saturating_sub(sequence.pages.len()))
            .sum();
        while *budget > 0
            && *rows > 0
            && self.running.len() < self.bounds.running
            && let Some(mut sequence) = self.waiting.pop_front()
        {
            self.found.clear();
            if self.bounds.prefix_cache {
                // One token at least must be computed, for its logits; and all whose successors' log-probs are wanted.
                let reusable = sequence.next_scored().unwrap_or(usize::MAX).min(sequence.tokens.len() - 1);
                sequence.node = self.tree.find(&sequence.tokens, reusable / PAGE_TOKENS, &mut self.found);
                // Held before anything is evicted.
                for page in &self.found {
                    self.pages.retain(*page);
                }
            }
            let needed = pages_for(sequence.tokens.len() + 1).min(self.pages.count()) - self.found.len();
            // One that had to go already waits until the others can grow a little, or it would soon go again.
            let spare = if sequence.retractions > 0 { self.running.len() } else { 0 };
            if needed + promised + spare > self.pages.free() + self.pages.idle() {
                for page in self.found.drain(..) {
                    self.pages.release(page);
                }
                sequence.node = ROOT;
                self.waiting.push_front(sequence);
                return;
            }
            sequence.pages.extend_from_slice(&self.found);
            sequence.known_pages = self.found.len();
            sequence.computed = self.found.len() * PAGE_TOKENS;
            sequence.kv_generation = self.generation;
            if sequence.cached_tokens.is_none() {
                sequence.cached_tokens = Some(sequence.computed);
                self.prompt_tokens += sequence.prompt_len as u64;
                self.cached_tokens += sequence.computed as u64;
            }
            sequence.scheduled(now);
            self.running.push(sequence);
            let at = self.running.len() - 1;
            let count = self.chunk(at, *budget, rows);
            promised += needed;
            // Cannot fail: the pages were counted.
            if self.provide(at, count) {
                promised -= needed.min(pages_for(self.running[at].computed + count) - self.found.len());
                self.pieces.push(Piece { at, count });
                *budget -= count;
            }
        }
    }

    /// How many tokens of a prompt to compute next, within a budget of tokens and one of rows of logits, which it takes from.
    fn chunk(&self, at: usize, budget: usize, rows: &mut usize) -> usize {
        let sequence = &self.running[at];
        let mut count = sequence.pending().min(budget);
        if let Some(next) = sequence.next_scored() {
            let unscored = next.saturating_sub(sequence.computed);
            count = count.min(unscored + *rows);
            *rows -= count.saturating_sub(unscored).min(*rows);
        } else if count > 0 {
            *rows = rows.saturating_sub(1);
        }
        count
    }

    /// Gives a running sequence the pages for `count` more tokens, evicting cached ones if need be. On failure it keeps what it
    /// got.
    fn provide(&mut self, at: usize, count: usize) -> bool {
        let sequence = &mut self.running[at];
        let needed = pages_for(sequence.computed + count);
        while sequence.pages.len() < needed {
            let page = self.pages.take().or_else(|| {
                // A few at once, since looking for them costs a walk over the tree.
                let wanted = (needed - sequence.pages.len()).max(self.pages.count() / 32);
                self.tree.evict(&mut self.pages, wanted);
                self.pages.take()
            });
            match page {
                Some(page) => sequence.pages.push(page),
                None => return false,
            }
        }
        true
    }

    /// Frees pages for the sequence at index `at`: the youngest goes, itself if it is the youngest.
    fn make_room(&mut self, at: usize) {
        if self.running.len() == 1 {
            // Lengths were checked against the pool, so one sequence alone always fits.
            if let Some(sequence) = self.running.pop() {
                self.end(sequence, Finish::Failed("KV cache pool is full with one request".to_owned()));
            }
            return;
        }
        let youngest = (self.running.len() - 1).max(at);
        self.retract_from(youngest);
    }

    /// Writes down `pieces` for the model, and which rows of the result are wanted: those to draw from, then those to score.
    fn assemble(&mut self) {
        self.batch.clear();
        self.drawing.clear();
        self.scoring.clear();
        self.scored_rows.clear();
        for piece in &self.pieces {
            let sequence = &self.running[piece.at];
            let range = sequence.computed..sequence.computed + piece.count;
            let first_row = self.batch.push(&sequence.tokens[range.clone()], range.start, &sequence.pages);
            if range.end == sequence.tokens.len() && sequence.params.max_new_tokens != Some(0) {
                self.drawing.push(piece.at);
                self.batch.rows.push((first_row + piece.count - 1) as i32);
            }
            if let Some(next) = sequence.next_scored() {
                for position in next.max(range.start)..range.end.min(sequence.prompt_len - 1) {
                    self.scoring.push(Scoring { at: piece.at, position });
                    self.scored_rows.push((first_row + position - range.start) as i32);
                }
            }
        }
        self.batch.rows.extend_from_slice(&self.scored_rows);
    }

    /// Tells the prefix tree of pages that are full now.
    fn remember_pages(&mut self) {
        if !self.bounds.prefix_cache {
            return;
        }
        for piece in &self.pieces {
            let sequence = &mut self.running[piece.at];
            if sequence.kv_generation != self.generation {
                continue;
            }
            while (sequence.known_pages + 1) * PAGE_TOKENS <= sequence.computed {
                let index = sequence.known_pages;
                let tokens = &sequence.tokens[index * PAGE_TOKENS..(index + 1) * PAGE_TOKENS];
                let own = sequence.pages[index];
                let (node, known) = self.tree.insert(&mut self.pages, sequence.node, tokens, own);
                if known != own {
                    self.pages.retain(known);
                    self.pages.release(own);
                    sequence.pages[index] = known;
                }
                sequence.node = node;
                sequence.known_pages += 1;
            }
        }
    }

    /// Draws the next token of every sequence that is up to date, and scores prompt tokens.
    fn draw_and_score(&mut self) -> Result<(), RunError> {
        self.sample_params.clear();
        self.temperatures.clear();
        for at in &self.drawing {
            let Sequence { params, seed, tokens, .. } = &self.running[*at];
            self.temperatures.push(params.temperature);
            self.sample_params.push(SampleParams {
                temperature: if params.greedy { 0.0 } else { params.temperature },
                top_k: params.top_k.map_or(0, |k| u32::try_from(k).unwrap_or(u32::MAX)),
                top_p: params.top_p,
                min_p: params.min_p,
                seed: *seed,
                position: tokens.len() as u64,
            });
        }
        self.runner.draw(&self.sample_params, &mut self.targets)?;
        for (row, at) in self.drawing.iter().enumerate() {
            let sequence = &self.running[*at];
            if sequence.output_len() < sequence.params.min_new_tokens && !sequence.params.ignore_eos {
                let banned = self.end_tokens.iter().chain(&sequence.params.stop_token_ids);
                self.targets[row] = self.runner.draw_without(row, &self.sample_params[row], banned)?;
            }
        }
        for scoring in &self.scoring {
            let sequence = &self.running[scoring.at];
            self.targets.push(sequence.tokens[scoring.position + 1]);
            self.temperatures.push(sequence.params.temperature);
        }
        if self.targets.is_empty() {
            return Ok(());
        }
        let stats = self.runner.stats(&self.targets, &self.temperatures)?;
        let now = Instant::now();
        let (drawn, scored) = stats.split_at(self.drawing.len());
        for (row, (stats, at)) in drawn.iter().zip(&self.drawing).enumerate() {
            let alternatives = alternatives(&self.runner, &self.running[*at], row, stats)?;
            let (sequence, logp) = (&mut self.running[*at], stats.logp());
            sequence.broken |= !logp.is_finite();
            sequence.push(self.targets[row], logp, alternatives, &self.version, now);
        }
        for (row, (stats, scoring)) in (drawn.len()..).zip(scored.iter().zip(&self.scoring)) {
            let alternatives = alternatives(&self.runner, &self.running[scoring.at], row, stats)?;
            let (sequence, logp) = (&mut self.running[scoring.at], stats.logp());
            sequence.broken |= logp.is_nan();
            sequence.logprobs.input.push(Some(logp));
            sequence.logprobs.input_alternatives.extend(alternatives);
        }
        self.rate.add(drawn.len());
        self.metrics.generation_tokens.inc_by(drawn.len() as u64);
        Ok(())
    }

    /// Ends what has ended, and tells streams what is new.
    fn settle(&mut self) {
        let mut ended: Vec<(usize, Finish)> = Vec::new();
        for piece in &self.pieces {
            let sequence = &mut self.running[piece.at];
            // Its last token is drawn already (one is pending), or there is none to draw.
            let drawn = sequence.computed >= sequence.prompt_len && sequence.pending() <= 1;
            if !drawn {
                continue;
            }
            if sequence.broken {
                ended.push((
                    piece.at,
                    Finish::Failed("the model's output is not finite: its weights are broken".to_owned()),
                ));
            } else if let Some(finish) = sequence.ends(&self.end_tokens) {
                ended.push((piece.at, finish));
            } else {
                sequence.report(&self.version);
            }
        }
        // From the back, so that indices stay true.
        ended.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, finish) in ended {
            let sequence = self.running.remove(at);
            self.end(sequence, finish);
        }
    }

    // ------------------------------------------------------------------ what others see

    fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            retracted: self.waiting.iter().filter(|sequence| sequence.retractions > 0).count(),
            paused: self.paused,
            used_tokens: self.pages.used() * PAGE_TOKENS,
            capacity_tokens: self.pages.count() * PAGE_TOKENS,
            waiting_tokens: self.waiting.iter().map(|sequence| sequence.tokens.len()).sum(),
            gen_throughput: self.rate.per_second(),
            cache_hit_rate: if self.prompt_tokens == 0 {
                0.0
            } else {
                self.cached_tokens as f64 / self.prompt_tokens as f64
            },
        }
    }

    fn publish(&mut self) {
        self.metrics.running.set(self.running.len() as i64);
        self.metrics.queued.set(self.waiting.len() as i64);
        self.metrics.paused.set(i64::from(self.paused));
        self.metrics.used_tokens.set((self.pages.used() * PAGE_TOKENS) as i64);
        self.metrics.gen_throughput.set(self.rate.per_second());
    }
}

/// What a request wants to know of a row beside the token itself.
fn alternatives(
    runner: &Runner,
    sequence: &Sequence,
    row: usize,
    stats: &TokenStats,
) -> Result<Option<Alternatives>, RunError> {
    let Some(wanted) = sequence.logprob.as_ref().filter(|wanted| wanted.alternatives()) else {
        return Ok(None);
    };
    let logits = runner.row(row)?;
    let temperature = sequence.params.temperature;
    let scored = |id: u32| -> Scored {
        let target = logits.get(id as usize).map_or(f32::NEG_INFINITY, |logit| logit / temperature);
        (TokenStats { target, ..*stats }.logp(), id)
    };
    let likelier = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut order: Vec<u32> = Vec::new();
    if wanted.top > 0 {
        order.extend(0..logits.len() as u32);
        if wanted.top < order.len() {
            order.select_nth_unstable_by(wanted.top - 1, likelier);
            order.truncate(wanted.top);
        }
        order.sort_unstable_by(likelier);
    }
    Ok(Some(Alternatives {
        top: order.into_iter().map(scored).collect(),
        ids: wanted.ids.iter().map(|id| scored(*id)).collect(),
    }))
}

/// Tokens per second over the last window.
struct Rate {
    since: Instant,
    tokens: usize,
    last: f64,
}

impl Rate {
    fn new() -> Self {
        Self { since: Instant::now(), tokens: 0, last: 0.0 }
    }

    fn add(&mut self, tokens: usize) {
        let elapsed = self.since.elapsed();
        if elapsed >= RATE_WINDOW {
            self.last = self.tokens as f64 / elapsed.as_secs_f64();
            (self.since, self.tokens) = (Instant::now(), 0);
        }
        self.tokens += tokens;
    }

    fn per_second(&self) -> f64 {
        let elapsed = self.since.elapsed();
        if elapsed >= RATE_WINDOW { self.tokens as f64 / elapsed.as_secs_f64() } else { self.last }
    }
}
