//! What the scheduler says of a sequence: what is new, and how it ended.

use std::{sync::Arc, time::Instant};

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// `max_new_tokens` tokens.
    Length,
    /// A token that ends sequences; it is the last of the output.
    StopToken(u32),
    /// A stop string, which the text may be cut at.
    StopString(String),
    /// Aborted after it had been scheduled; what it has is its answer.
    Aborted,
    /// Aborted while it waited.
    AbortedWaiting,
    /// The queue was full.
    QueueFull,
    /// The engine could not go on with it.
    Failed(String),
}

/// The weights that a range of output tokens was drawn with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionSpan {
    pub(crate) version: Arc<str>,
    /// First output token.
    pub(crate) start: usize,
    /// One past the last.
    pub(crate) end: usize,
}

/// Log-prob and id of one token.
pub(crate) type Scored = (f32, u32);

/// What a request asked to know of the distribution at one position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alternatives {
    /// The likeliest tokens, likeliest first.
    pub(crate) top: Vec<Scored>,
    /// The tokens asked for.
    pub(crate) ids: Vec<Scored>,
}

/// Log-probs of a sequence: of the temperature-scaled distribution, before any truncation, in nats.
#[derive(Clone, Debug, Default)]
pub(crate) struct Logprobs {
    /// Of the output tokens.
    pub(crate) output: Vec<f32>,
    /// Of the prompt tokens from the start asked for; the first has none, nothing before it being scored.
    pub(crate) input: Vec<Option<f32>>,
    /// Beside `output`, if asked for.
    pub(crate) output_alternatives: Vec<Alternatives>,
    /// Beside `input`, if asked for.
    pub(crate) input_alternatives: Vec<Alternatives>,
}

/// When things happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) received: Instant,
    pub(crate) scheduled: Option<Instant>,
    pub(crate) first_token: Option<Instant>,
    pub(crate) finished: Option<Instant>,
}

/// What every event of a sequence says.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) prompt_tokens: usize,
    /// Prompt tokens whose KV was found in the prefix cache.
    pub(crate) cached_tokens: usize,
    pub(crate) retractions: usize,
    /// The version of the last token, or the current one before the first.
    pub(crate) weight_version: Arc<str>,
    pub(crate) times: Times,
}

/// A sequence that ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) finish: Finish,
    pub(crate) standing: Standing,
    pub(crate) output_ids: Vec<u32>,
    pub(crate) spans: Vec<VersionSpan>,
    pub(crate) logprobs: Logprobs,
}

/// New tokens of a sequence that goes on.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) standing: Standing,
    pub(crate) output_ids: Vec<u32>,
    pub(crate) logprobs: Logprobs,
}

/// What the scheduler sends to the one who waits for a sequence.
#[derive(Debug)]
pub(crate) enum Event {
    /// To streams only.
    Progress(Box<Progress>),
    /// The last one.
    Done(Box<Outcome>),
}
