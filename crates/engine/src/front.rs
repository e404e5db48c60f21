//! The front of an engine: what HTTP handlers need to hand requests to the scheduler and to ask it questions.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, atomic::Ordering, mpsc::Sender},
    time::{Duration, Instant},
};

use tokio::sync::{
    mpsc::{UnboundedReceiver, unbounded_channel},
    oneshot,
};

use crate::{
    command::Command,
    http::reply::Refusal,
    options::EngineOptions,
    outcome::Event,
    request::{GenerateRequest, Limits, LogprobRequest},
    runner::Loader,
    sequence::Submission,
    shared::Shared,
    stop::StopStrings,
    text::Text,
};

/// What all handlers share.
pub(crate) struct Front {
    pub(crate) options: EngineOptions,
    pub(crate) shared: Arc<Shared>,
    pub(crate) text: Option<Arc<Text>>,
    pub(crate) limits: Limits,
    pub(crate) loader: Arc<Loader>,
    /// Held while weights are read and installed: the update that began last is served last.
    pub(crate) updates: tokio::sync::Mutex<()>,
    commands: Sender<Command>,
}

impl Front {
    pub(crate) fn new(
        options: EngineOptions,
        shared: Arc<Shared>,
        text: Option<Arc<Text>>,
        limits: Limits,
        loader: Arc<Loader>,
        commands: Sender<Command>,
    ) -> Self {
        Self { options, shared, text, limits, loader, updates: tokio::sync::Mutex::new(()), commands }
    }

    pub(crate) fn tell(&self, command: Command) -> Result<(), Refusal> {
        self.commands.send(command).map_err(|_| gone())
    }

    /// Asks the scheduler and waits for its answer, for `deadline` at most. Given up, the question is void.
    pub(crate) async fn ask<T>(
        &self,
        deadline: Duration,
        what: &str,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.tell(command(answer))?;
        match tokio::time::timeout(deadline, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(gone()),
            Err(_) => Err(Refusal::Unavailable(format!("{what} was given up after {} s", deadline.as_secs()))),
        }
    }

    /// Whether requests can be taken at all.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        if self.shared.draining.load(Ordering::Relaxed) {
            return Err(Refusal::Unavailable("The server is shutting down.".to_owned()));
        }
        if !self.shared.served().has_weights {
            return Err(Refusal::Unavailable(
                "The engine has no weights yet: its model folder holds none, and nothing was published to it. Send \
                 /update_weights_from_disk."
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Hands a request to the scheduler.
    pub(crate) fn submit(self: &Arc<Self>, request: GenerateRequest, stream: bool) -> Result<Live, Refusal> {
        let received = Instant::now();
        let GenerateRequest { rid, prompt, params, logprob } = request;
        // The scheduler counts exactly; this bounds what can pile up before it looks.
        if self.shared.live_count() >= 2 * (self.options.max_running_requests + self.options.max_queued_requests) {
            return Err(Refusal::queue_full());
        }
        let stop_strings = match (&self.text, params.stop.is_empty()) {
            (_, true) => None,
            (Some(text), false) => {
                Some(StopStrings::new(text.clone(), params.stop.clone(), params.skip_special_tokens))
            }
            (None, false) => {
                return Err(Refusal::bad_request(
                    "stop strings need a tokenizer, and the model folder has no tokenizer.json.",
                ));
            }
        };
        let rid: Arc<str> = rid.map_or_else(random_rid, Arc::from);
        let (events, receiver) = unbounded_channel();
        let (skip_special_tokens, no_stop_trim) = (params.skip_special_tokens, params.no_stop_trim);
        let seed = params.sampling_seed.unwrap_or_else(random);
        let (told_prompt, wanted) = (prompt.clone(), logprob.clone());
        let entered = self.shared.enter(&rid, |id| {
            let submission = Submission { id, prompt, params, seed, logprob, stop_strings, stream, received, events };
            self.tell(Command::Submit(Box::new(submission)))
        });
        let id = entered.map_err(|_| Refusal::bad_request(format!("Duplicate request ID detected: {rid}")))??;
        Ok(Live {
            front: self.clone(),
            rid,
            id,
            prompt: told_prompt,
            skip_special_tokens,
            no_stop_trim,
            logprob: wanted,
            events: receiver,
            over: false,
        })
    }
}

/// A request in the scheduler, for the one who waits for it. Dropped before its end (its client went away), it is aborted.
pub(crate) struct Live {
    front: Arc<Front>,
    pub(crate) rid: Arc<str>,
    id: u64,
    pub(crate) prompt: Vec<u32>,
    pub(crate) skip_special_tokens: bool,
    pub(crate) no_stop_trim: bool,
    pub(crate) logprob: Option<LogprobRequest>,
    events: UnboundedReceiver<Event>,
    over: bool,
}

impl Live {
    /// The next event.
    pub(crate) async fn next(&mut self) -> Result<Event, Refusal> {
        match self.events.recv().await {
            Some(event) => Ok(self.note(event)),
            None => Err(gone()),
        }
    }

    /// The next event, if it is here already.
    pub(crate) fn ready(&mut self) -> Option<Event> {
        self.events.try_recv().ok().map(|event| self.note(event))
    }

    fn note(&mut self, event: Event) -> Event {
        self.over |= matches!(event, Event::Done(_));
        event
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if !self.over {
            // A scheduler that is gone has nothing to abort.
            let _ = self.front.tell(Command::Abort(self.id));
        }
        self.front.shared.gone(&self.rid);
    }
}

fn gone() -> Refusal {
    Refusal::Internal("The scheduler has stopped; the engine is about to end.".to_owned())
}

fn random() -> u64 {
    // Every RandomState is keyed anew, from the system's random numbers.
    RandomState::new().hash_one(0)
}

fn random_rid() -> Arc<str> {
    format!("{:016x}{:016x}", random(), random()).into()
}
