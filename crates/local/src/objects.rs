//! The API store: objects by kind and name, kept on disk one file each, with what a server adds to them (uid, generation,
//! resourceVersion, creationTimestamp, deletionTimestamp).

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, DaemonSet, StatefulSet},
        batch::v1::Job,
        core::v1::{ConfigMap, Pod, Secret, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    error::{At, Result},
    folder,
    pod_group::PodGroup,
};

/// An object this store can hold.
pub trait Object: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + PartialEq {}

impl<K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + PartialEq> Object for K {}

/// All objects of one kind, by name.
#[derive(Debug)]
pub struct Table<K> {
    folder: PathBuf,
    items: BTreeMap<String, K>,
    changes: u64,
}

/// What an apply did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It did not exist.
    Created,
    /// It differed.
    Changed,
    /// Nothing was written.
    Unchanged,
}

impl<K: Object> Table<K> {
    fn open(objects: &Path) -> Result<Self> {
        let folder = objects.join(K::plural(&()).as_ref());
        fs::create_dir_all(&folder).at("create", &folder)?;
        if K::kind(&()) == "Secret" {
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).at("protect", &folder)?;
        }
        let mut items = BTreeMap::new();
        for entry in fs::read_dir(&folder).at("read", &folder)? {
            let path = entry.at("read", &folder)?.path();
            if path.extension().is_some_and(|extension| extension == "json")
                && let Some(object) = folder::read_json::<K>(&path)?
            {
                items.insert(name(&object).to_owned(), object);
            }
        }
        Ok(Self { folder, items, changes: 0 })
    }

    /// The object of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&K> {
        self.items.get(name)
    }

    /// All, in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.items.values()
    }

    /// Number of writes since the store was opened.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// All, owned.
    #[must_use]
    pub fn list(&self) -> Vec<K> {
        self.items.values().cloned().collect()
    }

    /// Writes an object as it is. Returns false when nothing changed.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn put(&mut self, mut object: K) -> Result<bool> {
        let name = name(&object).to_owned();
        if let Some(old) = self.items.get(&name) {
            object.meta_mut().resource_version.clone_from(&old.meta().resource_version);
            if *old == object {
                return Ok(false);
            }
        }
        self.changes += 1;
        let version = object.meta().resource_version.as_deref().and_then(|text| text.parse::<u64>().ok());
        object.meta_mut().resource_version = Some((version.unwrap_or(0) + 1).to_string());
        folder::replace_json(&self.folder.join(format!("{name}.json")), &object)?;
        self.items.insert(name, object);
        Ok(true)
    }

    /// Changes an object in place; nothing happens when there is none of this name.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn update(&mut self, name: &str, change: impl FnOnce(&mut K)) -> Result<bool> {
        let Some(mut object) = self.items.get(name).cloned() else { return Ok(false) };
        change(&mut object);
        self.put(object)
    }

    /// Creates the object, or makes the existing one equal to it: everything but the status, what the server owns, and
    /// `spec.replicas` when the desired object leaves it out (then whoever scales owns it).
    ///
    /// # Errors
    /// [`crate::Error::File`], [`crate::Error::Damaged`] when the object cannot be written as JSON.
    pub fn apply(&mut self, mut desired: K, now: Timestamp) -> Result<Applied> {
        let name = name(&desired).to_owned();
        let Some(old) = self.items.get(&name) else {
            let meta = desired.meta_mut();
            meta.uid = Some(meta.uid.take().unwrap_or_else(uid));
            meta.creation_timestamp = Some(Time(now));
            meta.generation = Some(1);
            self.put(desired)?;
            return Ok(Applied::Created);
        };
        let damaged = |error: serde_json::Error| crate::Error::Damaged {
            path: self.folder.join(format!("{name}.json")),
            reason: error.to_string(),
        };
        {
            let (kept, meta) = (old.meta(), desired.meta_mut());
            meta.uid.clone_from(&kept.uid);
            meta.creation_timestamp.clone_from(&kept.creation_timestamp);
            meta.generation = kept.generation;
            meta.resource_version.clone_from(&kept.resource_version);
            meta.deletion_timestamp.clone_from(&kept.deletion_timestamp);
            meta.finalizers = meta.finalizers.take().or_else(|| kept.finalizers.clone());
        }
        let old_value = serde_json::to_value(old).map_err(damaged)?;
        let mut value = serde_json::to_value(&desired).map_err(damaged)?;
        if let Some(status) = old_value.get("status") {
            value["status"] = status.clone();
        }
        if value.pointer("/spec/replicas").is_none_or(Value::is_null)
            && let Some(replicas) = old_value.pointer("/spec/replicas")
        {
            value["spec"]["replicas"] = replicas.clone();
        }
        if value.get("spec") != old_value.get("spec") {
            value["metadata"]["generation"] = Value::from(old.meta().generation.unwrap_or(0) + 1);
        }
        let merged = serde_json::from_value(value).map_err(damaged)?;
        Ok(if self.put(merged)? { Applied::Changed } else { Applied::Unchanged })
    }

    /// Takes an object out at once.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn remove(&mut self, name: &str) -> Result<Option<K>> {
        let Some(object) = self.items.remove(name) else { return Ok(None) };
        self.changes += 1;
        let path = self.folder.join(format!("{name}.json"));
        fs::remove_file(&path).at("remove", &path)?;
        Ok(Some(object))
    }
}

