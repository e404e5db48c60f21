//! One sequence in the scheduler: its tokens, its pages, and what is known of it so far.

use std::{sync::Arc, time::Instant};

use tokio::sync::mpsc::UnboundedSender;

use crate::{
    metrics::Metrics,
    outcome::{Alternatives, Event, Finish, Logprobs, Outcome, Progress, Standing, Times, VersionSpan},
    pages::PageId,
    prefix::{NodeId, ROOT},
    request::LogprobRequest,
    sampling_params::SamplingParams,
    stop::StopStrings,
};

/// A request as the front hands it over, checked.
pub(crate) struct Submission {
    /// Unique in this process.
    pub(crate) id: u64,
    pub(crate) prompt: Vec<u32>,
    pub(crate) params: SamplingParams,
    /// The seed the request gave, or a random one.
    pub(crate) seed: u64,
    pub(crate) logprob: Option<LogprobRequest>,
    pub(crate) stop_strings: Option<StopStrings>,
    pub(crate) stream: bool,
    pub(crate) received: Instant,
    pub(crate) events: UnboundedSender<Event>,
}

/// A live sequence.
pub(crate) struct Sequence {
    pub(crate) id: u64,
    /// Prompt, then output.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    pub(crate) params: SamplingParams,
    pub(crate) seed: u64,
    pub(crate) logprob: Option<LogprobRequest>,
    pub(crate) stop_strings: Option<StopStrings>,

    /// Tokens whose KV lies in `pages`.
    pub(crate) computed: usize,
    pub(crate) pages: Vec<PageId>,
    /// The prefix tree's node of the last whole page of ours that it knows, and how many it knows.
    pub(crate) node: NodeId,
    pub(crate) known_pages: usize,
    /// Which weights all of the KV was computed with; KV of mixed weights is never shared.
    pub(crate) kv_generation: u64,

    pub(crate) cached_tokens: Option<usize>,
    pub(crate) retractions: usize,
    /// The model gave something that is not a number.
    pub(crate) broken: bool,
    pub(crate) spans: Vec<VersionSpan>,
    pub(crate) logprobs: Logprobs,
    times: Times,
    stream: bool,
    /// Output tokens already sent.
    sent: usize,
    events: UnboundedSender<Event>,
}

impl Sequence {
    pub(crate) fn new(submission: Submission) -> Self {
        let Submission { id, prompt, params, seed, logprob, stop_strings, stream, received, events } = submission;
        let mut tokens = prompt;
        let prompt_len = tokens.len();
        let mut logprobs = Logprobs::default();
        if let Some(wanted) = &logprob
            && wanted.start.is_some_and(|start| start < prompt_len)
        {
            // The first position has nothing before it that would score it.
            logprobs.input.push(None);
            logprobs.input_alternatives.extend(wanted.alternatives().then(Alternatives::default));
        }
        tokens.reserve_exact(params.max_new_tokens.unwrap_or(0).min(1024));
        Self {
            id,
            tokens,
            prompt_len,
            params,
            seed,
            logprob,
            stop_strings,
            computed: 0,
            pages: Vec::new(),
            node: ROOT,
            known_pages: 0,
            kv_generation: 0,
            cached_tokens: None,
            retractions: 0,
            broken: false,
            spans: Vec::new(),
            logprobs,
            times: Times { received, scheduled: None, first_token: None, finished: None },
            stream,
            sent: 0,
            events,
        }
    }

