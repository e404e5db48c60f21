//! What happened, in time order, one line each.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde::Serialize;

use crate::{
    Facts,
    clock::moment,
    logs::{Role, source_of_name},
};

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Happening {
    /// When, or when last.
    pub time: Timestamp,
    /// Worth a look.
    pub warning: bool,
    /// `Kind/name`; empty where only one object is spoken of.
    pub object: String,
    /// Stable word.
    pub reason: String,
    /// What happened.
    pub text: String,
    /// How often.
    pub count: i32,
}

/// From an event of a cluster. One without any instant has nothing to say in time order.
pub fn from_event(event: &Event) -> Option<Happening> {
    let series = event.series.as_ref();
    let time = series
        .and_then(|s| s.last_observed_time.as_ref())
        .or(event.event_time.as_ref())
        .map(|t| t.0)
        .or(event.last_timestamp.as_ref().or(event.first_timestamp.as_ref()).map(|t| t.0))
        .or(event.metadata.creation_timestamp.as_ref().map(|t| t.0))?;
    let about = &event.involved_object;
    Some(Happening {
        time,
        warning: event.type_.as_deref() == Some("Warning"),
        object: format!("{}/{}", about.kind.as_deref().unwrap_or("?"), about.name.as_deref().unwrap_or("?")),
        reason: event.reason.clone().unwrap_or_default(),
        text: event.message.clone().unwrap_or_default().trim().to_owned(),
        count: series.and_then(|s| s.count).or(event.count).unwrap_or(1),
    })
}

/// True if an event of its namespace is about the run: about its objects, and pods and Jobs of them that are long gone.
pub fn is_about(facts: &Facts<'_>, event: &Event) -> bool {
    let about = &event.involved_object;
    let (kind, name) = (about.kind.as_deref().unwrap_or_default(), about.name.as_deref().unwrap_or_default());
    let (serving, rollout) = (facts.job.serving_name(), facts.job.rollout_name());
    let owner = match kind {
        "RLJob" => (name == facts.name()).then_some(facts.job.metadata.uid.as_ref()),
        "ServingCluster" => (name == serving).then_some(facts.serving.and_then(|s| s.metadata.uid.as_ref())),
        "RolloutPool" => (name == rollout).then_some(facts.pool.and_then(|p| p.metadata.uid.as_ref())),
        // Pods are gone before their events: their names say whose they were.
        "Pod" => source_of_name(facts.job, name).map(|_| None),
        // Its pods would be called so with an index.
        "Job" => source_of_name(facts.job, &format!("{name}-0")).filter(|s| s.role == Role::Trainer).map(|_| None),
        "StatefulSet" | "DaemonSet" => source_of_name(facts.job, &format!("{name}-0")).map(|_| None),
        _ => None,
    };
    let Some(known) = owner else { return false };
    // An earlier run of this name is another run.
    let same = known.is_none_or(|uid| about.uid.as_ref().is_none_or(|u| u == uid));
    let begun = facts.job.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let late = from_event(event).is_some_and(|h| begun.is_none_or(|begun| h.time >= begun));
    same && late
}

/// One line each, oldest first, in columns. Lines after a text's first are set in.
pub fn lines(happenings: &[Happening], now: Timestamp) -> Vec<String> {
    let mut sorted: Vec<&Happening> = happenings.iter().collect();
    sorted.sort_by_key(|h| h.time);
    let width = |of: fn(&Happening) -> usize| sorted.iter().map(|h| of(h)).max().unwrap_or(0);
    let (objects, reasons) = (width(|h| h.object.chars().count()), width(|h| h.reason.chars().count()));
    let warnings = sorted.iter().any(|h| h.warning);
    let line = |h: &&Happening| {
        let mut head = moment(h.time, now);
        if warnings {
            head.push_str(if h.warning { "  !" } else { "   " });
        }
        if objects > 0 {
            head.push_str(&format!("  {:<objects$}", h.object));
        }
        head.push_str(&format!("  {:<reasons$}  ", h.reason));
        let times = if h.count > 1 { format!(" ({} times)", h.count) } else { String::new() };
        format!("{head}{}{times}", h.text.replace('\n', "\n            ")).trim_end().to_owned()
    };
    sorted.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sample::Sample;

    fn event(kind: &str, name: &str, uid: &str, time: &str) -> Event {
        serde_json::from_value(json!({
            "metadata": {}, "involvedObject": {"kind": kind, "name": name, "uid": uid}, "eventTime": time,
            "reason": "R", "message": "m", "type": "Normal",
        }))
        .unwrap()
    }

    #[test]
    fn the_run_its_engines_workers_jobs_and_pods_are_told_of_and_nobody_else() {
        let sample = Sample::new();
        let late = sample.at(-5).to_string();
        let about = |kind, name, uid| is_about(&sample.facts(), &event(kind, name, uid, &late));
        for (kind, name, uid) in [
            ("RLJob", "sort5", "u-1"),
            ("ServingCluster", "sort5-serving", "u-2"),
            ("RolloutPool", "sort5-rollout", "u-3"),
            ("Job", "sort5-t1", "x"),
            ("Pod", "sort5-t1-0-x7k2p", "x"),
            ("Pod", "sort5-conductor-0", "x"),
            ("StatefulSet", "sort5-serving", "x"),
            ("StatefulSet", "sort5-conductor", "x"),
        ] {
            assert!(about(kind, name, uid), "{kind}/{name}");
        }
        for (kind, name, uid) in [
            ("RLJob", "sort5", "of an earlier run"),
            ("RLJob", "sort5-b", "u-1"),
            ("Pod", "sort5-b-t1-0", "x"),
            ("Job", "sort5", "x"),
            ("Pod", "sort5", "x"),
            ("Node", "sort5-t1-0", "x"),
        ] {
            assert!(!about(kind, name, uid), "{kind}/{name}");
        }
        let early = event("Pod", "sort5-t1-0", "x", &sample.at(-1000).to_string());
        assert!(!is_about(&sample.facts(), &early), "before the run was made");
    }

    #[test]
    fn events_are_in_the_order_of_their_last_time_however_it_is_written() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let of = |value| from_event(&serde_json::from_value(value).unwrap()).unwrap();
        let old = of(json!({"metadata": {}, "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "BackOff",
            "lastTimestamp": "2027-01-15T07:59:00Z", "firstTimestamp": "2027-01-15T07:00:00Z", "count": 7,
            "message": "a\nb", "type": "Warning"}));
        let new =
            of(json!({"metadata": {}, "involvedObject": {"kind": "RLJob", "name": "sort5"}, "reason": "AttemptEnded",
            "eventTime": "2027-01-15T07:00:00Z", "message": "attempt 1", "type": "Normal",
            "series": {"count": 2, "lastObservedTime": "2027-01-15T07:59:30Z"}}));
        let told = lines(&[new, old], now);
        assert!(told[0].ends_with("!  Pod/p        BackOff       a\n            b (7 times)"), "{told:?}");
        assert!(told[1].ends_with("   RLJob/sort5  AttemptEnded  attempt 1 (2 times)"), "{told:?}");
        let event: Event = serde_json::from_value(json!({"metadata": {}, "involvedObject": {}})).unwrap();
        assert_eq!(from_event(&event), None);
    }
}