/// The kinds that the controllers and the kubelet of this node work on.
#[derive(Debug)]
pub struct Objects {
    /// Pods.
    pub pods: Table<Pod>,
    /// Trainer attempts.
    pub jobs: Table<Job>,
    /// Of attempts, with a gang scheduler; without effect.
    pub pod_groups: Table<PodGroup>,
    /// Engines, pooled workers, the conductor.
    pub stateful_sets: Table<StatefulSet>,
    /// Workers, one a node.
    pub daemon_sets: Table<DaemonSet>,
    /// Templates a StatefulSet has had.
    pub revisions: Table<ControllerRevision>,
    /// Names.
    pub services: Table<Service>,
    /// Settings.
    pub config_maps: Table<ConfigMap>,
    /// Tokens.
    pub secrets: Table<Secret>,
    /// Kept, without effect: nothing here evicts.
    pub disruption_budgets: Table<PodDisruptionBudget>,
}

impl Objects {
    /// Opens or creates the store under `folder`.
    ///
    /// # Errors
    /// [`crate::Error::File`], [`crate::Error::Damaged`].
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            pods: Table::open(folder)?,
            jobs: Table::open(folder)?,
            pod_groups: Table::open(folder)?,
            stateful_sets: Table::open(folder)?,
            daemon_sets: Table::open(folder)?,
            revisions: Table::open(folder)?,
            services: Table::open(folder)?,
            config_maps: Table::open(folder)?,
            secrets: Table::open(folder)?,
            disruption_budgets: Table::open(folder)?,
        })
    }

    /// Number of writes since the store was opened.
    #[must_use]
    pub fn changes(&self) -> u64 {
        let Self {
            pods,
            jobs,
            pod_groups,
            stateful_sets,
            daemon_sets,
            revisions,
            services,
            config_maps,
            secrets,
            disruption_budgets,
        } = self;
        pods.changes()
            + jobs.changes()
            + pod_groups.changes()
            + stateful_sets.changes()
            + daemon_sets.changes()
            + revisions.changes()
            + services.changes()
            + config_maps.changes()
            + secrets.changes()
            + disruption_budgets.changes()
    }
}

/// Opens a table of one more kind in the same store.
///
/// # Errors
/// [`crate::Error::File`], [`crate::Error::Damaged`].
pub fn table<K: Object>(folder: &Path) -> Result<Table<K>> {
    Table::open(folder)
}

/// Name of an object ("" when it has none, which only a bug makes).
#[must_use]
pub fn name<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

