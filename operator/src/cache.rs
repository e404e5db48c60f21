//! A cache of one kind of child, fed by a watch and indexed by owner.
//!
//! Absence in a cache is not absence: it may lag behind. Who must be certain asks the API server.

use std::{
    collections::{BTreeMap, HashMap},
    marker::PhantomData,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use kube::{Resource, ResourceExt, runtime::watcher::Event};
use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use serde::{
    Serialize,
    de::{DeserializeOwned, Error as _},
};

/// Namespace and name; the namespace is empty for what has none.
pub type Key = (String, String);

/// Objects of one kind.
pub struct Cache<K> {
    inner: Mutex<Inner>,
    /// The first object, as JSON: all others are packed as what differs from it, which is names, uids and times.
    sample: OnceLock<Vec<u8>>,
    ready: tokio::sync::watch::Sender<bool>,
    /// Values of these labels are the owners of an object.
    owner_labels: &'static [&'static str],
    kind: PhantomData<fn() -> K>,
}

#[derive(Default)]
struct Inner {
    objects: BTreeMap<Arc<Key>, Arc<Packed>>,
    owned: HashMap<String, BTreeMap<Arc<Key>, Arc<Packed>>>,
    /// Filled while a list is under way; it then takes the place of `objects`.
    relisted: Option<BTreeMap<Arc<Key>, Packed>>,
}

/// An object as compressed JSON. Decoded, a pod takes six times as much as JSON and a StatefulSet as well, and most of them lie here
/// unread: of 100 runs 16 MB were this cache's, decoded and cut to size.
struct Packed {
    json: Box<[u8]>,
    /// Apart, since a heartbeat changes nothing else.
    version: Option<String>,
    owners: Vec<String>,
}

impl Packed {
    /// Nothing for what is no JSON, which no object of the API server is.
    fn of<K: Resource<DynamicType = ()> + Serialize>(
        mut object: K,
        owner_labels: &[&str],
        sample: &OnceLock<Vec<u8>>,
    ) -> Option<(Arc<Key>, Self)> {
        let key = Arc::new((object.namespace().unwrap_or_default(), object.name_any()));
        let version = object.meta_mut().resource_version.take();
        let labels = object.meta().labels.as_ref();
        let owners = owner_labels.iter().filter_map(|label| labels?.get(*label).cloned()).collect();
        match serde_json::to_vec(&object) {
            Ok(json) => {
                let packed = compress_prepend_size_with_dict(&json, sample.get_or_init(|| json.clone()));
                Some((key, Self { json: packed.into_boxed_slice(), version, owners }))
            }
            Err(error) => {
                tracing::error!(kind = %K::kind(&()), name = key.1, %error, "an object cannot be kept");
                None
            }
        }
    }

    fn object<K: Resource<DynamicType = ()> + DeserializeOwned>(&self, sample: &OnceLock<Vec<u8>>) -> Option<Arc<K>> {
        let sample = sample.get().map(Vec::as_slice).unwrap_or_default();
        let json = decompress_size_prepended_with_dict(&self.json, sample).map_err(serde_json::Error::custom);
        match json.and_then(|json| serde_json::from_slice::<K>(&json)) {
            Ok(mut object) => {
                object.meta_mut().resource_version.clone_from(&self.version);
                Some(Arc::new(object))
            }
            Err(error) => {
                tracing::error!(kind = %K::kind(&()), %error, "an object that was kept cannot be read");
                None
            }
        }
    }
}

impl<K: Resource<DynamicType = ()> + Serialize + DeserializeOwned> Cache<K> {
    /// An empty cache.
    pub fn new(owner_labels: &'static [&'static str]) -> Self {
        let ready = tokio::sync::watch::Sender::new(false);
        Self { inner: Mutex::default(), sample: OnceLock::new(), ready, owner_labels, kind: PhantomData }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change below leaves it whole: a panic elsewhere poisons nothing.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has been filled once.
    pub async fn filled(&self) {
        // The sender lives as long as the cache, so this cannot fail while it is borrowed.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// The object of that name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let packed = self.lock().objects.get(&(namespace.to_owned(), name.to_owned())).cloned();
        packed?.object(&self.sample)
    }

    /// What this owner has.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        let packed: Vec<_> = self.lock().owned.get(uid).into_iter().flat_map(|all| all.values().cloned()).collect();
        packed.iter().filter_map(|one| one.object(&self.sample)).collect()
    }

    /// Everything.
    pub fn all(&self) -> Vec<Arc<K>> {
        let packed: Vec<_> = self.lock().objects.values().cloned().collect();
        packed.iter().filter_map(|one| one.object(&self.sample)).collect()
    }

    /// Takes an event in; returns the objects that it changed, or removed.
    pub fn take(&self, event: Event<K>) -> Vec<Arc<K>> {
        let pack = |object| Packed::of(object, self.owner_labels, &self.sample);
        let mut inner = self.lock();
        let changes: Vec<Arc<Packed>> = match event {
            Event::Apply(object) => pack(object).and_then(|(key, packed)| inner.put(key, packed)).into_iter().collect(),
            Event::Delete(object) => {
                let object = Arc::new(object);
                inner.forget(&key(&*object));
                return vec![object];
            }
            Event::Init => {
                inner.relisted = Some(BTreeMap::new());
                return Vec::new();
            }
            Event::InitApply(object) => {
                inner.relisted.get_or_insert_default().extend(pack(object));
                return Vec::new();
            }
            Event::InitDone => {
                let listed = inner.relisted.take().unwrap_or_default();
                let lost: Vec<_> = inner.objects.keys().filter(|k| !listed.contains_key(*k)).cloned().collect();
                let mut changes: Vec<_> = lost.iter().filter_map(|key| inner.forget(key)).collect();
                changes.extend(listed.into_iter().filter_map(|(key, packed)| inner.put(key, packed)));
                self.ready.send_replace(true);
                changes
            }
        };
        drop(inner);
        changes.iter().filter_map(|one| one.object(&self.sample)).collect()
    }
}

