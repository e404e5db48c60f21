//! The hash of meaning is pinned: a change of it restarts every trainer of every cluster.
#![allow(clippy::unwrap_used)]

use api::manifest::Kind;

fn quickstart() -> api::RLJob {
    let text = include_str!("../../../examples/quickstart/rljob.yaml");
    match api::manifest::read(text, "rljob.yaml").unwrap().remove(0).kind {
        Kind::RLJob(j) => *j,
        _ => unreachable!(),
    }
}

#[test]
fn the_hash_of_the_quickstart_is_what_it_always_was() {
    let job = quickstart();
    let serving = job.spec.serving.template.clone().unwrap();
    let engine = api::ServingClusterSpec {
        replicas: 2,
        model: api::ModelRef { source: job.spec.model.source.clone() },
        storage: job.spec.storage.clone(),
        accelerator: serving.spec.accelerator,
        engine: serving.spec.engine,
        updates: serving.spec.updates,
        disruption: serving.spec.disruption,
    };
    insta::assert_snapshot!(format!(
        "trainer   {}\nconductor {}\nengine    {}",
        api::hash::trainer(&job),
        api::hash::conductor(&job),
        api::hash::engine(&engine)
    ));
}

#[test]
fn what_means_the_same_hashes_the_same() {
    let job = quickstart();
    let before = api::hash::trainer(&job);
    let mut same = job.clone();
    same.spec.trainer.parallelism.dp = None; // what is left: 2
    same.spec.total_steps = 1000; // live
    same.spec.checkpoint.every_steps = 7; // live
    same.spec.trainer.failure_policy.backoff_limit = 1;
    same.spec.suspend = true;
    same.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    same.spec.trainer.resources = Some(Default::default());
    assert_eq!(api::hash::trainer(&same), before);
    let mut other = job.clone();
    other.spec.trainer.max_tokens_per_micro_batch += 1;
    assert_ne!(api::hash::trainer(&other), before);
    let mut other = job;
    other.spec.optimizer.lr = 4e-4;
    assert_ne!(api::hash::trainer(&other), before);
}

#[test]
fn defaulting_is_idempotent() {
    let once = quickstart().defaulted();
    assert_eq!(once.defaulted(), once);
    assert_eq!(once.spec.batch.global_batch_size, Some(256));
    assert_eq!(once.spec.trainer.parallelism.dp, Some(2));
}
