//! The body of `/generate`: from JSON to sequences that the scheduler can run without checking anything again.
//!
//! Unknown top-level fields are ignored, as SGLang does; a known field whose behaviour this engine lacks is refused.

use serde_json::{Map, Value};

use crate::{
    http::reply::Refusal,
    pages::PAGE_TOKENS,
    sampling_params::{SamplingParams, token_ids},
    text::Text,
};

/// What the model and the pool allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Token ids are below this.
    pub(crate) vocab: usize,
    /// Longest sequence of the model.
    pub(crate) context: usize,
    /// Tokens of the KV pool.
    pub(crate) pool: usize,
}

impl Limits {
    /// Longest sequence that can be served: a sequence alone always fits into the pool, so it always ends.
    pub(crate) fn sequence(&self) -> usize {
        self.context.min(self.pool)
    }

    pub(crate) fn new(vocab: usize, context: usize, pages: usize) -> Self {
        Self { vocab, context, pool: pages * PAGE_TOKENS }
    }
}

/// Which log-probs a request wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogprobRequest {
    /// First prompt position whose log-prob is wanted; `None`: outputs only.
    pub(crate) start: Option<usize>,
    /// How many of the likeliest tokens beside each.
    pub(crate) top: usize,
    /// Further token ids whose log-probs are wanted at each position.
    pub(crate) ids: Vec<u32>,
    /// Put the text of each token beside its id.
    pub(crate) text: bool,
}

impl LogprobRequest {
    /// Whether other tokens are wanted beside each.
    pub(crate) fn alternatives(&self) -> bool {
        self.top > 0 || !self.ids.is_empty()
    }
}

/// One sequence to generate.
#[derive(Clone, Debug)]
pub(crate) struct GenerateRequest {
    /// Given by the client, or `None`.
    pub(crate) rid: Option<String>,
    pub(crate) prompt: Vec<u32>,
    pub(crate) params: SamplingParams,
    pub(crate) logprob: Option<LogprobRequest>,
}

/// A whole body.
#[derive(Debug)]
pub(crate) struct GenerateCall {
    /// In the order of the answer.
    pub(crate) requests: Vec<GenerateRequest>,
    /// The answer is a list.
    pub(crate) batch: bool,
    pub(crate) return_prompt_token_ids: bool,
}

/// Fields that change the answer in a way this engine cannot.
const UNSUPPORTED: [&str; 12] = [
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "return_sampling_mask",
    "return_hidden_states",
    "return_entropy",
    "return_indexer_topk",
    "lora_path",
    "session_params",
    "custom_logit_processor",
    "bootstrap_host",
];

/// The body as a JSON object.
pub(crate) fn object(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Refusal::malformed("the request needs a JSON body"));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Refusal::malformed("the body must be a JSON object")),
        Err(error) => Err(Refusal::malformed(format!("JSON decode error: {error}"))),
    }
}

/// A field that is absent, null, or of the type asked for.
pub(crate) fn field<'a, T>(
    body: &'a Map<String, Value>,
    key: &str,
    expected: &str,
    read: impl FnOnce(&'a Value) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            read(value).map(Some).ok_or_else(|| Refusal::malformed(format!("{key} must be {expected}; got {value}")))
        }
    }
}

/// A field that is true or false, and false when it is absent.
pub(crate) fn flag(body: &Map<String, Value>, key: &str) -> Result<bool, Refusal> {
    Ok(field(body, key, "true or false", Value::as_bool)?.unwrap_or(false))
}

