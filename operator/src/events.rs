//! Events: what happened, for people. `decide` speaks of a thing once, so each is an object of its own with its own words.

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event as ApiEvent},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};

const CONTROLLER: &str = "thresh.dev/operator";
/// The API server's own limit.
const NOTE_MAX: usize = 1024;

/// Writes events.
#[derive(Clone)]
pub struct Events {
    client: Client,
    instance: String,
}

impl Events {
    /// As this process.
    pub fn new(client: Client, instance: impl Into<String>) -> Self {
        Self { client, instance: instance.into() }
    }

    /// Tells about `regarding`. A lost event is only logged: conditions hold what matters.
    pub async fn tell(&self, regarding: ObjectReference, event: plan::Event) {
        let plan::Event { warning, reason, note } = event;
        tracing::info!(object = regarding.name, reason, "{note}");
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
        let object = ApiEvent {
            metadata: ObjectMeta {
                generate_name: regarding.name.as_ref().map(|name| format!("{name}-")),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            type_: Some(if warning { "Warning" } else { "Normal" }.into()),
            reason: Some(reason.into()),
            action: Some(reason.into()),
            note: Some(shortened(note)),
            event_time: Some(MicroTime(jiff::Timestamp::now())),
            regarding: Some(regarding),
            reporting_controller: Some(CONTROLLER.into()),
            reporting_instance: Some(self.instance.clone()),
            ..ApiEvent::default()
        };
        let api: Api<ApiEvent> = Api::namespaced(self.client.clone(), &namespace);
        let told = tokio::time::timeout(crate::apply::ANSWER, api.create(&PostParams::default(), &object)).await;
        match told {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "an event was not written"),
            Err(_) => tracing::warn!("an event was not written: no answer"),
        }
    }
}

fn shortened(mut note: String) -> String {
    if note.len() > NOTE_MAX {
        let mut end = NOTE_MAX - "…".len();
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_note_is_never_longer_than_the_server_takes() {
        assert!(super::shortened("é".repeat(2000)).len() <= super::NOTE_MAX);
        assert_eq!(super::shortened("short".into()), "short");
    }
}
