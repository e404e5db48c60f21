//! One look at one object: read the world, let `plan` decide, write the status, act.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use api::{API_VERSION, conditions as cond};
use conductor_link::Order;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::controller::Action as Next,
};
use plan::{Action, Plan};
use serde_json::json;

use crate::{
    apply::{Hands, ask, exactly, gone},
    context::{Context, Guarded},
    error::{Error, Result},
    kind::{Kind, identity},
    secrets,
};

/// Looks in a row before the rest waits for the next turn: a plan that never comes to rest must not spin.
const PASSES: usize = 8;
/// Everything is looked at this often even if nothing is seen to change: a watch may lose an event.
const RESYNC: Duration = Duration::from_secs(600);
/// A look that takes longer is given up and begun again.
const DEADLINE: Duration = Duration::from_secs(60);
/// Soonest next look.
const SOON: Duration = Duration::from_millis(100);
/// After children were touched, should no watch tell of it.
const TOUCHED: Duration = Duration::from_secs(1);
/// First and longest delay after failures in a row.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(120));
/// News that were promised and do not come are asked for again after this.
const NEWS: Duration = Duration::from_secs(3);

/// What a look came to.
enum Looked {
    /// Nothing to do until something changes, or until then.
    Rest(Option<jiff::Timestamp>),
    /// What is decided by has changed, and is at hand: look at once.
    Again,
    /// Children were touched. The caches do not show it yet; their watches will ask for the next look.
    Soon,
}

/// Looks at an object until it is at rest.
pub async fn reconcile<K: Kind>(guarded: Arc<Guarded<K>>, context: Arc<Context>) -> Result<Next> {
    let begun = Instant::now();
    let result = match tokio::time::timeout(DEADLINE, look::<K>(&guarded, &context)).await {
        Ok(result) => result,
        Err(_) => Err(Error::Silent { doing: format!("look at {}", K::NAME), after: DEADLINE }),
    };
    let metrics = &context.metrics;
    metrics.reconcile_seconds.with_label_values(&[K::NAME]).observe(begun.elapsed().as_secs_f64());
    let outcome = match &result {
        Ok((_, true)) => "changed",
        Ok((_, false)) => "unchanged",
        Err(_) => "error",
    };
    metrics.reconciles.with_label_values(&[K::NAME, outcome]).inc();
    result.map(|(next, _)| next)
}

/// When to try again what failed: later each time, and spread by the object's uid so that many do not come back together.
pub fn on_error<K: Kind>(guarded: Arc<Guarded<K>>, error: &Error, context: Arc<Context>) -> Next {
    let (namespace, name, uid) = identity(&*guarded);
    let failures = K::memory(&context).failed(uid);
    let delay = if error.is_conflict() && failures <= 3 { SOON } else { backoff(failures, uid) };
    tracing::warn!(kind = K::NAME, namespace, name, failures, reason = error.reason(), "{error}");
    Next::requeue(delay)
}

fn backoff(failures: u32, uid: &str) -> Duration {
    let (first, longest) = BACKOFF;
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest);
    let spread = uid.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % 256;
    doubled + doubled.mul_f64(f64::from(spread) / 2560.0)
}

async fn look<K: Kind>(guarded: &Guarded<K>, context: &Arc<Context>) -> Result<(Next, bool)> {
    if !context.schema_is_current.load(Ordering::Relaxed) {
        return Ok((Next::await_change(), false));
    }
    let object = match &guarded.0 {
        Ok(object) => object,
        Err(invalid) => {
            refuse::<K>(invalid, context).await?;
            return Ok((Next::requeue(RESYNC), true));
        }
    };
    let (namespace, _, uid) = identity(object);
    if !object.is_managed() {
        return Ok((Next::await_change(), false));
    }
    let hands = Hands { client: &context.client, metrics: &context.metrics, namespace, manager: K::MANAGER };
    let mut object = K::memory(context).latest(object);
    let mut listing = None;
    let mut changed = false;
    for _ in 0..PASSES {
        let token = token(&object, context).await;
        let token = match token {
            Ok(token) => token,
            Err(error) => return Err(confess(&mut object, error, &hands, context).await),
        };
        let Some(world) = object.dereference(context, &token, listing.take()).await? else {
            return Ok((Next::requeue(NEWS), changed));
        };
        let plan = object.decide(&world, jiff::Timestamp::now(), &context.settings);
        match carry_out(&mut object, plan, &hands, context, &mut listing).await {
            Ok(Looked::Again) => changed = true,
            Ok(Looked::Soon) => {
                K::memory(context).succeeded(uid);
                return Ok((Next::requeue(TOUCHED), true));
            }
            Ok(Looked::Rest(until)) => {
                absolve(&mut object, &hands, context).await?;
                K::memory(context).succeeded(uid);
                return Ok((Next::requeue(delay(until)), changed));
            }
            Err(error) => return Err(confess(&mut object, error, &hands, context).await),
        }
    }
    tracing::debug!(uid, "not at rest after {PASSES} looks");
    K::memory(context).succeeded(uid);
    Ok((Next::requeue(SOON), changed))
}

