//! Whether what was decided could be carried out: condition Reconciled, the same for the three kinds.

use api::conditions::{self as cond, Truth};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

/// Why an action of a plan failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApplyError {
    /// Whatever has no name of its own here.
    ApplyFailed,
    /// The operator's role does not allow it.
    Forbidden,
    /// Somebody wrote at the same time, or owns the field.
    Conflict,
    /// The name belongs to another owner: a leftover that is on its way out, or a stranger.
    NameTaken,
    /// A ResourceQuota of the namespace is used up.
    QuotaExceeded,
}

impl ApplyError {
    /// Reason of the condition, of the event, and label of the metric.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ApplyFailed => "ApplyFailed",
            Self::Forbidden => "Forbidden",
            Self::Conflict => "Conflict",
            Self::NameTaken => "NameTaken",
            Self::QuotaExceeded => "QuotaExceeded",
        }
    }

    /// The class of an answer of the API server, by its HTTP code and what it says.
    pub fn of_answer(code: u16, reason: &str, message: &str) -> Self {
        match code {
            403 if message.contains("exceeded quota") => Self::QuotaExceeded,
            401 | 403 => Self::Forbidden,
            409 if reason != "AlreadyExists" => Self::Conflict,
            _ => Self::ApplyFailed,
        }
    }
}

/// Says that an action failed. `message` is the chain of errors, outermost first; what may be a secret is taken out of it.
/// The same failure again changes nothing.
pub fn apply_failed(
    conditions: &mut Vec<Condition>,
    class: ApplyError,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    cond::set(conditions, cond::RECONCILED, Truth::False, class.reason(), &redacted(message), generation, now);
}

/// Says that every action of a plan was carried out.
pub fn applied(conditions: &mut Vec<Condition>, generation: Option<i64>, now: Timestamp) {
    cond::set(conditions, cond::RECONCILED, Truth::True, "Applied", "", generation, now);
}

/// Words after which a secret may stand.
const BEFORE_SECRETS: [&str; 4] = ["authorization", "bearer", "password", "token"];
const HIDDEN: &str = "(hidden)";

/// The message on one line, without what may be a secret: what follows `token:`, `Bearer` and the like, user and password of a
/// URL, and any long word that looks like a key.
fn redacted(message: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut hide = false;
    for word in message.split_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_ascii_lowercase();
        // `Bearer` is no secret, but what follows it is; so is what stands after `token:` or `token=`.
        if hide && !BEFORE_SECRETS.contains(&bare.as_str()) {
            words.push(HIDDEN.into());
            hide = false;
            continue;
        }
        hide = bare == "bearer" || word.ends_with([':', '=']) && BEFORE_SECRETS.contains(&bare.as_str());
        words.push(of_word(word));
    }
    words.join(" ")
}

fn of_word(word: &str) -> String {
    if let Some((name, value)) = word.split_once(['=', ':']) {
        let bare = name.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_ascii_lowercase();
        if !value.is_empty() && BEFORE_SECRETS.iter().any(|b| bare == *b || bare.ends_with(&format!("_{b}"))) {
            return format!("{name}={HIDDEN}");
        }
    }
    if let (Some((scheme, rest)), true) = (word.split_once("://"), word.contains('@')) {
        let host = rest.split_once('@').map_or(rest, |(_, host)| host);
        return format!("{scheme}://{HIDDEN}@{host}");
    }
    let key = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let dense = key.len() >= 40 && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '_' | '-'));
    // Names of ours are shorter, and a path has dots or begins with a slash; a key has digits and letters without order.
    let mixed = key.chars().filter(char::is_ascii_digit).count() >= 6;
    if dense && mixed && !word.starts_with('/') { word.replace(key, HIDDEN) } else { word.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &str) -> String {
        let mut list = Vec::new();
        apply_failed(&mut list, ApplyError::ApplyFailed, message, Some(1), Timestamp::UNIX_EPOCH);
        list[0].message.clone()
    }

    #[test]
    fn a_failure_is_told_until_it_is_over_and_said_again_changes_nothing() {
        let mut list = Vec::new();
        let t = |s| Timestamp::from_second(s).unwrap();
        apply_failed(&mut list, ApplyError::NameTaken, "Job a-t1 belongs to uid-old", Some(2), t(10));
        let first = list.clone();
        apply_failed(&mut list, ApplyError::NameTaken, "Job a-t1 belongs to uid-old", Some(2), t(20));
        assert_eq!(list, first);
        assert_eq!((list[0].status.as_str(), list[0].reason.as_str()), ("False", "NameTaken"));
        applied(&mut list, Some(2), t(30));
        assert_eq!((list[0].status.as_str(), list[0].reason.as_str()), ("True", "Applied"));
        assert_eq!(list[0].message, "", "an old failure is not kept");
    }

    #[test]
    fn answers_of_the_api_server_are_told_apart() {
        let quota = r#"pods "a" is forbidden: exceeded quota: small, requested: cpu=1"#;
        assert_eq!(ApplyError::of_answer(403, "Forbidden", quota), ApplyError::QuotaExceeded);
        assert_eq!(ApplyError::of_answer(403, "Forbidden", "cannot create jobs"), ApplyError::Forbidden);
        assert_eq!(ApplyError::of_answer(409, "Conflict", "the object has been modified"), ApplyError::Conflict);
        assert_eq!(ApplyError::of_answer(422, "Invalid", "spec is immutable"), ApplyError::ApplyFailed);
    }

    #[test]
    fn no_secret_reaches_a_condition_and_nothing_else_is_hidden() {
        let key = "0123456789abcdef0123456789abcdef0123456789abcdef";
        for with in [
            "Authorization: Bearer abc.def",
            "sent token: abc.def",
            "sent THRESH_TOKEN=abc.def",
            "\"password\":\"abc.def\"",
            "to https://me:abc.def@host/x",
        ] {
            assert!(!said(with).contains("abc.def"), "{with}: {}", said(with));
        }
        assert!(!said(&format!("data \"{key}\" is bad")).contains(key));
        let plain = "apply Job sort5-grpo-t1: jobs.batch \"sort5-grpo-t1\" is forbidden: User \
                     \"system:serviceaccount:thresh:thresh-operator\" cannot create resource \"jobs\" in the namespace \"rl\"";
        assert_eq!(said(plain), plain);
        let uid = "belongs to 8a4c5a30-2f0e-4d5c-9a8c-0a8f6a1f2b3c";
        assert_eq!(said(uid), uid, "a uid is no secret");
        assert!(said(&"long ".repeat(1000)).len() <= cond::MESSAGE_MAX);
    }
}