impl GenerateCall {
    /// Checks everything that can be checked without the scheduler.
    pub(crate) fn parse(body: &Map<String, Value>, limits: &Limits, text: Option<&Text>) -> Result<Self, Refusal> {
        if let Some(key) = UNSUPPORTED.iter().find(|key| asks_for_something(body.get(**key))) {
            return Err(Refusal::bad_request(format!("`{key}` is not supported by this engine; leave it out.")));
        }
        let (prompts, batch) = prompts(body, limits, text)?;
        let params = sampling_params(body, prompts.len(), limits)?;
        let logprobs = logprob_requests(body, prompts.len(), limits)?;
        let rids = rids(body, prompts.len(), batch)?;
        let batch = batch || params.iter().any(|params| params.n > 1);

        let mut requests = Vec::with_capacity(prompts.len());
        for (((prompt, mut params), mut logprob), rid) in prompts.into_iter().zip(params).zip(logprobs).zip(rids) {
            check_lengths(&prompt, &mut params, limits)?;
            if let Some(LogprobRequest { start: Some(start), .. }) = &mut logprob
                && *start > prompt.len()
            {
                return Err(Refusal::bad_request(format!(
                    "logprob_start_len={start} is higher than the number of input tokens {}. Please use a smaller logprob_start_len.",
                    prompt.len()
                )));
            }
            // Samples of one prompt get their own ids and seeds: they are different requests.
            let n = std::mem::replace(&mut params.n, 1);
            for sample in 0..n {
                let mut params = params.clone();
                params.sampling_seed = params.sampling_seed.map(|seed| seed.wrapping_add(sample as u64));
                let rid = if n == 1 { rid.clone() } else { None };
                requests.push(GenerateRequest { rid, prompt: prompt.clone(), params, logprob: logprob.clone() });
            }
        }
        Ok(Self { requests, batch, return_prompt_token_ids: flag(body, "return_prompt_token_ids")? })
    }
}

fn asks_for_something(value: Option<&Value>) -> bool {
    !matches!(value, None | Some(Value::Null | Value::Bool(false)))
}

/// The prompts, and whether they came as a list.
fn prompts(body: &Map<String, Value>, limits: &Limits, text: Option<&Text>) -> Result<(Vec<Vec<u32>>, bool), Refusal> {
    let given = |key: &str| body.get(key).filter(|value| !value.is_null());
    match (given("text"), given("input_ids")) {
        (None, None) => Err(Refusal::bad_request("Either text, input_ids or input_embeds should be provided.")),
        (Some(_), Some(_)) => {
            Err(Refusal::bad_request("Either text, input_ids or input_embeds should be provided, not two of them."))
        }
        (Some(given), None) => {
            let text = text.ok_or_else(|| {
                Refusal::bad_request(
                    "this engine has no tokenizer (the model folder has no tokenizer.json): send input_ids.",
                )
            })?;
            match given {
                Value::String(prompt) => Ok((vec![encode(text, prompt)?], false)),
                Value::Array(list) => {
                    let strings: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
                    let strings =
                        strings.ok_or_else(|| Refusal::malformed("text must be a string or a list of strings"))?;
                    if strings.is_empty() {
                        return Err(Refusal::bad_request("text cannot be empty."));
                    }
                    Ok((strings.into_iter().map(|prompt| encode(text, prompt)).collect::<Result<_, _>>()?, true))
                }
                _ => Err(Refusal::malformed("text must be a string or a list of strings")),
            }
        }
        (None, Some(Value::Array(list))) => {
            if list.is_empty() {
                return Err(Refusal::bad_request("input_ids cannot be empty."));
            }
            let batch = list[0].is_array();
            let given: &[Value] = if batch { list } else { &[] };
            let mut prompts = Vec::with_capacity(given.len().max(1));
            if batch {
                for value in given {
                    prompts.push(token_ids("input_ids", value, limits.vocab)?);
                }
            } else if let Some(whole) = body.get("input_ids") {
                prompts.push(token_ids("input_ids", whole, limits.vocab)?);
            }
            if prompts.iter().any(Vec::is_empty) {
                return Err(Refusal::bad_request("input_ids cannot be empty."));
            }
            Ok((prompts, batch))
        }
        (None, Some(_)) => Err(Refusal::malformed("input_ids must be a list of token ids or a list of such lists")),
    }
}

