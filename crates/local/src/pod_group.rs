//! PodGroups of gang schedulers: kept, without effect. Here every pod of an attempt is placed at once.

use std::borrow::Cow;

use kube::core::{DynamicObject, NamespaceResourceScope, ObjectMeta, Resource};
use plan::GangApi;
use serde::{Deserialize, Serialize};

/// A PodGroup of whichever gang scheduler; its own `apiVersion` says which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodGroup(pub DynamicObject);

impl PodGroup {
    /// Whose it is.
    #[must_use]
    pub fn api(&self) -> GangApi {
        let (volcano, _) = GangApi::Volcano.group_version();
        match &self.0.types {
            Some(types) if types.api_version.starts_with(volcano) => GangApi::Volcano,
            _ => GangApi::SchedulerPlugins,
        }
    }
}

/// For the store, which knows one kind by one name.
impl Resource for PodGroup {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "PodGroup".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GangApi::SchedulerPlugins.group_version().0.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        GangApi::SchedulerPlugins.group_version().1.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "podgroups".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}
