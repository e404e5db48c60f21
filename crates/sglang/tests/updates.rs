//! An engine is brought to new weights only with its own word, at every part.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    routing::{get, post},
};
use serde_json::{Value, json};
use sglang::{DiskTransport, Engine, EngineError, HttpEngine, Publication, UpdateLimits, update_engine};
use tokio::sync::Notify;

/// An engine that answers a pause when it is told to, and notes what reached it in which order.
#[derive(Default)]
struct Fake {
    heard: Mutex<Vec<&'static str>>,
    decoding_ended: Notify,
    served: Mutex<String>,
    /// Says that it loaded, and serves what it served before.
    forgetful: bool,
}

impl Fake {
    fn note(&self, what: &'static str) {
        self.heard.lock().unwrap().push(what);
    }

    fn heard(&self) -> Vec<&'static str> {
        self.heard.lock().unwrap().clone()
    }
}

async fn pause(State(fake): State<Arc<Fake>>) -> Json<Value> {
    fake.note("pause asked");
    fake.decoding_ended.notified().await;
    fake.note("pause answered");
    Json(json!({}))
}

async fn update(State(fake): State<Arc<Fake>>, Json(body): Json<Value>) -> Json<Value> {
    fake.note("weights");
    if !fake.forgetful {
        *fake.served.lock().unwrap() = body["weight_version"].as_str().unwrap().to_owned();
    }
    Json(json!({"success": true}))
}

async fn info(State(fake): State<Arc<Fake>>) -> Json<Value> {
    Json(json!({"model_path": "m", "weight_version": *fake.served.lock().unwrap()}))
}

async fn serve(fake: Arc<Fake>) -> HttpEngine {
    let routes = Router::new()
        .route("/pause_generation", post(pause))
        .route("/update_weights_from_disk", post(update))
        .route("/model_info", get(info))
        .with_state(fake);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    HttpEngine::new(reqwest::Client::new(), url, None)
}

fn publication() -> Publication {
    Publication { version: 8, folder: "/v8".to_owned() }
}

fn limits(pause: Duration) -> UpdateLimits {
    UpdateLimits { pause, load: Duration::from_secs(60), short: Duration::from_secs(60) }
}

/// Gives up on what will never hold, so that a fault is told and not waited for.
async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
}

#[tokio::test]
async fn no_weight_is_touched_before_the_engine_says_that_it_is_idle() {
    let fake = Arc::new(Fake { served: Mutex::new("7".to_owned()), ..Fake::default() });
    let engine = serve(fake.clone()).await;
    let updating = tokio::spawn(async move {
        update_engine(&engine, &DiskTransport, &publication(), limits(Duration::from_secs(60))).await
    });
    until(|| fake.heard() == ["pause asked"]).await;
    // It is still decoding: however long that takes, nothing more comes.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fake.heard(), ["pause asked"]);
    fake.decoding_ended.notify_one();
    updating.await.unwrap().unwrap();
    assert_eq!(fake.heard(), ["pause asked", "pause answered", "weights"]);
}

#[tokio::test]
async fn an_engine_that_never_says_that_it_is_idle_keeps_its_weights_and_the_update_fails() {
    let fake = Arc::new(Fake { served: Mutex::new("7".to_owned()), ..Fake::default() });
    let engine = serve(fake.clone()).await;
    let limits = limits(Duration::from_millis(50));
    let error = update_engine(&engine, &DiskTransport, &publication(), limits).await.unwrap_err();
    assert!(matches!(&error, EngineError::Unreachable { url, .. } if url.ends_with("/pause_generation")), "{error}");
    assert_eq!(fake.heard(), ["pause asked"]);
    assert_eq!(engine.model_info(Duration::from_secs(60)).await.unwrap().version(), 7);
}

#[tokio::test]
async fn an_update_is_done_only_when_the_engine_serves_the_version() {
    let fake = Arc::new(Fake { served: Mutex::new("7".to_owned()), forgetful: true, ..Fake::default() });
    let engine = serve(fake.clone()).await;
    fake.decoding_ended.notify_one();
    let limits = limits(Duration::from_secs(60));
    let error = update_engine(&engine, &DiskTransport, &publication(), limits).await.unwrap_err().to_string();
    assert!(error.contains("\"7\"") && error.contains('8'), "{error}");
}
