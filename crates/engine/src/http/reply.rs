//! Refusals in SGLang's shapes. It has three, and clients parse all of them:
//!
//! | case | body |
//! |---|---|
//! | a request that makes no sense | `{"error":{"message":".."}}` |
//! | an unknown sampling key | `{"error":".."}` |
//! | a body that is not what the route takes; an engine that cannot now | `{"object":"error","message","type","param","code"}` |

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// 400, the values make no sense.
    BadRequest(String),
    /// 400, a sampling key that does not exist.
    UnknownField(String),
    /// 400, not JSON or of the wrong types.
    Malformed(String),
    /// 503, the queue is full, the engine stops, or it has no weights.
    Unavailable(String),
    /// 500, the fault is ours.
    Internal(String),
}

impl Refusal {
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::BadRequest(message.into())
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::Malformed(format!("1 validation error:\n  {}", message.into()))
    }

    pub(crate) fn unknown_field(key: &str, known: &[&str]) -> Self {
        let known: Vec<_> = known.iter().map(|key| format!("`{key}`")).collect();
        Self::UnknownField(format!("unknown field `{key}`, expected one of {}", known.join(", ")))
    }

    pub(crate) fn queue_full() -> Self {
        Self::Unavailable("The request queue is full.".to_owned())
    }

    /// What to tell a person.
    pub(crate) fn message(&self) -> &str {
        let (Self::BadRequest(message)
        | Self::UnknownField(message)
        | Self::Malformed(message)
        | Self::Unavailable(message)
        | Self::Internal(message)) = self;
        message
    }

    /// The HTTP status.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::UnknownField(_) | Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The only event of a stream that could not begin.
    pub(crate) fn event(&self) -> Value {
        let (kind, retryable) = match self.status() {
            StatusCode::BAD_REQUEST => ("invalid_request_error", false),
            _ => ("server_error", true),
        };
        json!({"error": {"message": self.message(), "type": kind, "code": self.status().as_u16(), "retryable": retryable}})
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = match self {
            Self::BadRequest(message) | Self::Internal(message) => json!({"error": {"message": message}}),
            Self::UnknownField(message) => json!({"error": message}),
            Self::Malformed(message) => error_object(status, &message, "Bad Request"),
            Self::Unavailable(message) => error_object(status, &message, "503"),
        };
        (status, Json(body)).into_response()
    }
}

/// The error body of SGLang's OpenAI-like routes.
pub(crate) fn error_object(status: StatusCode, message: &str, kind: &str) -> Value {
    json!({"object": "error", "message": message, "type": kind, "param": null, "code": status.as_u16()})
}