impl Inner {
    /// Nothing if all that is kept of it is as before: heartbeats wake nobody.
    fn put(&mut self, key: Arc<Key>, packed: Packed) -> Option<Arc<Packed>> {
        let same = self.objects.get(&key).is_some_and(|old| old.json == packed.json);
        let packed = Arc::new(packed);
        // Labels may have changed hands.
        self.forget(&key);
        for uid in &packed.owners {
            self.owned.entry(uid.clone()).or_default().insert(key.clone(), packed.clone());
        }
        self.objects.insert(key, packed.clone());
        (!same).then_some(packed)
    }

    fn forget(&mut self, key: &Key) -> Option<Arc<Packed>> {
        let old = self.objects.remove(key)?;
        for uid in &old.owners {
            if let Some(all) = self.owned.get_mut(uid) {
                all.remove(key);
                if all.is_empty() {
                    self.owned.remove(uid);
                }
            }
        }
        Some(old)
    }
}

fn key<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(name: &str, owner: &str, version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.into());
        object.metadata.namespace = Some("n".into());
        object.metadata.resource_version = Some(version.into());
        object.metadata.labels = Some(BTreeMap::from([("owner".to_owned(), owner.to_owned())]));
        object
    }

    fn names(changes: &[Arc<ConfigMap>]) -> Vec<String> {
        changes.iter().map(|object| object.name_any()).collect()
    }

    #[test]
    fn a_new_list_tells_what_came_what_changed_and_what_went_while_nobody_watched() {
        let cache = Cache::new(&["owner"]);
        cache.take(Event::Init);
        for name in ["a", "b", "c"] {
            assert!(cache.take(Event::InitApply(object(name, "o", "1"))).is_empty());
        }
        assert!(cache.all().is_empty(), "half a list is no list");
        assert_eq!(cache.take(Event::InitDone).len(), 3);
        cache.take(Event::Init);
        for (name, version) in [("a", "2"), ("b", "2"), ("d", "3")] {
            let mut listed = object(name, "o", version);
            listed.data = (name == "b").then(|| BTreeMap::from([("k".to_owned(), "v".to_owned())]));
            cache.take(Event::InitApply(listed));
        }
        let changes = names(&cache.take(Event::InitDone));
        assert_eq!(changes, ["c", "b", "d"]);
        assert!(cache.get("n", "c").is_none());
        assert_eq!(cache.owned_by("o").len(), 3);
    }

    #[test]
    fn what_is_read_is_what_was_put_version_and_all_and_a_heartbeat_changes_nothing_else() {
        let cache = Cache::new(&["owner"]);
        let first = object("a", "o", "1");
        assert_eq!(cache.take(Event::Apply(first.clone())), [Arc::new(first.clone())]);
        assert_eq!(cache.owned_by("o"), [Arc::new(first)]);
        let beat = object("a", "o", "2");
        assert!(cache.take(Event::Apply(beat.clone())).is_empty());
        assert_eq!(cache.get("n", "a"), Some(Arc::new(beat)));
    }

    #[test]
    fn an_object_whose_label_changes_leaves_its_old_owner() {
        let cache = Cache::new(&["owner"]);
        cache.take(Event::Apply(object("a", "o", "1")));
        cache.take(Event::Apply(object("a", "p", "2")));
        assert!(cache.owned_by("o").is_empty());
        assert_eq!(cache.owned_by("p").len(), 1);
        cache.take(Event::Delete(object("a", "p", "3")));
        assert!(cache.owned_by("p").is_empty() && cache.get("n", "a").is_none());
    }
}
