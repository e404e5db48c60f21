//! What can go wrong in a reconcile, and what it means for the object's user.

use std::time::Duration;

use plan::ApplyError;

/// A failed step of a reconcile. Its [`Error::reason`] is the condition's reason, the event's reason and the metric's label.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or could not be asked.
    #[error("{doing}: {}", said(.source))]
    Api {
        /// What was tried, for people: `apply StatefulSet a`.
        doing: String,
        /// What the client said.
        source: kube::Error,
    },
    /// A name that we need is taken by an object of somebody else.
    #[error("{kind} {name} exists and belongs to {owner}; waiting until it is gone")]
    NameTaken {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
        /// Whose it is.
        owner: String,
    },
    /// The API server did not answer in time.
    #[error("{doing}: no answer from the API server within {} s", .after.as_secs())]
    Silent {
        /// What was tried.
        doing: String,
        /// How long was waited.
        after: Duration,
    },
    /// An object of ours cannot be written as JSON.
    #[error("{doing}: {source}")]
    Json {
        /// What was tried.
        doing: String,
        /// The reason.
        source: serde_json::Error,
    },
    /// The system gives no random bytes.
    #[error("cannot draw a token: {0}")]
    NoRandomness(#[source] std::io::Error),
}

/// Result of a step.
pub type Result<T> = std::result::Result<T, Error>;

/// The server's own words where it has some: they name the field.
fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

impl Error {
    /// Wraps a client's error.
    pub fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Api { doing, source }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Api { source: kube::Error::Api(status), .. } => Some(status.code),
            _ => None,
        }
    }

    /// The object has changed since it was read, or is being changed: decide again at once.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// The object is not there (any more).
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// What it means for the object, if the object can be at fault; nothing for what passes by itself.
    pub fn class(&self) -> Option<ApplyError> {
        match self {
            Self::NameTaken { .. } => Some(ApplyError::NameTaken),
            Self::Silent { .. } => None,
            Self::Json { .. } | Self::NoRandomness(_) => Some(ApplyError::ApplyFailed),
            Self::Api { source: kube::Error::Api(status), .. } => match status.code {
                409 | 429 | 500.. => None,
                403 if status.message.contains("being terminated") => None,
                code => Some(ApplyError::of_answer(code, &status.reason, &status.message)),
            },
            Self::Api { .. } => None,
        }
    }

    /// One stable word.
    pub fn reason(&self) -> &'static str {
        match self.class() {
            Some(class) => class.reason(),
            None if self.is_conflict() => ApplyError::Conflict.reason(),
            None => "ApiUnavailable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, message: &str) -> Error {
        let status = kube::core::Status { code, message: message.into(), ..Default::default() };
        Error::Api { doing: "apply Job a-t1".into(), source: kube::Error::Api(status.boxed()) }
    }

    #[test]
    fn every_refusal_has_a_reason_a_user_can_act_on_and_what_passes_by_itself_blames_nobody() {
        for (code, message, reason, blames) in [
            (403, "jobs.batch is forbidden: User cannot create", "Forbidden", true),
            (403, "exceeded quota: q, requested: pods=1", "QuotaExceeded", true),
            (
                403,
                "unable to create new content in namespace a because it is being terminated",
                "ApiUnavailable",
                false,
            ),
            (409, "the object has been modified", "Conflict", false),
            (422, "spec.template: Invalid value", "ApplyFailed", true),
            (404, "the server could not find the requested resource", "ApplyFailed", true),
            (429, "too many requests", "ApiUnavailable", false),
            (503, "leader changed", "ApiUnavailable", false),
        ] {
            let error = refused(code, message);
            assert_eq!((error.reason(), error.class().is_some()), (reason, blames), "{code} {message}");
        }
        assert!(refused(422, "spec.template: Invalid value").to_string().ends_with("spec.template: Invalid value"));
    }
}
