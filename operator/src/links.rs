//! Lines to the conductors of the runs that have one.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use conductor_link::{ConductorLink, Order, Target, report};
use k8s_openapi::api::core::v1::Pod;
use plan::{Conductor, build, pod_facts};
use tokio::task::JoinHandle;

/// How often a conductor is asked for its progress.
const ASK: Duration = Duration::from_secs(1);

/// All lines, by uid of the run.
pub struct Links {
    http: reqwest::Client,
    lines: Mutex<HashMap<String, Line>>,
}

struct Line {
    link: ConductorLink,
    /// Passes news on.
    teller: JoinHandle<()>,
    /// Trainer pods known to have ended well.
    succeeded: BTreeSet<String>,
    /// There was somebody to ask, and it was asked.
    asked: bool,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.teller.abort();
    }
}

impl Links {
    /// None yet.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new() -> reqwest::Result<Self> {
        let http = control::names::http_client(control::names::Names::default())?;
        Ok(Self { http, lines: Mutex::new(HashMap::new()) })
    }

    fn with<T>(&self, uid: &str, tell: impl Fn() + Send + 'static, act: impl FnOnce(&mut Line) -> T) -> T {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry(uid.to_owned()).or_insert_with(|| {
            let link = ConductorLink::start(self.http.clone(), ASK);
            let mut news = link.news();
            let teller = tokio::spawn(async move {
                while news.changed().await {
                    tell();
                }
            });
            Line { link, teller, succeeded: BTreeSet::new(), asked: false }
        });
        act(line)
    }

    /// Follows the conductor to the pod it is in now, and says what it last said. `None`: it was not heard yet, or a trainer pod
    /// has ended well since and what it said before does not count; there will be news. `tell` is called at news.
    pub fn hear(&self, uid: &str, pods: &[Pod], token: &str, tell: impl Fn() + Send + 'static) -> Option<Conductor> {
        let succeeded = ended_well(pods);
        self.with(uid, tell, |line| {
            let target = target(pods, token);
            // One that was never asked is not one that does not answer: an operator that begins knows nothing of it.
            let first = target.is_some() && !line.asked;
            line.asked |= first;
            line.link.follow(target);
            if first || !succeeded.is_subset(&line.succeeded) {
                line.link.refresh();
            }
            line.succeeded = succeeded;
            if !line.link.is_fresh() {
                return None;
            }
            Some(match line.link.progress() {
                Some(progress) => Conductor::Report(Box::new(report(&progress))),
                None => Conductor::Unreachable,
            })
        })
    }

    /// Sends an order; a lost one is planned again.
    pub fn order(&self, uid: &str, order: Order) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(uid) {
            line.link.order(order);
        }
    }

    /// The run is gone.
    pub fn forget(&self, uid: &str) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

/// Trainer pods whose container has ended well; the pod's phase follows a moment later, and that moment is enough to act on.
fn ended_well(pods: &[Pod]) -> BTreeSet<String> {
    let well = |p: &&Pod| {
        pod_facts::role(p) == "trainer"
            && (pod_facts::phase(p) == "Succeeded" || pod_facts::terminated(p).is_some_and(|t| t.exit_code == 0))
    };
    pods.iter().filter(well).map(|p| pod_facts::uid(p).to_owned()).collect()
}

/// Where the conductor is; the youngest pod, should a lost node still show an older one.
fn target(pods: &[Pod], token: &str) -> Option<Target> {
    let pod = pods.iter().filter(|p| pod_facts::role(p) == "conductor" && !pod_facts::ended(p)).max_by_key(|p| {
        (p.metadata.deletion_timestamp.is_none(), p.metadata.creation_timestamp.as_ref().map(|t| t.0))
    })?;
    let address = pod.status.as_ref()?.pod_ip.as_ref()?;
    Some(Target { url: format!("http://{address}:{}", build::CONDUCTOR_PORT), token: token.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn what_a_conductor_said_before_a_rank_ended_well_is_no_answer_to_whether_the_run_is_finished() {
        let links = Links::new().unwrap();
        let pod = |exit: Option<i32>| -> Pod {
            let state = exit.map_or(json!({"running": {}}), |code| json!({"terminated": {"exitCode": code}}));
            serde_json::from_value(json!({
                "metadata": {"name": "a-t1-0", "uid": "p", "labels": {api::labels::ROLE: "trainer"}},
                "status": {"phase": "Running", "containerStatuses": [
                    {"name": "trainer", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]},
            }))
            .unwrap()
        };
        assert!(links.hear("u", &[pod(None)], "t", || {}).is_some());
        assert!(links.hear("u", &[pod(Some(1))], "t", || {}).is_some(), "a failure needs nobody's word");
        assert!(
            links.hear("u", &[pod(Some(0))], "t", || {}).is_none(),
            "its phase is Running still, but it has ended well"
        );
    }

    #[tokio::test]
    async fn a_conductor_that_was_not_asked_yet_is_not_called_silent() {
        let links = Links::new().unwrap();
        let (news, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let tell = move || {
            let _ = news.send(());
        };
        assert_eq!(links.hear("uid", &[], "", tell.clone()), Some(Conductor::Unreachable), "there is none");
        // Nobody listens there.
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a-conductor-0", "labels": {"thresh.dev/role": "conductor"}},
            "status": {"phase": "Running", "podIP": "127.255.255.254"},
        }))
        .unwrap();
        let pods = [pod];
        assert_eq!(links.hear("uid", &pods, "", tell.clone()), None);
        heard.recv().await.unwrap();
        assert_eq!(links.hear("uid", &pods, "", tell), Some(Conductor::Unreachable));
    }
}
