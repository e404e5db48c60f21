//! Leader election by a Lease.
//!
//! Only our own clock is read: a holder is taken for dead when its Lease has not changed for a whole duration *as we watched
//! it*, never by comparing its renewTime with our time. Every write carries the resourceVersion it is based on, so two
//! candidates cannot both succeed. A leader that could not renew for [`RENEW_DEADLINE`] can no longer prove that it leads and
//! the process ends; what a slow request of it may still do is harmless, since every status write carries the version it was
//! decided on.

use std::time::{Duration, Instant};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, Client, ResourceExt, api::PostParams};
use tokio::time::{sleep, timeout};

use crate::spell::Spell;

/// After this long without a change a holder is dead.
pub const DURATION: Duration = Duration::from_secs(15);
/// After this long without a successful renewal a leader ends.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(4);

/// A candidate.
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
}

/// What was last seen of the Lease, and since when by our own clock.
#[derive(Debug)]
struct Seen {
    version: Option<String>,
    since: Instant,
}

impl Candidate {
    /// For the Lease `name` of `namespace`.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), name: name.into(), identity: identity.into() }
    }

    /// Waits until the Lease is ours.
    pub async fn acquire(&self) {
        let mut seen = Seen { version: None, since: Instant::now() };
        let mut spell = Spell::new("ask for the Lease");
        loop {
            match timeout(ANSWER, self.attempt(&mut seen)).await {
                Ok(Ok(true)) => return spell.over(),
                Ok(Ok(false)) => spell.over(),
                Ok(Err(error)) => spell.failed(error),
                Err(_) => spell.failed("no answer"),
            }
            sleep(RETRY).await;
        }
    }

    async fn attempt(&self, seen: &mut Seen) -> kube::Result<bool> {
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            let mut lease = Lease::default();
            lease.metadata.name = Some(self.name.clone());
            lease.spec = Some(self.spec(0));
            return taken(self.api.create(&PostParams::default(), &lease).await);
        };
        let holder = lease.spec.as_ref().and_then(|s| s.holder_identity.clone()).unwrap_or_default();
        let version = lease.resource_version();
        if seen.version != version {
            *seen = Seen { version, since: Instant::now() };
        }
        let free = holder.is_empty() || holder == self.identity || seen.since.elapsed() >= DURATION;
        if !free {
            return Ok(false);
        }
        let transitions = lease.spec.as_ref().and_then(|s| s.lease_transitions).unwrap_or(0);
        let lease = Lease { spec: Some(self.spec(transitions.saturating_add(1))), ..lease };
        taken(self.api.replace(&self.name, &PostParams::default(), &lease).await)
    }

    fn spec(&self, transitions: i32) -> LeaseSpec {
        let now = MicroTime(jiff::Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Renews until that fails for too long or somebody else holds the Lease; returns why we no longer lead.
    pub async fn hold(&self) -> String {
        let mut proven = Instant::now();
        loop {
            sleep(RETRY).await;
            match timeout(ANSWER, self.renew()).await {
                Ok(Ok(Some(other))) => return format!("the Lease is held by {other}"),
                Ok(Ok(None)) => proven = Instant::now(),
                Ok(Err(error)) => tracing::warn!(%error, "cannot renew the Lease"),
                Err(_) => tracing::warn!("no answer to the renewal of the Lease"),
            }
            if proven.elapsed() >= RENEW_DEADLINE {
                return format!("the Lease could not be renewed for {} s", RENEW_DEADLINE.as_secs());
            }
        }
    }

    /// The holder, if it is not us.
    async fn renew(&self) -> kube::Result<Option<String>> {
        let mut lease = self.api.get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder != self.identity {
            return Ok(Some(if holder.is_empty() { "nobody".into() } else { holder }));
        }
        spec.renew_time = Some(MicroTime(jiff::Timestamp::now()));
        self.api.replace(&self.name, &PostParams::default(), &lease).await?;
        Ok(None)
    }

    /// Gives the Lease back, so that a successor need not wait.
    pub async fn release(&self) {
        let give = async {
            let mut lease = self.api.get(&self.name).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(&self.identity) {
                spec.holder_identity = None;
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<(), kube::Error>(())
        };
        if !matches!(timeout(ANSWER, give).await, Ok(Ok(()))) {
            tracing::warn!("the Lease could not be given back; it runs out by itself");
        }
    }
}

/// Somebody else was faster: not ours, and no error.
fn taken(result: kube::Result<Lease>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
