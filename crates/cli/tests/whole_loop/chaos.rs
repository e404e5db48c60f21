//! More than twenty deaths in one run, at every point a part can die at, some of them together.

use std::collections::BTreeMap;

use conductor::Record;
use straw::RealFs;

use crate::local_run::{LocalRun, repository};

const KILLS: usize = 24;

#[test]
fn twenty_four_kills_lose_nothing_and_double_nothing() {
    let manifest = std::fs::read_to_string(repository().join("examples/chaos/rljob.yaml")).unwrap();
    let kills = KILLS.to_string();
    let mut run = LocalRun::start_command("chaos", &manifest, &["--kills", &kills, "--seed", "1"], &[]);
    assert_eq!(run.wait(), 0, "{}", run.report());
    let output = run.output();
    let steps = run.steps();
    let last = output.lines().last().unwrap_or_default();
    assert_eq!(last, format!("chaos: {KILLS} kills, 0 lost, 0 doubled, {} steps", steps.len()));
    assert!(output.contains("seed 1,"), "the seed is printed");

    let told: Vec<&str> =
        output.lines().filter(|line| line.contains("event=Chaos") && line.contains("kill ")).collect();
    assert_eq!(told.len(), KILLS, "each kill is an event: {told:#?}");
    for phase in [
        "backward",
        "tiles-half",
        "tiles-written",
        "weights-half",
        "weights-written",
        "after-journal Accepted",
        "after-journal Converted",
        "before-journal Committed",
        "after-journal Committed",
        "engine-updated",
        "engine sort5-chaos-serving-",
        "worker sort5-chaos-rollout-",
    ] {
        assert!(told.iter().any(|line| line.contains(phase)), "nobody died at {phase}: {told:#?}");
    }
    assert!(told.iter().any(|line| line.contains("together")), "some die together: {told:#?}");

    let versions: Vec<u64> = steps.iter().map(|record| record.weight_version).collect();
    assert!(versions.is_sorted(), "versions only rise: {versions:?}");
    for record in &steps {
        assert!(record.train.gap_tokens > 0 && record.train.gap_max == 0.0, "the gap stays 0: {record:?}");
    }

    // Engines and workers die when they are killed, and never because a trainer did.
    let status = std::fs::read_to_string(run.state().join("status.json")).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    for role in ["conductor", "engine", "worker"] {
        let killed =
            told.iter().filter(|line| line.contains(&format!(": {role} ")) || line.contains(&format!(": {role},")));
        let pods = status["pods"].as_array().unwrap().iter().filter(|pod| pod["role"] == role);
        let restarts: u64 = pods.map(|pod| pod["restarts"].as_u64().unwrap()).sum();
        assert_eq!(restarts, killed.count() as u64, "{role}: {told:#?}");
    }
    assert_failed_generations_have_a_dead_worker_or_engine(&run);
}

/// A task fails with its worker, whose lease lapses, or with the last engine; a trainer's death is neither.
fn assert_failed_generations_have_a_dead_worker_or_engine(run: &LocalRun) {
    let journal = run.run_dir().unwrap().join("journal");
    let (_, txns) = straw::journal::read(&*RealFs::new(), &journal).unwrap();
    let mut failed = BTreeMap::new();
    for record in txns.iter().flatten().map(|bytes| Record::decode(bytes).unwrap()) {
        if let Record::TaskFailed { task, lapsed: false, reason, .. } = record {
            failed.insert(task, reason);
        }
    }
    assert!(failed.values().all(|reason| reason.contains("engine")), "{failed:?}");
}
