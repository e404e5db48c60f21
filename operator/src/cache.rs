//! A cache of one kind of child, fed by a watch and indexed by owner.
//!
//! Absence in a cache is not absence: it may lag behind. Who must be certain asks the API server.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::{Resource, ResourceExt, runtime::watcher::Event};

/// Namespace and name; the namespace is empty for what has none.
pub type Key = (String, String);

/// Objects of one kind.
pub struct Cache<K> {
    inner: Mutex<Inner<K>>,
    ready: tokio::sync::watch::Sender<bool>,
    /// Values of these labels are the owners of an object.
    owner_labels: &'static [&'static str],
}

struct Inner<K> {
    objects: BTreeMap<Key, Arc<K>>,
    owned: HashMap<String, BTreeMap<Key, Arc<K>>>,
    /// Filled while a list is under way; it then takes the place of `objects`.
    relisted: Option<BTreeMap<Key, Arc<K>>>,
}

impl<K: Resource<DynamicType = ()> + Clone + PartialEq> Cache<K> {
    /// An empty cache.
    pub fn new(owner_labels: &'static [&'static str]) -> Self {
        Self {
            inner: Mutex::new(Inner { objects: BTreeMap::new(), owned: HashMap::new(), relisted: None }),
            ready: tokio::sync::watch::Sender::new(false),
            owner_labels,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
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
        self.lock().objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// What this owner has.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        self.lock().owned.get(uid).map(|all| all.values().cloned().collect()).unwrap_or_default()
    }

    /// Everything.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.lock().objects.values().cloned().collect()
    }

    /// Takes an event in; returns the objects that it changed, or removed.
    pub fn take(&self, event: Event<K>) -> Vec<Arc<K>> {
        let mut inner = self.lock();
        match event {
            Event::Apply(object) => self.put(&mut inner, object).into_iter().collect(),
            Event::Delete(object) => {
                let object = Arc::new(object);
                self.forget(&mut inner, &key(&*object));
                vec![object]
            }
            Event::Init => {
                inner.relisted = Some(BTreeMap::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                let object = Arc::new(object);
                inner.relisted.get_or_insert_default().insert(key(&*object), object);
                Vec::new()
            }
            Event::InitDone => {
                let listed = inner.relisted.take().unwrap_or_default();
                let lost: Vec<Key> = inner.objects.keys().filter(|k| !listed.contains_key(*k)).cloned().collect();
                let mut changes = Vec::with_capacity(listed.len());
                for key in lost {
                    changes.extend(self.forget(&mut inner, &key));
                }
                for object in listed.into_values() {
                    changes.extend(self.put(&mut inner, Arc::unwrap_or_clone(object)));
                }
                drop(inner);
                self.ready.send_replace(true);
                changes
            }
        }
    }

    /// Nothing if all that is kept of it is as before: heartbeats wake nobody.
    fn put(&self, inner: &mut Inner<K>, object: K) -> Option<Arc<K>> {
        let key = key(&object);
        let same = inner.objects.get(&key).is_some_and(|old| {
            let mut old = (**old).clone();
            old.meta_mut().resource_version = object.meta().resource_version.clone();
            old == object
        });
        let object = Arc::new(fitted(&object));
        // Labels may have changed hands.
        self.forget(inner, &key);
        for uid in self.owners(&object) {
            inner.owned.entry(uid).or_default().insert(key.clone(), object.clone());
        }
        inner.objects.insert(key, object.clone());
        (!same).then_some(object)
    }

    fn forget(&self, inner: &mut Inner<K>, key: &Key) -> Option<Arc<K>> {
        let old = inner.objects.remove(key)?;
        for uid in self.owners(&old) {
            if let Some(all) = inner.owned.get_mut(&uid) {
                all.remove(key);
                if all.is_empty() {
                    inner.owned.remove(&uid);
                }
            }
        }
        Some(old)
    }

    fn owners(&self, object: &K) -> Vec<String> {
        let labels = object.meta().labels.as_ref();
        self.owner_labels.iter().filter_map(|label| labels?.get(*label).cloned()).collect()
    }
}

/// The object in no more memory than it needs: what a decoder grew as it went has room to spare, and a copy has none.
fn fitted<K: Clone>(object: &K) -> K {
    object.clone()
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