fn delay(until: Option<jiff::Timestamp>) -> Duration {
    let wanted = until.map(|at| {
        let left = at.duration_since(jiff::Timestamp::now());
        Duration::try_from(left).unwrap_or(Duration::ZERO)
    });
    wanted.unwrap_or(RESYNC).clamp(SOON, RESYNC)
}

/// The object's own token; one on its way out gets no new one.
async fn token<K: Kind>(object: &K, context: &Context) -> Result<String> {
    let uid = identity(object).2;
    let (known, seen) = K::memory(context).token(uid).unzip();
    if object.meta().deletion_timestamp.is_some() || seen.is_some_and(|seen| seen.elapsed() < RESYNC) {
        return Ok(known.unwrap_or_default());
    }
    let token = secrets::ensure(context, object, known.as_deref()).await?;
    K::memory(context).set_token(uid, &token);
    Ok(token)
}

async fn carry_out<K: Kind>(
    object: &mut K,
    plan: Plan<K::Status>,
    hands: &Hands<'_>,
    context: &Arc<Context>,
    listing: &mut Option<plan::Listing>,
) -> Result<Looked> {
    // Without `..`: a part that a plan gains must be carried out here.
    let Plan { status, actions, requeue_at, events } = plan;
    let mut again = false;
    if let Some(status) = status {
        // What is in status is known to every later decision before it is acted on.
        write_status(object, status, hands, context).await?;
        again = true;
    }
    let mut touched = false;
    let mut failed = None;
    for action in actions {
        match act(object, action, hands, context, listing).await {
            Ok(Done::Nothing) => {}
            Ok(Done::Child) => touched = true,
            Ok(Done::Known) => again = true,
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    // The status is written, so what they tell of has happened, whatever became of the actions: they are not planned again.
    for event in events {
        if event.reason == "StalePodsFenced" {
            context.metrics.fences.inc();
        }
        context.events.tell(object.object_ref(&()), event).await;
    }
    if let Some(error) = failed {
        return Err(error);
    }
    Ok(match (listing.is_some(), touched, again) {
        (true, ..) => Looked::Again,
        (false, true, _) => Looked::Soon,
        (false, false, true) => Looked::Again,
        (false, false, false) => Looked::Rest(requeue_at),
    })
}

/// What an action came to.
enum Done {
    /// Nothing that a decision would see.
    Nothing,
    /// A child was made, changed or deleted.
    Child,
    /// Something that the next decision is told.
    Known,
}

async fn act<K: Kind>(
    object: &mut K,
    action: Action,
    hands: &Hands<'_>,
    context: &Arc<Context>,
    listing: &mut Option<plan::Listing>,
) -> Result<Done> {
    let uid = identity(object).2.to_owned();
    match action {
        Action::Create(child) => hands.create(&child).await.map(|made| if made { Done::Child } else { Done::Nothing }),
        Action::Apply(child) => hands.apply(&child).await.map(|()| Done::Child),
        Action::Delete(target) => hands.delete(&target).await.map(|()| Done::Child),
        Action::DeletePod { name, uid, force } => hands.delete_pod(&name, &uid, force).await.map(|()| Done::Child),
        Action::Tell(settings) => {
            context.links.order(&uid, Order::Settings(settings));
            Ok(Done::Nothing)
        }
        Action::RequestCheckpoint { id, attempt, then_stop } => {
            context.links.order(&uid, Order::Checkpoint { id, attempt, then_stop });
            Ok(Done::Nothing)
        }
        Action::ConfirmGone => {
            let found = hands.list(&uid).await?;
            // After the lists: whoever had written before them has changed this version.
            let (namespace, name, _) = identity(object);
            let api: Api<K> = Api::namespaced(hands.client.clone(), namespace);
            let meta = ask(&format!("get {} {name}", K::NAME), api.get_metadata_opt(name)).await?;
            *listing = Some(found.at(meta.and_then(|meta| meta.metadata.resource_version)));
            Ok(Done::Known)
        }
        Action::DeleteSelf { uid } => {
            let (namespace, name, _) = identity(object);
            let api: Api<K> = Api::namespaced(hands.client.clone(), namespace);
            hands.metrics.writes.with_label_values(&[K::NAME, "delete"]).inc();
            let doing = format!("delete {} {name}", K::NAME);
            gone(ask(&doing, api.delete(name, &exactly(&uid))).await.map(drop)).map(|()| Done::Nothing)
        }
        Action::AddFinalizer(finalizer) => {
            let mut list = object.meta().finalizers.clone().unwrap_or_default();
            if list.iter().any(|one| one == finalizer) {
                return Ok(Done::Nothing);
            }
            list.push(finalizer.to_owned());
            set_finalizers(object, list, hands, context).await.map(|()| Done::Known)
        }
        Action::RemoveFinalizer(finalizer) => {
            let mut list = object.meta().finalizers.clone().unwrap_or_default();
            list.retain(|one| one != finalizer);
            match set_finalizers(object, list, hands, context).await {
                // Gone with it.
                Err(error) if error.is_not_found() => Ok(Done::Nothing),
                // With the last one the object is gone: there is nothing to look at again.
                result => result.map(|()| Done::Nothing),
            }
        }
    }
}

async fn set_finalizers<K: Kind>(
    object: &mut K,
    finalizers: Vec<String>,
    hands: &Hands<'_>,
    context: &Context,
) -> Result<()> {
    let (namespace, name, _) = identity(object);
    let api: Api<K> = Api::namespaced(hands.client.clone(), namespace);
    let body = json!({ "metadata": { "resourceVersion": object.meta().resource_version, "finalizers": finalizers } });
    let doing = format!("set the finalizers of {} {name}", K::NAME);
    let params = PatchParams { field_manager: Some(K::MANAGER.into()), ..PatchParams::default() };
    hands.metrics.writes.with_label_values(&[K::NAME, "patch"]).inc();
    let written = ask(&doing, api.patch(name, &params, &Patch::Merge(&body))).await?;
    K::memory(context).wrote(object, &written);
    *object = written;
    Ok(())
}

/// Writes a status that was decided on exactly this version of the object; refused if somebody wrote since.
async fn write_status<K: Kind>(object: &mut K, status: K::Status, hands: &Hands<'_>, context: &Context) -> Result<()> {
    let (namespace, name, _) = identity(object);
    let doing = format!("write the status of {} {name}", K::NAME);
    let api: Api<K> = Api::namespaced(hands.client.clone(), namespace);
    let mut body = json!({
        "apiVersion": API_VERSION,
        "kind": K::NAME,
        "metadata": { "name": name, "namespace": namespace, "resourceVersion": object.meta().resource_version },
        "status": serde_json::to_value(&status).map_err(|source| Error::Json { doing: doing.clone(), source })?,
    });
    api::without_nulls(&mut body);
    hands.metrics.writes.with_label_values(&[K::NAME, "status"]).inc();
    let params = PatchParams::apply(K::MANAGER).force();
    let written = ask(&doing, api.patch_status(name, &params, &Patch::Apply(&body))).await?;
    K::memory(context).wrote(object, &written);
    *object = written;
    object.changed(context);
    object.gauge(context, false);
    Ok(())
}

/// A look that failed leaves a condition, if the object itself can be at fault.
async fn confess<K: Kind>(object: &mut K, error: Error, hands: &Hands<'_>, context: &Context) -> Error {
    let Some(class) = error.class() else { return error };
    let mut status = object.status_or_default();
    let generation = object.meta().generation;
    let list = K::conditions(&mut status);
    let before = cond::get(list, cond::RECONCILED).cloned();
    plan::apply_failed(list, class, &error.to_string(), generation, jiff::Timestamp::now());
    let after = cond::get(list, cond::RECONCILED).cloned();
    if before == after {
        return error;
    }
    let note = after.map(|c| c.message).unwrap_or_default();
    if let Err(second) = write_status(object, status, hands, context).await {
        tracing::debug!(%second, "the failure could not be written down");
        return error;
    }
    if before.is_none_or(|c| c.reason != class.reason()) {
        let event = plan::Event { warning: true, reason: class.reason(), note };
        context.events.tell(object.object_ref(&()), event).await;
    }
    error
}

/// Everything is as it should be: what was said of a failure is taken back.
async fn absolve<K: Kind>(object: &mut K, hands: &Hands<'_>, context: &Context) -> Result<()> {
    if object.meta().deletion_timestamp.is_some() {
        return Ok(());
    }
    let mut status = object.status_or_default();
    let generation = object.meta().generation;
    let list = K::conditions(&mut status);
    let before = cond::get(list, cond::RECONCILED).cloned();
    plan::applied(list, generation, jiff::Timestamp::now());
    if before.as_ref() == cond::get(list, cond::RECONCILED) {
        return Ok(());
    }
    write_status(object, status, hands, context).await
}

/// An object that the API server took and we cannot read: it says so itself, and nothing else is touched.
async fn refuse<K: Kind>(invalid: &kube::core::error_boundary::InvalidObject, context: &Context) -> Result<()> {
    let meta = &invalid.metadata;
    let name = meta.name.as_deref().unwrap_or_default();
    let mut list = Vec::new();
    let message = format!("cannot be read by this operator: {}", invalid.error);
    let now = jiff::Timestamp::now();
    cond::set(&mut list, cond::ACCEPTED, cond::Truth::False, "InvalidSpec", &message, meta.generation, now);
    say_only::<K>(context, meta.namespace.as_deref().unwrap_or_default(), name, meta.generation, &list).await
}

/// Writes only these conditions, as a field manager of its own: what the controller wrote before stands.
pub async fn say_only<K: Kind>(
    context: &Context,
    namespace: &str,
    name: &str,
    generation: Option<i64>,
    conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
) -> Result<()> {
    let api: Api<kube::core::PartialObjectMeta<K>> = Api::namespaced(context.client.clone(), namespace);
    let body = json!({
        "apiVersion": API_VERSION,
        "kind": K::NAME,
        "metadata": { "name": name, "namespace": namespace },
        "status": { "observedGeneration": generation, "conditions": conditions },
    });
    context.metrics.writes.with_label_values(&[K::NAME, "status"]).inc();
    let params = PatchParams::apply("thresh-operator/guard").force();
    let doing = format!("write the status of {} {name}", K::NAME);
    ask(&doing, api.patch_status(name, &params, &Patch::Apply(&body))).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_again_later_each_time_but_never_given_up() {
        let delays: Vec<_> = (1..20).map(|n| backoff(n, "uid")).collect();
        assert!(delays.windows(2).all(|w| w[0] <= w[1]), "{delays:?}");
        assert!(delays[0] < Duration::from_secs(1) && delays[18] <= BACKOFF.1.mul_f64(1.1), "{delays:?}");
        assert_ne!(backoff(5, "a"), backoff(5, "b"));
    }

    #[test]
    fn the_next_look_is_exactly_when_it_was_asked_for() {
        let at = |s: i64| Some(jiff::Timestamp::now() + jiff::SignedDuration::from_secs(s));
        assert_eq!(delay(None), RESYNC);
        assert_eq!(delay(at(-5)), SOON);
        assert!((Duration::from_secs(29)..=Duration::from_secs(30)).contains(&delay(at(30))));
        assert_eq!(delay(at(86400)), RESYNC);
    }
}
