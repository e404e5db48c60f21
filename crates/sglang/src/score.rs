//! Scoring: the log-probs of tokens that exist already.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::generation::LogProbRow;

/// Tokens to score.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreRequest {
    /// The whole sequence.
    pub tokens: Vec<u32>,
    /// Tokens from here on are scored; at least 1, since the first token has nothing before it.
    pub from: usize,
    /// Temperature of the distribution.
    pub temperature: f64,
}

/// What an engine says of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// One per scored token, nats.
    pub log_probs: Vec<f32>,
    /// The weights that said so, as the engine spells their version.
    pub weight_version: String,
}

#[derive(Deserialize)]
struct Reply {
    meta_info: Meta,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    weight_version: Option<String>,
    #[serde(default)]
    input_token_logprobs: Vec<LogProbRow>,
}

impl ScoreRequest {
    /// The body for `/generate`.
    pub(crate) fn body(&self) -> Value {
        json!({
            "input_ids": self.tokens,
            "return_logprob": true,
            // The entry at the start has no log-prob, so it starts one before.
            "logprob_start_len": self.from.saturating_sub(1),
            "sampling_params": {"max_new_tokens": 0, "temperature": self.temperature},
        })
    }

    /// Reads and checks the answer.
    pub(crate) fn read(&self, body: &[u8]) -> Result<Scored, String> {
        let reply: Reply =
            serde_json::from_slice(body).map_err(|error| format!("not an answer to /generate: {error}"))?;
        let rows = reply.meta_info.input_token_logprobs.get(1..).unwrap_or_default();
        let wanted = self.tokens.get(self.from..).unwrap_or_default();
        if rows.len() != wanted.len() {
            return Err(format!("{} tokens to score, {} scored", wanted.len(), rows.len()));
        }
        let mut log_probs = Vec::with_capacity(rows.len());
        for (place, ((log_prob, id, _), token)) in rows.iter().zip(wanted).enumerate() {
            match log_prob {
                Some(log_prob) if id == token && log_prob.is_finite() => log_probs.push(*log_prob),
                _ => return Err(format!("token {token} at place {place} is scored as id {id} with {log_prob:?}")),
            }
        }
        Ok(Scored { log_probs, weight_version: reply.meta_info.weight_version.unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_that_are_not_of_the_tokens_asked_for_are_refused() {
        let request = ScoreRequest { tokens: vec![5, 6, 7], from: 1, temperature: 0.7 };
        assert_eq!(request.body()["logprob_start_len"], 0);
        let reply =
            |rows: Value| json!({"meta_info": {"weight_version": "4", "input_token_logprobs": rows}}).to_string();
        let good = request.read(reply(json!([[null, 5, null], [-0.5, 6, null], [-1.0, 7, null]])).as_bytes()).unwrap();
        assert_eq!(good, Scored { log_probs: vec![-0.5, -1.0], weight_version: "4".into() });
        for rows in [
            json!([[null, 5, null], [-0.5, 6, null]]),
            json!([[null, 5, null], [-0.5, 6, null], [-1.0, 8, null]]),
            json!([[null, 5, null], [-0.5, 6, null], [null, 7, null]]),
            json!([]),
        ] {
            assert!(request.read(reply(rows).as_bytes()).is_err());
        }
    }
}
