//! An engine over HTTP.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use reqwest::{RequestBuilder, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Cause, Engine, EngineError, GenerateRequest, Generation, ModelInfo, PauseMode, ScoreRequest, Scored, Unusable,
    WeightUpdate,
};

/// An engine at a base URL.
#[derive(Clone, Debug)]
pub struct HttpEngine {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
}

impl HttpEngine {
    /// The engine at `base` (`http://host:port`), with its key if it wants one.
    #[must_use]
    pub fn new(http: reqwest::Client, base: impl Into<String>, token: Option<String>) -> Self {
        let mut base = base.into();
        while base.ends_with('/') {
            base.pop();
        }
        Self { http, base, token }
    }

    async fn send(&self, request: RequestBuilder, path: &str, limit: Duration) -> Result<Vec<u8>, EngineError> {
        let url = format!("{}{path}", self.base);
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let unreachable =
            |error: reqwest::Error| EngineError::Unreachable { url: url.clone(), reason: innermost(&error) };
        let response = request.timeout(limit).send().await.map_err(unreachable)?;
        let status = response.status();
        let body = response.bytes().await.map_err(unreachable)?;
        if status == StatusCode::OK {
            return Ok(body.into());
        }
        let (status, message) = (status.as_u16(), message(&body));
        // A client error condemns the request, but for time-outs and "too many", which condemn the moment.
        if (400..500).contains(&status) && status != 408 && status != 429 {
            Err(EngineError::Refused { url, status, message })
        } else {
            Err(EngineError::Unavailable { url, status, message })
        }
    }

    async fn post(&self, path: &str, body: &impl serde::Serialize, limit: Duration) -> Result<Vec<u8>, EngineError> {
        self.send(self.http.post(format!("{}{path}", self.base)).json(body), path, limit).await
    }

    fn bad_reply(&self, path: &str, why: impl Into<String>) -> EngineError {
        self.unusable(path, Unusable::new(Cause::Unreadable, why))
    }

    fn unusable(&self, path: &str, Unusable { cause, why }: Unusable) -> EngineError {
        EngineError::BadReply { url: format!("{}{path}", self.base), cause, why }
    }
}

#[derive(Deserialize)]
struct Updated {
    success: bool,
    #[serde(default)]
    message: String,
}

impl Engine for HttpEngine {
    fn url(&self) -> &str {
        &self.base
    }

    fn generate<'a>(
        &'a self,
        request: &'a GenerateRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Generation, EngineError>> {
        async move {
            let body = self.post("/generate", request, limit).await?;
            Generation::from_reply(&body).map_err(|refused| self.unusable("/generate", refused))
        }
        .boxed()
    }

    fn score<'a>(&'a self, request: &'a ScoreRequest, limit: Duration) -> BoxFuture<'a, Result<Scored, EngineError>> {
        async move {
            let body = self.post("/generate", &request.body(), limit).await?;
            request.read(&body).map_err(|why| self.bad_reply("/generate", why))
        }
        .boxed()
    }

    fn abort<'a>(&'a self, rid: &'a str, limit: Duration) -> BoxFuture<'a, Result<(), EngineError>> {
        async move { self.post("/abort_request", &json!({ "rid": rid }), limit).await.map(drop) }.boxed()
    }

    fn pause(&self, mode: PauseMode, limit: Duration) -> BoxFuture<'_, Result<(), EngineError>> {
        async move { self.post("/pause_generation", &json!({ "mode": mode.as_str() }), limit).await.map(drop) }.boxed()
    }

    fn resume(&self, limit: Duration) -> BoxFuture<'_, Result<(), EngineError>> {
        async move { self.post("/continue_generation", &json!({}), limit).await.map(drop) }.boxed()
    }

    fn update_weights<'a>(
        &'a self,
        update: &'a WeightUpdate,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), EngineError>> {
        async move {
            let path = "/update_weights_from_disk";
            let body = json!({
                "model_path": update.model_path,
                "weight_version": update.version.to_string(),
                "flush_cache": update.flush_cache,
            });
            let reply = self.post(path, &body, limit).await?;
            match serde_json::from_slice::<Updated>(&reply) {
                Ok(Updated { success: true, .. }) => Ok(()),
                Ok(Updated { message, .. }) => Err(self.bad_reply(path, message)),
                Err(error) => Err(self.bad_reply(path, error.to_string())),
            }
        }
        .boxed()
    }

    fn model_info(&self, limit: Duration) -> BoxFuture<'_, Result<ModelInfo, EngineError>> {
        async move {
            #[derive(Deserialize)]
            struct Info {
                model_path: String,
                #[serde(default)]
                weight_version: Option<String>,
            }
            let path = "/model_info";
            let reply = self.send(self.http.get(format!("{}{path}", self.base)), path, limit).await?;
            let info: Info = serde_json::from_slice(&reply).map_err(|error| self.bad_reply(path, error.to_string()))?;
            Ok(ModelInfo {
                model_path: info.model_path,
                weight_version: info.weight_version.unwrap_or_else(|| "default".to_owned()),
            })
        }
        .boxed()
    }
}

const MESSAGE_SHOWN: usize = 300;

/// SGLang has three shapes of error body: `{"error": {"message"}}`, `{"error": ""}` and `{"message"}`.
fn message(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<Value>(body) {
        Ok(value) => value["error"]["message"]
            .as_str()
            .or_else(|| value["error"].as_str())
            .or_else(|| value["message"].as_str())
            .map(str::to_owned),
        Err(_) => None,
    };
    text.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned()).chars().take(MESSAGE_SHOWN).collect()
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_shapes_of_error_body_are_read() {
        assert_eq!(message(br#"{"error":{"message":"too long"}}"#), "too long");
        assert_eq!(message(br#"{"error":"unknown field `zzz`"}"#), "unknown field `zzz`");
        assert_eq!(message(br#"{"object":"error","message":"queue is full","code":503}"#), "queue is full");
        assert_eq!(message(b"Flush cache failed."), "Flush cache failed.");
    }
}