    /// Tokens drawn so far.
    pub(crate) fn output_len(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Tokens that are to be computed before the next can be drawn.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether the next step draws a token from one new position, as opposed to working through a prompt.
    pub(crate) fn decoding(&self) -> bool {
        self.computed >= self.prompt_len && self.pending() == 1
    }

    /// The first position whose successor's log-prob is still wanted, if any prompt log-prob is.
    pub(crate) fn next_scored(&self) -> Option<usize> {
        let start = self.logprob.as_ref()?.start?;
        // The entry of `start` itself is null, so n entries mean that n - 1 positions were scored.
        let next = start + self.logprobs.input.len().saturating_sub(1);
        (next + 1 < self.prompt_len).then_some(next)
    }

    pub(crate) fn scheduled(&mut self, now: Instant) {
        self.times.scheduled.get_or_insert(now);
    }

    /// Adds a drawn token.
    pub(crate) fn push(
        &mut self,
        token: u32,
        logp: f32,
        alternatives: Option<Alternatives>,
        version: &Arc<str>,
        now: Instant,
    ) {
        let at = self.output_len();
        self.tokens.push(token);
        self.times.first_token.get_or_insert(now);
        match self.spans.last_mut() {
            Some(span) if span.version == *version => span.end = at + 1,
            _ => self.spans.push(VersionSpan { version: version.clone(), start: at, end: at + 1 }),
        }
        if self.logprob.is_some() {
            self.logprobs.output.push(logp);
            self.logprobs.output_alternatives.extend(alternatives);
        }
    }

    /// Why the sequence ends with its last token, if it does. An end token counts before the length: an answer that is
    /// complete is not truncated.
    pub(crate) fn ends(&mut self, end_tokens: &[u32]) -> Option<Finish> {
        let output = self.output_len();
        if output == 0 {
            // Only the prompt was to be scored; that it is stands for the first token.
            self.times.first_token.get_or_insert_with(Instant::now);
            return (self.params.max_new_tokens == Some(0)).then_some(Finish::Length);
        }
        let last = *self.tokens.last()?;
        if output >= self.params.min_new_tokens {
            if !self.params.ignore_eos && (end_tokens.contains(&last) || self.params.stop_token_ids.contains(&last)) {
                return Some(Finish::StopToken(last));
            }
            if let Some(stop) = &self.stop_strings
                && let Some(found) = stop.find(&self.tokens[self.prompt_len..])
            {
                return Some(Finish::StopString(found));
            }
        }
        (Some(output) >= self.params.max_new_tokens).then_some(Finish::Length)
    }

    /// Tells a stream what is new.
    pub(crate) fn report(&mut self, current_version: &Arc<str>) {
        let output = self.output_len();
        if !self.stream || output < self.sent + self.params.stream_interval {
            return;
        }
        let from = std::mem::replace(&mut self.sent, output);
        let tail = |list: &[Alternatives]| list.get(from..).unwrap_or_default().to_vec();
        let progress = Progress {
            standing: self.standing(current_version),
            output_ids: self.tokens[self.prompt_len + from..].to_vec(),
            logprobs: Logprobs {
                output: self.logprobs.output.get(from..).unwrap_or_default().to_vec(),
                output_alternatives: tail(&self.logprobs.output_alternatives),
                // With the first event only: they do not change any more.
                input: if from == 0 { self.logprobs.input.clone() } else { Vec::new() },
                input_alternatives: if from == 0 { self.logprobs.input_alternatives.clone() } else { Vec::new() },
            },
        };
        // Nobody listens any more: the abort is under way.
        let _ = self.events.send(Event::Progress(Box::new(progress)));
    }

    /// Ends the sequence, counts it, and tells whoever waits for it. Its pages must be released before.
    pub(crate) fn finish(mut self, finish: Finish, current_version: &Arc<str>, metrics: &Metrics) {
        self.times.finished = Some(Instant::now());
        let standing = self.standing(current_version);
        metrics.finished(&standing, self.output_len());
        if self.spans.is_empty() {
            self.spans.push(VersionSpan { version: current_version.clone(), start: 0, end: 0 });
        }
        let outcome = Outcome {
            finish,
            standing,
            output_ids: self.tokens.split_off(self.prompt_len),
            spans: self.spans,
            logprobs: self.logprobs,
        };
        let _ = self.events.send(Event::Done(Box::new(outcome)));
    }

    fn standing(&self, current_version: &Arc<str>) -> Standing {
        Standing {
            prompt_tokens: self.prompt_len,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            retractions: self.retractions,
            weight_version: self.spans.last().map_or(current_version, |span| &span.version).clone(),
            times: self.times,
        }
    }
}
