//! `sampling_params` of a request: strict, so that a misspelt key is never silently the default.

use serde_json::{Map, Value};

use crate::http::reply::Refusal;

/// How a sequence is drawn and when it ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SamplingParams {
    /// Softmax temperature, > 0. Greedy requests have 1 here and `greedy` set.
    pub(crate) temperature: f32,
    /// Take the likeliest token.
    pub(crate) greedy: bool,
    /// Keep the `top_k` likeliest tokens.
    pub(crate) top_k: Option<usize>,
    /// Keep the likeliest tokens until their probability reaches this.
    pub(crate) top_p: f32,
    /// Keep tokens at least this likely relative to the likeliest.
    pub(crate) min_p: f32,
    /// Output tokens at most; `None`: until the context is full.
    pub(crate) max_new_tokens: Option<usize>,
    /// Output tokens before an end is allowed.
    pub(crate) min_new_tokens: usize,
    /// Token ids that end a sequence, besides the model's own.
    pub(crate) stop_token_ids: Vec<u32>,
    /// Strings that end a sequence.
    pub(crate) stop: Vec<String>,
    /// Neither the model's end tokens nor `stop_token_ids` end a sequence.
    pub(crate) ignore_eos: bool,
    /// Leave special tokens out of the text.
    pub(crate) skip_special_tokens: bool,
    /// Keep the stop string or token in the text.
    pub(crate) no_stop_trim: bool,
    /// Seed of the sample; with the position of a token it decides the token's random number.
    pub(crate) sampling_seed: Option<u64>,
    /// Samples of one prompt.
    pub(crate) n: usize,
    /// Tokens between two streamed events.
    pub(crate) stream_interval: usize,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            greedy: false,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            max_new_tokens: Some(128),
            min_new_tokens: 0,
            stop_token_ids: Vec::new(),
            stop: Vec::new(),
            ignore_eos: false,
            skip_special_tokens: true,
            no_stop_trim: false,
            sampling_seed: None,
            n: 1,
            stream_interval: 1,
        }
    }
}

/// Every key SGLang knows, in the order it lists them.
const KEYS: [&str; 28] = [
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "n",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "stream_interval",
    "logit_bias",
    "sampling_seed",
    "custom_params",
    "beam_width",
    "watermark",
    "choice",
];

/// At most this many stop strings.
const STOP_STRINGS_MAX: usize = 32;
/// At most this many samples of one prompt.
const N_MAX: usize = 1024;

impl SamplingParams {
    /// Reads and checks a JSON object.
    pub(crate) fn parse(object: &Map<String, Value>, vocab: usize) -> Result<Self, Refusal> {
        if let Some(key) = object.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(Refusal::unknown_field(key, &KEYS));
        }
        let mut params = Self::default();
        for (key, value) in object {
            params.set(key, value, vocab)?;
        }
        if let Some(max) = params.max_new_tokens
            && params.min_new_tokens > max
        {
            return Err(bad(format!(
                "min_new_tokens must be in [0, max_new_tokens({max})], got {}.",
                params.min_new_tokens
            )));
        }
        if params.greedy {
            params.temperature = 1.0;
        }
        Ok(params)
    }

    fn set(&mut self, key: &str, value: &Value, vocab: usize) -> Result<(), Refusal> {
        match (key, value) {
            ("max_new_tokens", Value::Null) => self.max_new_tokens = None,
            (_, Value::Null) => {}
            ("max_new_tokens", _) => {
                let max =
                    value.as_u64().ok_or_else(|| bad(format!("max_new_tokens must be at least 0, got {value}.")))?;
                self.max_new_tokens = Some(usize::try_from(max).unwrap_or(usize::MAX));
            }
            ("min_new_tokens", _) => self.min_new_tokens = whole(key, value)?,
            ("temperature", _) => {
                let temperature = number(key, value)?;
                if temperature < 0.0 || !(temperature as f32).is_finite() {
                    return Err(bad(format!("temperature must be a non-negative finite number, got {value}.")));
                }
                // Below this a quotient of logits would overflow; SGLang draws the same line.
                self.greedy = temperature < 1e-6;
                self.temperature = temperature as f32;
            }
            ("top_p", _) => {
                let top_p = number(key, value)?;
                if !(top_p > 0.0 && top_p <= 1.0) {
                    return Err(bad(format!("top_p must be in (0, 1], got {value}.")));
                }
                self.top_p = top_p as f32;
            }
            ("min_p", _) => {
                let min_p = number(key, value)?;
                if !(0.0..=1.0).contains(&min_p) {
                    return Err(bad(format!("min_p must be in [0, 1], got {value}.")));
                }
                self.min_p = min_p as f32;
            }
            ("top_k", _) => {
                self.top_k = match value.as_i64() {
                    Some(-1) => None,
                    Some(k) if k >= 1 => Some(k as usize),
                    _ => return Err(bad(format!("top_k must be -1 (disable) or at least 1, got {value}."))),
                }
            }
            ("stop", Value::String(stop)) => self.stop = vec![stop.clone()],
            ("stop", Value::Array(stops)) => {
                let strings = stops.iter().map(|stop| stop.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
                self.stop =
                    strings.ok_or_else(|| bad(format!("stop must be a string or a list of strings, got {value}.")))?;
            }
            ("stop", _) => return Err(bad(format!("stop must be a string or a list of strings, got {value}."))),
            ("stop_token_ids", _) => self.stop_token_ids = token_ids(key, value, vocab)?,
            ("ignore_eos", _) => self.ignore_eos = truth(key, value)?,
            ("skip_special_tokens", _) => self.skip_special_tokens = truth(key, value)?,
            // Decoding has no such spaces to drop.
            ("spaces_between_special_tokens", _) => drop(truth(key, value)?),
            ("no_stop_trim", _) => self.no_stop_trim = truth(key, value)?,
            ("sampling_seed", _) => {
                let seed = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
                self.sampling_seed =
                    Some(seed.ok_or_else(|| bad(format!("sampling_seed must be an integer, got {value}.")))?);
            }
            ("n", _) => {
                self.n = whole(key, value)?;
                if !(1..=N_MAX).contains(&self.n) {
                    return Err(bad(format!("n must be in [1, {N_MAX}], got {value}.")));
                }
            }
            ("stream_interval", _) => self.stream_interval = whole(key, value)?.max(1),
            ("frequency_penalty" | "presence_penalty", _) if value.as_f64() == Some(0.0) => {}
            ("repetition_penalty", _) if value.as_f64() == Some(1.0) => {}
            ("beam_width", _) if value.as_u64() == Some(1) => {}
            _ => return Err(bad(format!("sampling parameter `{key}` is not supported by this engine; leave it out."))),
        }
        if self.stop.len() > STOP_STRINGS_MAX {
            return Err(bad(format!("at most {STOP_STRINGS_MAX} stop strings are allowed, got {}.", self.stop.len())));
        }
        self.stop.retain(|stop| !stop.is_empty());
        Ok(())
    }
}

