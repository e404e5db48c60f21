//! What the three controllers have in common: an object is looked at, `plan` decides, the plan is carried out.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference},
};
use kube::{
    Resource,
    runtime::reflector::{ObjectRef, Store},
};
use plan::{Listing, Plan, Settings};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    context::{Context, Guarded, Memory, Requests},
    error::Result,
};

/// One of our own kinds.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Its status.
    type Status: Clone + Serialize + Send + Sync;
    /// What is observed of it.
    type World: Send;
    /// Its name.
    const NAME: &'static str;
    /// Field manager of its controller.
    const MANAGER: &'static str;

    /// What is observed; `None`: not everything that matters has been heard yet, and there will be news.
    fn dereference(
        &self,
        context: &Arc<Context>,
        token: &str,
        listing: Option<Listing>,
    ) -> impl Future<Output = Result<Option<Self::World>>> + Send;
    /// The brain.
    fn decide(&self, world: &Self::World, now: jiff::Timestamp, settings: &Settings) -> Plan<Self::Status>;
    /// Its status, empty if it has none.
    fn status_or_default(&self) -> Self::Status;
    /// The conditions of a status.
    fn conditions(status: &mut Self::Status) -> &mut Vec<Condition>;
    /// The reference to put on a child.
    fn owner(&self) -> OwnerReference;
    /// It is ours to act on; another controller may have been named for it.
    fn is_managed(&self) -> bool {
        true
    }
    /// Who else may have to be looked at when this one has changed.
    fn changed(&self, context: &Context);
    /// Gauges about this one object; all of them are taken back when it is gone.
    fn gauge(&self, context: &Context, gone: bool);

    /// Its memory.
    fn memory(context: &Context) -> &Memory<Self>;
    /// Its store.
    fn store(context: &Context) -> &Store<Guarded<Self>>;
    /// Where to ask for a look at one.
    fn requests(context: &Context) -> &Requests<Self>;

    /// Asks for a look at one.
    fn request(context: &Context, namespace: &str, name: &str) {
        if context.is_active() {
            // The receiver lives as long as the process; when it ends nobody needs to look any more.
            let _ = Self::requests(context).send(ObjectRef::new(name).within(namespace));
        }
    }

    /// Asks for a look at all of a namespace, or of all namespaces, that `wanted` picks.
    fn request_where(context: &Context, namespace: Option<&str>, wanted: impl Fn(&Self) -> bool) {
        for one in Self::store(context).state() {
            let Ok(object) = &one.0 else { continue };
            let there = object.meta().namespace.as_deref().unwrap_or_default();
            if namespace.is_none_or(|n| n == there) && wanted(object) {
                Self::request(context, there, object.meta().name.as_deref().unwrap_or_default());
            }
        }
    }
}

/// Namespace, name and uid of an object that exists.
pub fn identity<K: Resource>(object: &K) -> (&str, &str, &str) {
    let meta = object.meta();
    (
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
        meta.uid.as_deref().unwrap_or_default(),
    )
}
