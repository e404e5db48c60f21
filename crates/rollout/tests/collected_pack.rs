//! A worker whose pack was collected while it lay idle.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod engines;

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Json, Router, extract::State, routing::post};
use control::wire::{
    CompleteReply, CompleteRequest, EngineAddress, Finished, Invite, Lease, LeaseReply, Outcome, RefusalKind,
    RenewReply, RewardConfig, RolloutConfig,
};
use engines::{Answer, engine, task};
use rollout::{Figures, Worker, WorkerOptions};

/// A conductor that gives out one group, and has collected the first pack that is offered.
struct Desk {
    engine: EngineAddress,
    leased: Mutex<bool>,
    offers: Mutex<Vec<Finished>>,
}

async fn lease(State(desk): State<Arc<Desk>>) -> Json<LeaseReply> {
    let again = std::mem::replace(&mut *desk.leased.lock().unwrap(), true);
    if again {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let leases = (!again).then(|| Lease { lease: "1-1".into(), task: 7, lease_ms: 60_000, group: task(7, 2, 8) });
    Json(LeaseReply {
        conductor_epoch: 1,
        leases: leases.into_iter().collect(),
        engines: vec![desk.engine.clone()],
        abandon: vec![],
    })
}

async fn renew(State(desk): State<Arc<Desk>>) -> Json<RenewReply> {
    Json(RenewReply { conductor_epoch: 1, lost: vec![], engines: vec![desk.engine.clone()] })
}

async fn complete(State(desk): State<Arc<Desk>>, Json(request): Json<CompleteRequest>) -> Json<CompleteReply> {
    let mut offers = desk.offers.lock().unwrap();
    let mut outcomes = Vec::new();
    for offer in request.results {
        offers.push(offer);
        outcomes.push(if offers.len() == 1 {
            Outcome::Refused { kind: RefusalKind::PackCollected, message: "pack was collected".to_owned() }
        } else {
            Outcome::Accepted
        });
    }
    Json(CompleteReply { conductor_epoch: 1, outcomes })
}

#[tokio::test]
async fn a_group_whose_pack_was_collected_is_published_again_into_another() {
    let engine = engine(|_| Answer::Tokens(vec![7, 8, 0], 1, "stop")).await;
    let desk = Arc::new(Desk { engine: engine.address.clone(), leased: Mutex::default(), offers: Mutex::default() });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let conductor = format!("http://{}", listener.local_addr().unwrap());
    let routes = Router::new()
        .route("/v1/lease", post(lease))
        .route("/v1/renew", post(renew))
        .route("/v1/complete", post(complete))
        .with_state(desk.clone());
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let volume = tempfile::tempdir().unwrap();
    let model = volume.path().join("model");
    std::fs::create_dir_all(&model).unwrap();
    std::fs::create_dir_all(volume.path().join("runs/r")).unwrap();
    let quickstart =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/volumes/thresh-data/sort5/model");
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(quickstart.join(file), model.join(file)).unwrap();
    }
    let invite = Invite {
        run: "r".into(),
        conductor,
        token: "t".into(),
        conductor_epoch: 1,
        run_dir: "runs/r".into(),
        rollout: RolloutConfig {
            model_dir: "model".into(),
            reward: RewardConfig::ExactMatch,
            engine_token: None,
            generate_timeout_ms: 60_000,
        },
    };
    let options = WorkerOptions {
        name: "w".into(),
        node: "n".into(),
        volume: volume.path().to_owned(),
        capacity: 1,
        drain: Duration::from_secs(60),
    };
    let figures = Figures::register(&prometheus::Registry::new()).unwrap();
    let worker = Worker::new(options, reqwest::Client::new(), figures);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/runs", listener.local_addr().unwrap());
    let routes = worker.routes();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let invited = reqwest::Client::new().post(url).json(&invite).send().await.unwrap();
    assert!(invited.status().is_success());
    while desk.offers.lock().unwrap().len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let offers = desk.offers.lock().unwrap();
    let [first, second] = &offers[..] else { panic!("{} offers", offers.len()) };
    assert_eq!((first.task, &first.submission), (second.task, &second.submission));
    assert_ne!(first.group.pack, second.group.pack, "another pack");
    let store = straw::Store::open(straw::RealFs::new(), volume.path().join("runs/r/packs")).unwrap();
    assert_eq!(store.read(&second.group).unwrap(), store.read(&first.group).unwrap(), "the same group");
    assert_eq!(engine.calls.lock().unwrap().len(), 2, "nothing was generated again");
}