fn bad(message: String) -> Refusal {
    Refusal::bad_request(message)
}

fn number(key: &str, value: &Value) -> Result<f64, Refusal> {
    value.as_f64().ok_or_else(|| bad(format!("{key} must be a number, got {value}.")))
}

fn whole(key: &str, value: &Value) -> Result<usize, Refusal> {
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| bad(format!("{key} must be a whole number of at least 0, got {value}.")))
}

fn truth(key: &str, value: &Value) -> Result<bool, Refusal> {
    value.as_bool().ok_or_else(|| bad(format!("{key} must be true or false, got {value}.")))
}

/// A list of ids below `vocab`.
pub(crate) fn token_ids(key: &str, value: &Value, vocab: usize) -> Result<Vec<u32>, Refusal> {
    let list = value.as_array().ok_or_else(|| bad(format!("{key} must be a list of token ids, got {value}.")))?;
    list.iter()
        .map(|id| match id.as_u64() {
            Some(id) if (id as usize) < vocab => Ok(id as u32),
            _ => Err(bad(format!("{key} has {id}, which is not a token id: ids are whole numbers below {vocab}."))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: Value) -> Result<SamplingParams, String> {
        SamplingParams::parse(value.as_object().unwrap(), 512).map_err(|refusal| refusal.message().to_owned())
    }

    #[test]
    fn an_unknown_key_is_refused_and_the_known_ones_are_listed() {
        let message = parse(json!({"max_new_tokens": 2, "zzz": 1})).unwrap_err();
        assert!(message.starts_with("unknown field `zzz`, expected one of `max_new_tokens`, `stop`, "), "{message}");
        assert!(message.ends_with("`watermark`, `choice`"), "{message}");
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_rule() {
        for (value, rule) in [
            (json!({"temperature": -1}), "temperature must be a non-negative finite number, got -1."),
            (json!({"top_p": 0}), "top_p must be in (0, 1], got 0."),
            (json!({"top_k": 0}), "top_k must be -1 (disable) or at least 1, got 0."),
            (json!({"min_p": 1.5}), "min_p must be in [0, 1], got 1.5."),
            (json!({"max_new_tokens": -3}), "max_new_tokens must be at least 0, got -3."),
            (
                json!({"stop_token_ids": [512]}),
                "stop_token_ids has 512, which is not a token id: ids are whole numbers below 512.",
            ),
            (
                json!({"min_new_tokens": 9, "max_new_tokens": 2}),
                "min_new_tokens must be in [0, max_new_tokens(2)], got 9.",
            ),
        ] {
            assert_eq!(parse(value).unwrap_err(), rule);
        }
    }

    #[test]
    fn a_parameter_without_behaviour_is_refused_unless_it_asks_for_nothing() {
        assert!(parse(json!({"repetition_penalty": 1.1})).unwrap_err().contains("not supported"));
        assert!(parse(json!({"regex": "a*"})).unwrap_err().contains("not supported"));
        let router_defaults =
            json!({"repetition_penalty": 1.0, "frequency_penalty": 0.0, "regex": null, "n": 1, "top_k": -1});
        assert_eq!(parse(router_defaults).unwrap(), SamplingParams::default());
    }

    #[test]
    fn temperature_zero_is_greedy_at_temperature_one() {
        let params = parse(json!({"temperature": 0})).unwrap();
        assert!(params.greedy);
        assert!((params.temperature - 1.0).abs() < f32::EPSILON);
    }
}
