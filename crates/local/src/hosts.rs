//! The hosts file: what cluster DNS would answer, for processes of this machine.
//!
//! A line is `address name`; a headless Service has a line for each of its pods. A Service with a cluster address gets the
//! same lines: whoever resolves it picks a pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Service};

use crate::{objects::name, pod};

/// Renders the file. Pods that are ending, not ready (unless the Service publishes those) or without an address are left
/// out, as a Service leaves them out of its endpoints.
#[must_use]
pub fn render<'a>(services: impl Iterator<Item = &'a Service>, pods: &[&Pod], hidden: impl Fn(&Pod) -> bool) -> String {
    let mut lines = BTreeSet::new();
    for service in services {
        let Some(spec) = &service.spec else { continue };
        let Some(selector) = spec.selector.as_ref().filter(|selector| !selector.is_empty()) else { continue };
        let namespace = service.metadata.namespace.as_deref().unwrap_or("default");
        for pod in pods {
            let Some(address) = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()) else { continue };
            let publish_all = spec.publish_not_ready_addresses == Some(true);
            let live = !pod::terminal(pod) && !hidden(pod);
            let ready = pod::ready(pod) && pod.metadata.deletion_timestamp.is_none();
            if !live || !selects(selector, pod) || !(ready || publish_all) {
                continue;
            }
            let own = name(service);
            lines.extend(forms(own, namespace).map(|form| format!("{address} {form}")));
            let spec = pod.spec.as_ref();
            if let Some(host) = spec.and_then(|spec| spec.hostname.as_deref())
                && spec.and_then(|spec| spec.subdomain.as_deref()) == Some(own)
            {
                lines.extend(forms(&format!("{host}.{own}"), namespace).map(|form| format!("{address} {form}")));
            }
        }
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// True when every label of the selector stands on the pod.
#[must_use]
pub fn selects(selector: &BTreeMap<String, String>, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

fn forms(name: &str, namespace: &str) -> impl Iterator<Item = String> {
    [
        name.to_owned(),
        format!("{name}.{namespace}"),
        format!("{name}.{namespace}.svc"),
        format!("{name}.{namespace}.svc.cluster.local"),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, address: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"role": "engine", "run": "u"}},
            "spec": {"containers": [], "hostname": name, "subdomain": "engines"},
            "status": {"podIP": address, "phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    fn service(publish: bool) -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": "engines", "namespace": "rl"},
            "spec": {"clusterIP": "None", "selector": {"role": "engine"}, "publishNotReadyAddresses": publish},
        }))
        .unwrap()
    }

    #[test]
    fn a_headless_service_has_a_line_for_each_ready_pod() {
        let (one, two) = (pod("e-0", "127.77.0.1", "True"), pod("e-1", "127.77.0.2", "True"));
        let mut ending = pod("e-2", "127.77.0.3", "True");
        ending.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        let waiting = pod("e-3", "127.77.0.4", "False");
        let pods = [&one, &two, &ending, &waiting];
        let text = render([service(false)].iter(), &pods, |_| false);
        assert_eq!(
            text,
            "127.77.0.1 e-0.engines\n127.77.0.1 e-0.engines.rl\n127.77.0.1 e-0.engines.rl.svc\n\
             127.77.0.1 e-0.engines.rl.svc.cluster.local\n\
             127.77.0.1 engines\n127.77.0.1 engines.rl\n127.77.0.1 engines.rl.svc\n127.77.0.1 engines.rl.svc.cluster.local\n\
             127.77.0.2 e-1.engines\n127.77.0.2 e-1.engines.rl\n127.77.0.2 e-1.engines.rl.svc\n\
             127.77.0.2 e-1.engines.rl.svc.cluster.local\n\
             127.77.0.2 engines\n127.77.0.2 engines.rl\n127.77.0.2 engines.rl.svc\n127.77.0.2 engines.rl.svc.cluster.local\n"
        );
        let all = render([service(true)].iter(), &pods, |_| false);
        assert!(all.contains("127.77.0.4 e-3.engines\n"), "rank discovery needs pods that are not ready yet");
    }

    #[test]
    fn pods_of_a_lost_node_ended_pods_and_strangers_have_no_name() {
        let (one, mut ended) = (pod("e-0", "127.77.0.1", "True"), pod("e-1", "127.77.0.2", "True"));
        ended.status.as_mut().unwrap().phase = Some("Failed".into());
        let mut stranger = pod("x", "127.77.0.3", "True");
        stranger.metadata.labels = None;
        let text = render([service(true)].iter(), &[&one, &ended, &stranger], |pod| name(pod) == "e-0");
        assert_eq!(text, "");
    }
}