/// Uid of the controller that owns an object.
#[must_use]
pub fn controller<K: Resource>(object: &K) -> Option<&OwnerReference> {
    object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// True when `owner` controls `object`.
#[must_use]
pub fn owns<O: Resource, K: Resource>(owner: &O, object: &K) -> bool {
    controller(object).is_some_and(|reference| Some(&reference.uid) == owner.meta().uid.as_ref())
}

/// A reference that makes `owner` the controller of something.
#[must_use]
pub fn owner_reference<O: Resource<DynamicType = ()>>(owner: &O) -> OwnerReference {
    OwnerReference {
        api_version: O::api_version(&()).into_owned(),
        kind: O::kind(&()).into_owned(),
        name: name(owner).to_owned(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A new random uid (version 4).
#[must_use]
pub fn uid() -> String {
    let mut bytes = [0_u8; 16];
    random(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Fills with random bytes of the system.
pub fn random(bytes: &mut [u8]) {
    use std::io::Read;
    let read = fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(bytes));
    if read.is_err() {
        // No /dev: the standard library seeds its hash keys from the system too.
        use std::hash::{BuildHasher, Hasher};
        for chunk in bytes.chunks_mut(8) {
            let value = std::hash::RandomState::new().build_hasher().finish().to_le_bytes();
            chunk.copy_from_slice(&value[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(value: Value) -> StatefulSet {
        serde_json::from_value(value).unwrap()
    }

    fn desired(replicas: Option<i32>, image: &str) -> StatefulSet {
        let mut value = json!({"metadata": {"name": "s"}, "spec": {"selector": {}, "serviceName": "s",
            "template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
        if let Some(replicas) = replicas {
            value["spec"]["replicas"] = replicas.into();
        }
        set(value)
    }

    #[test]
    fn applying_the_same_object_again_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = table::<StatefulSet>(folder.path()).unwrap();
        assert_eq!(table.apply(desired(Some(2), "a"), Timestamp::UNIX_EPOCH).unwrap(), Applied::Created);
        let uid = table.get("s").unwrap().metadata.uid.clone();
        assert!(uid.as_ref().is_some_and(|uid| uid.len() == 36));
        assert_eq!(table.apply(desired(Some(2), "a"), Timestamp::now()).unwrap(), Applied::Unchanged);
        assert_eq!(table.changes(), 1);
        assert_eq!(table.apply(desired(Some(2), "b"), Timestamp::now()).unwrap(), Applied::Changed);
        let meta = &table.get("s").unwrap().metadata;
        assert_eq!((meta.generation, &meta.uid), (Some(2), &uid));
    }

    #[test]
    fn replicas_left_out_stay_with_whoever_scales() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = table::<StatefulSet>(folder.path()).unwrap();
        table.apply(desired(Some(2), "a"), Timestamp::now()).unwrap();
        table.update("s", |set| set.spec.as_mut().unwrap().replicas = Some(5)).unwrap();
        table.apply(desired(None, "b"), Timestamp::now()).unwrap();
        assert_eq!(table.get("s").unwrap().spec.as_ref().unwrap().replicas, Some(5));
    }

    #[test]
    fn an_apply_keeps_the_status_and_a_new_node_finds_all_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = table::<StatefulSet>(folder.path()).unwrap();
        first.apply(desired(Some(2), "a"), Timestamp::now()).unwrap();
        first.update("s", |set| set.status.get_or_insert_default().replicas = 2).unwrap();
        first.apply(desired(Some(3), "a"), Timestamp::now()).unwrap();
        let again = table::<StatefulSet>(folder.path()).unwrap();
        assert_eq!(again.get("s"), first.get("s"));
        assert_eq!(again.get("s").unwrap().status.as_ref().unwrap().replicas, 2);
        first.remove("s").unwrap();
        assert!(table::<StatefulSet>(folder.path()).unwrap().get("s").is_none());
    }

    #[test]
    fn uids_are_of_version_4_and_differ() {
        let (one, two) = (uid(), uid());
        assert!(
            one != two && one.as_bytes()[14] == b'4' && matches!(one.as_bytes()[19], b'8' | b'9' | b'a' | b'b'),
            "{one}"
        );
    }
}