fn encode(text: &Text, prompt: &str) -> Result<Vec<u32>, Refusal> {
    let ids = text.encode(prompt).map_err(Refusal::bad_request)?;
    if ids.is_empty() {
        return Err(Refusal::bad_request("text cannot be empty: it has no tokens."));
    }
    Ok(ids)
}

fn sampling_params(body: &Map<String, Value>, count: usize, limits: &Limits) -> Result<Vec<SamplingParams>, Refusal> {
    let one = |value: &Value| match value {
        Value::Object(object) => SamplingParams::parse(object, limits.vocab),
        Value::Null => Ok(SamplingParams::default()),
        _ => Err(Refusal::malformed("sampling_params must be an object or a list of objects")),
    };
    match body.get("sampling_params") {
        None => Ok(vec![SamplingParams::default(); count]),
        Some(Value::Array(list)) if list.len() == count => list.iter().map(one).collect(),
        Some(Value::Array(list)) => {
            Err(Refusal::bad_request(format!("sampling_params has {} entries for {count} prompts.", list.len())))
        }
        Some(value) => Ok(vec![one(value)?; count]),
    }
}

/// `value` for each of `count` prompts: one for all, or a list with one each.
fn for_each<T: Clone>(
    body: &Map<String, Value>,
    key: &str,
    count: usize,
    default: T,
    expected: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<T>, Refusal> {
    let malformed = || Refusal::malformed(format!("{key} must be {expected}, or a list with one for each prompt"));
    match body.get(key) {
        None | Some(Value::Null) => Ok(vec![default; count]),
        Some(value) => match (read(value), value) {
            (Some(one), _) => Ok(vec![one; count]),
            (None, Value::Array(list)) if list.len() == count => list
                .iter()
                .map(|value| if value.is_null() { Some(default.clone()) } else { read(value) })
                .collect::<Option<_>>()
                .ok_or_else(malformed),
            _ => Err(malformed()),
        },
    }
}

/// Largest `top_logprobs_num`.
const TOP_LOGPROBS_MAX: usize = 1024;

fn logprob_requests(
    body: &Map<String, Value>,
    count: usize,
    limits: &Limits,
) -> Result<Vec<Option<LogprobRequest>>, Refusal> {
    let wanted = for_each(body, "return_logprob", count, false, "true or false", Value::as_bool)?;
    let starts = for_each(body, "logprob_start_len", count, -1, "an integer", Value::as_i64)?;
    let tops = for_each(body, "top_logprobs_num", count, 0, "a whole number", Value::as_u64)?;
    let list_of_ids =
        |value: &Value| value.as_array().filter(|list| list.iter().all(Value::is_u64)).map(|_| value.clone());
    let ids = for_each(body, "token_ids_logprob", count, Value::Array(Vec::new()), "a list of token ids", list_of_ids)?;
    let text = flag(body, "return_text_in_logprobs")?;
    let mut requests = Vec::with_capacity(count);
    for (((wanted, start), top), ids) in wanted.into_iter().zip(starts).zip(tops).zip(ids) {
        let top = usize::try_from(top).unwrap_or(usize::MAX);
        if top > TOP_LOGPROBS_MAX.min(limits.vocab) {
            let most = TOP_LOGPROBS_MAX.min(limits.vocab);
            return Err(Refusal::bad_request(format!("top_logprobs_num must be at most {most}, got {top}.")));
        }
        let ids = token_ids("token_ids_logprob", &ids, limits.vocab)?;
        let start = usize::try_from(start).ok();
        requests.push(wanted.then_some(LogprobRequest { start, top, ids, text }));
    }
    Ok(requests)
}

fn rids(body: &Map<String, Value>, count: usize, batch: bool) -> Result<Vec<Option<String>>, Refusal> {
    match body.get("rid") {
        None | Some(Value::Null) => Ok(vec![None; count]),
        Some(Value::String(rid)) if !batch => Ok(vec![Some(rid.clone())]),
        Some(Value::String(rid)) => Ok((0..count).map(|index| Some(format!("{rid}_{index}"))).collect()),
        Some(Value::Array(list)) if list.len() == count => list
            .iter()
            .map(|rid| rid.as_str().map(|rid| Some(rid.to_owned())))
            .collect::<Option<_>>()
            .ok_or_else(|| Refusal::malformed("rid must be a string or a list of strings")),
        Some(_) => Err(Refusal::malformed("rid must be a string, or a list with one string for each prompt")),
    }
}

fn check_lengths(prompt: &[u32], params: &mut SamplingParams, limits: &Limits) -> Result<(), Refusal> {
    let (tokens, context) = (prompt.len(), limits.sequence());
    if tokens > context || (tokens == context && params.max_new_tokens != Some(0)) {
        return Err(Refusal::bad_request(format!(
            "The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
        )));
    }
    let max = *params.max_new_tokens.get_or_insert(context - tokens);
    let total = tokens.saturating_add(max);
    if total > context {
        return Err(Refusal::bad_request(format!(
            "Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total of \
             {total} tokens: {tokens} tokens from the input messages and {max} tokens for the completion. Please reduce the number \
             of tokens in the input messages or the completion to fit within the limit."
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LIMITS: Limits = Limits { vocab: 512, context: 2048, pool: 4096 };

    fn parse(body: Value) -> Result<GenerateCall, Refusal> {
        GenerateCall::parse(body.as_object().unwrap(), &LIMITS, None)
    }

    #[test]
    fn a_prompt_id_outside_the_vocabulary_never_reaches_the_model() {
        for ids in [json!([1, 512]), json!([-1]), json!([1.5]), json!([[1], [600]])] {
            let refusal = parse(json!({"input_ids": ids})).unwrap_err();
            assert!(refusal.message().contains("not a token id"), "{refusal:?}");
        }
    }

    #[test]
    fn a_sequence_that_cannot_fit_is_refused_before_it_runs() {
        let long = vec![5; 3000];
        let message = parse(json!({"input_ids": long})).unwrap_err().message().to_owned();
        assert_eq!(message, "The input (3000 tokens) is longer than the model's context length (2048 tokens).");
        let refusal = parse(json!({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2047}})).unwrap_err();
        assert!(refusal.message().contains("You requested a total of 2049 tokens"), "{refusal:?}");
        let whole = parse(json!({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": null}})).unwrap();
        assert_eq!(whole.requests[0].params.max_new_tokens, Some(2046));
    }

    #[test]
    fn a_field_without_behaviour_is_refused_and_an_unknown_one_ignored() {
        assert!(parse(json!({"input_ids": [1], "return_hidden_states": true})).is_err());
        assert!(parse(json!({"input_ids": [1], "return_hidden_states": false, "unknown_field": 1})).is_ok());
    }

    #[test]
    fn samples_of_one_prompt_have_their_own_seeds() {
        let call =
            parse(json!({"input_ids": [1], "rid": "a", "sampling_params": {"n": 3, "sampling_seed": 7}})).unwrap();
        let seeds: Vec<_> = call.requests.iter().map(|request| request.params.sampling_seed).collect();
        assert_eq!(seeds, [Some(7), Some(8), Some(9)]);
        assert!(call.batch && call.requests.iter().all(|request| request.rid.is_none()));
    }

    #[test]
    fn lists_must_match_the_number_of_prompts() {
        assert!(parse(json!({"input_ids": [[1], [2]], "rid": ["a"]})).is_err());
        assert!(parse(json!({"input_ids": [[1], [2]], "sampling_params": [{}]})).is_err());
        let call = parse(json!({"input_ids": [[1], [2]], "rid": ["a", "b"], "return_logprob": [true, false]})).unwrap();
        assert_eq!(call.requests[1].rid.as_deref(), Some("b"));
        assert!(call.requests[0].logprob.is_some() && call.requests[1].logprob.is_none());
    }
}
