//! The answer to `/generate` in SGLang's shape. Written straight to JSON; floats are those of the scheduler, widened, so that a
//! client reads exactly the number that was computed.

use std::{borrow::Cow, time::Instant};

use serde::{Serialize, Serializer, ser::SerializeTuple};

use crate::{
    clock::Clock,
    outcome::{Alternatives, Finish, Logprobs, Standing, VersionSpan},
    request::LogprobRequest,
    stop,
    text::Text,
};

/// One answer, or one event of a stream.
#[derive(Serialize)]
pub(crate) struct Answer<'a> {
    pub(crate) text: Cow<'a, str>,
    pub(crate) output_ids: &'a [u32],
    pub(crate) meta_info: MetaInfo<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<&'a [u32]>,
    /// Place in a streamed batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<usize>,
}

/// `meta_info`. SGLang leaves a key out where this leaves it out; of its keys, those on storage tiers do not exist here.
#[derive(Serialize)]
pub(crate) struct MetaInfo<'a> {
    id: &'a str,
    finish_reason: Option<FinishReason<'a>>,
    prompt_tokens: usize,
    weight_version: &'a str,
    num_retractions: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    forward_entry_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_finished_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_time: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    logprobs: Option<LogprobFields<'a>>,
    reasoning_tokens: usize,
    completion_tokens: usize,
    cached_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_versions: Option<Vec<Span<'a>>>,
    cached_tokens_details: Option<CachedTokens>,
    dp_rank: Option<usize>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    end: Option<EndFields>,
    response_sent_to_client_ts: f64,
}

#[derive(Serialize)]
struct EndFields {
    e2e_latency: f64,
    request_received_ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_token_latency: Option<f64>,
    api_server_dispatch_finish_ts: f64,
    request_finished_ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_throughput: Option<f64>,
}

#[derive(Serialize)]
struct LogprobFields<'a> {
    input_token_logprobs: Scores<'a>,
    output_token_logprobs: Scores<'a>,
    output_token_logprobs_length: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_top_logprobs: Option<Positions<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_top_logprobs: Option<Positions<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_token_ids_logprobs: Option<Positions<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_ids_logprobs: Option<Positions<'a>>,
}

#[derive(Serialize)]
struct Span<'a> {
    version: &'a str,
    start: usize,
    end: usize,
}

#[derive(Serialize)]
struct CachedTokens {
    device: usize,
    host: usize,
}

/// What a [`MetaInfo`] is made of.
pub(crate) struct Facts<'a> {
    pub(crate) rid: &'a str,
    pub(crate) clock: &'a Clock,
    pub(crate) prompt: &'a [u32],
    /// Output tokens so far; `ids` may be the newest of them only.
    pub(crate) completion_tokens: usize,
    /// Output ids that `logprobs.output` belongs to.
    pub(crate) ids: &'a [u32],
    pub(crate) standing: &'a Standing,
    pub(crate) finish: Option<&'a Finish>,
    pub(crate) spans: Option<&'a [VersionSpan]>,
    pub(crate) wanted: Option<&'a LogprobRequest>,
    pub(crate) logprobs: &'a Logprobs,
    /// Set when the text of tokens is wanted and there is a tokenizer.
    pub(crate) text: Option<&'a Text>,
}

impl<'a> MetaInfo<'a> {
    pub(crate) fn new(facts: &Facts<'a>) -> Self {
        let Facts { clock, standing, .. } = *facts;
        let times = &standing.times;
        let since = |at: Instant| at.saturating_duration_since(times.received).as_secs_f64();
        let end = times.finished.map(|finished| EndFields {
            e2e_latency: since(finished),
            request_received_ts: clock.unix(times.received),
            first_token_latency: times.first_token.map(since),
            api_server_dispatch_finish_ts: clock.unix(times.received),
            request_finished_ts: clock.unix(finished),
            decode_throughput: times
                .scheduled
                .map(|scheduled| finished.saturating_duration_since(scheduled).as_secs_f64())
                .filter(|seconds| *seconds > 0.0 && facts.completion_tokens > 0)
                .map(|seconds| facts.completion_tokens as f64 / seconds),
        });
        Self {
            id: facts.rid,
            finish_reason: facts.finish.map(|finish| FinishReason { finish, tokens: facts.completion_tokens }),
            prompt_tokens: standing.prompt_tokens,
            weight_version: &standing.weight_version,
            num_retractions: standing.retractions,
            forward_entry_time: times.scheduled.map(|at| clock.unix(at)),
            prefill_finished_time: times.first_token.or(times.scheduled.and(times.finished)).map(|at| clock.unix(at)),
            queue_time: times.scheduled.map(since),
            logprobs: facts.wanted.map(|wanted| LogprobFields::new(facts, wanted)),
            reasoning_tokens: 0,
            completion_tokens: facts.completion_tokens,
            cached_tokens: standing.cached_tokens,
            weight_versions: facts.spans.map(|spans| {
                spans.iter().map(|span| Span { version: &span.version, start: span.start, end: span.end }).collect()
            }),
            cached_tokens_details: (standing.cached_tokens > 0)
                .then_some(CachedTokens { device: standing.cached_tokens, host: 0 }),
            dp_rank: None,
            end,
            response_sent_to_client_ts: clock.unix(Instant::now()),
        }
    }
}

