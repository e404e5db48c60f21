//! The engines of the moment.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use control::wire::EngineAddress;
use sglang::{Engine, HttpEngine};
use tokio::sync::Notify;

/// Engines a worker may use, as its leases name them. An engine that failed is avoided for a while, and a group keeps to
/// one engine where it can, so that its samples share the prompt's cache.
pub struct EnginePool {
    http: reqwest::Client,
    token: Option<String>,
    engines: Mutex<BTreeMap<String, Member>>,
    changed: Notify,
}

struct Member {
    engine: Arc<dyn Engine>,
    avoid_until: Option<Instant>,
}

const AVOIDED_FOR: Duration = Duration::from_secs(2);

impl EnginePool {
    /// An empty pool.
    #[must_use]
    pub fn new(http: reqwest::Client, token: Option<String>) -> Self {
        Self { http, token, engines: Mutex::default(), changed: Notify::new() }
    }

    fn engines(&self) -> MutexGuard<'_, BTreeMap<String, Member>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are the engines from now on.
    pub fn update(&self, addresses: &[EngineAddress]) {
        let mut engines = self.engines();
        engines.retain(|url, _| addresses.iter().any(|address| address.url == *url));
        for address in addresses {
            engines.entry(address.url.clone()).or_insert_with(|| Member {
                engine: Arc::new(HttpEngine::new(self.http.clone(), address.url.clone(), self.token.clone())),
                avoid_until: None,
            });
        }
        drop(engines);
        self.changed.notify_waiters();
    }

    /// The engine for `key` (a group), never `failed` unless it is the only one; `None` when there are no engines.
    #[must_use]
    pub fn pick(&self, key: u64, failed: Option<&str>) -> Option<Arc<dyn Engine>> {
        let engines = self.engines();
        let now = Instant::now();
        let choose = |members: Vec<&Member>| {
            let count = u64::try_from(members.len()).ok().filter(|count| *count > 0)?;
            members.get(usize::try_from(key % count).ok()?).map(|member| member.engine.clone())
        };
        let healthy = engines.iter().filter(|(url, member)| {
            failed != Some(url.as_str()) && member.avoid_until.is_none_or(|until| until <= now)
        });
        choose(healthy.map(|(_, member)| member).collect())
            .or_else(|| {
                choose(engines.iter().filter(|(url, _)| failed != Some(url.as_str())).map(|(_, m)| m).collect())
            })
            .or_else(|| choose(engines.values().collect()))
    }

    /// Waits until there is an engine for `key`. The conductor's list ends the wait; what it waits for is in its progress.
    pub async fn pick_or_wait(&self, key: u64, failed: Option<&str>) -> Arc<dyn Engine> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(engine) = self.pick(key, failed) {
                return engine;
            }
            changed.await;
        }
    }

    /// This engine failed: use others for a while.
    pub fn avoid(&self, url: &str) {
        if let Some(member) = self.engines().get_mut(url) {
            member.avoid_until = Some(Instant::now() + AVOIDED_FOR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(urls: &[&str]) -> EnginePool {
        let pool = EnginePool::new(reqwest::Client::new(), None);
        pool.update(&addresses(urls));
        pool
    }

    fn addresses(urls: &[&str]) -> Vec<EngineAddress> {
        urls.iter().map(|url| EngineAddress { name: (*url).into(), url: (*url).into() }).collect()
    }

    #[test]
    fn a_retry_avoids_the_engine_that_just_failed() {
        let pool = pool(&["http://a", "http://b"]);
        let first = pool.pick(6, None).unwrap().url().to_owned();
        let second = pool.pick(6, Some(&first)).unwrap().url().to_owned();
        assert_ne!(first, second);
        pool.avoid(&first);
        for group in 0..8 {
            assert_eq!(pool.pick(group, None).unwrap().url(), second);
        }
        pool.avoid(&second);
        assert!(pool.pick(0, None).is_some(), "all avoided is no reason to stop");
    }

    #[tokio::test]
    async fn a_worker_follows_engines_that_come_and_go() {
        let pool = Arc::new(pool(&[]));
        assert!(pool.pick(0, None).is_none());
        let waiting = tokio::spawn({
            let pool = pool.clone();
            async move { pool.pick_or_wait(0, None).await.url().to_owned() }
        });
        tokio::task::yield_now().await;
        pool.update(&addresses(&["http://c"]));
        assert_eq!(waiting.await.unwrap(), "http://c");
        pool.update(&[]);
        assert!(pool.pick(0, None).is_none());
    }
}