impl<'a> LogprobFields<'a> {
    fn new(facts: &Facts<'a>, wanted: &LogprobRequest) -> Self {
        let Facts { prompt, ids, logprobs, text, .. } = *facts;
        let prompt = wanted.start.and_then(|start| prompt.get(start..)).unwrap_or_default();
        let text = text.filter(|_| wanted.text);
        let positions = |list, kind, first_is_null| Positions { list, kind, first_is_null, text };
        let (top, asked) = (wanted.top > 0, !wanted.ids.is_empty());
        let (input, output) = (&logprobs.input_alternatives[..], &logprobs.output_alternatives[..]);
        Self {
            input_token_logprobs: Scores { logprobs: ScoreList::Input(&logprobs.input), ids: prompt, text },
            output_token_logprobs: Scores { logprobs: ScoreList::Output(&logprobs.output), ids, text },
            output_token_logprobs_length: facts.completion_tokens,
            input_top_logprobs: top.then(|| positions(input, Kind::Top, true)),
            output_top_logprobs: top.then(|| positions(output, Kind::Top, false)),
            input_token_ids_logprobs: asked.then(|| positions(input, Kind::Asked, true)),
            output_token_ids_logprobs: asked.then(|| positions(output, Kind::Asked, false)),
        }
    }
}

// ---------------------------------------------------------------------- rows of [logprob, id, text]

#[derive(Clone, Copy)]
enum ScoreList<'a> {
    Input(&'a [Option<f32>]),
    Output(&'a [f32]),
}

/// A list of `[logprob, id, text]`.
struct Scores<'a> {
    logprobs: ScoreList<'a>,
    ids: &'a [u32],
    text: Option<&'a Text>,
}

impl Serialize for Scores<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = |logprob, id: &u32| Row { logprob, id: *id, text: self.text };
        match self.logprobs {
            ScoreList::Input(list) => {
                serializer.collect_seq(list.iter().zip(self.ids).map(|(logprob, id)| row(*logprob, id)))
            }
            ScoreList::Output(list) => {
                serializer.collect_seq(list.iter().zip(self.ids).map(|(logprob, id)| row(Some(*logprob), id)))
            }
        }
    }
}

struct Row<'a> {
    logprob: Option<f32>,
    id: u32,
    text: Option<&'a Text>,
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_tuple(3)?;
        row.serialize_element(&self.logprob.map(f64::from))?;
        row.serialize_element(&self.id)?;
        row.serialize_element(&self.text.map(|text| text.token(self.id)))?;
        row.end()
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Top,
    Asked,
}

/// For each position a list of rows.
struct Positions<'a> {
    list: &'a [Alternatives],
    kind: Kind,
    /// The first prompt position has nothing before it.
    first_is_null: bool,
    text: Option<&'a Text>,
}

impl Serialize for Positions<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.list.iter().enumerate().map(|(index, alternatives)| {
            let rows = match self.kind {
                Kind::Top => &alternatives.top,
                Kind::Asked => &alternatives.ids,
            };
            let rows = rows.iter().map(|(logprob, id)| Row { logprob: Some(*logprob), id: *id, text: self.text });
            (!(self.first_is_null && index == 0)).then(|| rows.collect::<Vec<_>>())
        }))
    }
}

// ---------------------------------------------------------------------- finish_reason

struct FinishReason<'a> {
    finish: &'a Finish,
    tokens: usize,
}

impl Serialize for FinishReason<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        match self.finish {
            Finish::Length => {
                map.serialize_entry("type", "length")?;
                map.serialize_entry("length", &self.tokens)?;
            }
            Finish::StopToken(id) => {
                map.serialize_entry("type", "stop")?;
                map.serialize_entry("matched", id)?;
            }
            Finish::StopString(stop) => {
                map.serialize_entry("type", "stop")?;
                map.serialize_entry("matched", stop)?;
            }
            Finish::Aborted => {
                map.serialize_entry("type", "abort")?;
                map.serialize_entry("message", "Aborted")?;
                map.serialize_entry("status_code", &None::<u16>)?;
                map.serialize_entry("err_type", &None::<&str>)?;
            }
            Finish::AbortedWaiting => {
                map.serialize_entry("type", "abort")?;
                map.serialize_entry("message", "Abort in waiting queue")?;
            }
            Finish::QueueFull => {
                map.serialize_entry("type", "abort")?;
                map.serialize_entry("status_code", &503)?;
                map.serialize_entry("message", "The request queue is full.")?;
            }
            Finish::Failed(message) => {
                map.serialize_entry("type", "abort")?;
                map.serialize_entry("message", message)?;
                map.serialize_entry("status_code", &500)?;
                map.serialize_entry("err_type", "InternalServerError")?;
            }
        }
        map.end()
    }
}

/// The text of an output: without its end, unless `no_stop_trim`; without a cut character while more may follow.
pub(crate) fn output_text(
    text: Option<&Text>,
    ids: &[u32],
    finish: Option<&Finish>,
    skip_special: bool,
    no_trim: bool,
) -> String {
    let Some(text) = text else { return String::new() };
    match finish {
        None => text.decode_unfinished(ids, skip_special),
        Some(Finish::StopToken(_)) if !no_trim => text.decode(&ids[..ids.len().saturating_sub(1)], skip_special),
        Some(Finish::StopString(found)) if !no_trim => {
            let mut output = text.decode(ids, skip_special);
            stop::trim(&mut output, found);
            output
        }
        Some(_) => text.decode(ids, skip_special),
    }
}
