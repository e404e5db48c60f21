//! Random histories of `rljob::decide`: pods die, specs are edited, the operator crashes between any two of its writes, caches
//! lag, clocks are set, nodes are lost and heal. Whatever happens, the rules of `watch` hold, and a quiet world comes to rest.
//!
//! A history is its seed. `THRESH_HISTORIES=100000` plays more of them, `THRESH_SEED=7 THRESH_HISTORIES=1` the one of that seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

#[path = "../cases/mod.rs"]
mod cases;
mod coverage;
mod mutants;
mod ops;
mod play;
mod rng;
#[path = "../sim/mod.rs"]
mod sim;
mod watch;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use coverage::Coverage;

/// Histories that must reach all that there is to reach.
const HISTORIES: u64 = ops::PLAIN + 3_000;
/// Histories, of each kind, among which every mutant must be caught.
const CATCH: u64 = 2_000;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

/// Does it for all numbers below `n`, on two threads, until it returns false.
fn each(n: u64, f: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| while f(next.fetch_add(1, Ordering::Relaxed).min(n)) {});
        }
    });
}

#[test]
fn every_history_keeps_the_rules_and_together_they_reach_every_state_and_every_transition_and_no_other() {
    let count = from_env("THRESH_HISTORIES").unwrap_or(HISTORIES);
    let first = from_env("THRESH_SEED").unwrap_or(0);
    let (reached, broken) = (Mutex::new(Coverage::default()), Mutex::new(Vec::new()));
    each(count, |n| {
        if n == count || broken.lock().unwrap().len() >= 3 {
            return false;
        }
        match play::play_seed(first + n, plan::rljob::decide) {
            Ok(mine) => reached.lock().unwrap().add(&mine),
            Err(e) => broken.lock().unwrap().push(e),
        }
        true
    });
    let broken = broken.into_inner().unwrap();
    let reached = reached.into_inner().unwrap();
    println!("{count} histories from seed {first}\n{}", reached.report());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let (missed, beside) = reached.compare();
    assert!(beside.is_empty(), "not in the table: {beside:#?}");
    // Fewer are played to look at one; they need not reach everything.
    assert!(missed.is_empty() || count < HISTORIES, "never reached: {missed:#?}");
}

#[test]
fn every_mutant_is_caught_by_the_rule_it_forgets() {
    let lines = Mutex::new(Vec::new());
    each(mutants::MUTANTS.len() as u64, |n| {
        let Some(mutant) = mutants::MUTANTS.get(usize::try_from(n).unwrap()) else { return false };
        let caught = (0..CATCH).flat_map(|n| [n, ops::PLAIN + n]).enumerate().find_map(|(n, seed)| {
            let broken = play::play(&ops::history(seed), mutant.decide).err()?;
            Some((n + 1, broken))
        });
        lines.lock().unwrap().push((mutant, caught));
        true
    });
    let mut missed = Vec::new();
    for (mutant, caught) in lines.into_inner().unwrap() {
        match caught {
            Some((n, broken)) if mutant.breaks.contains(&broken.rule) => {
                println!("{n:>5} histories: {} | {}", mutant.name, broken.rule)
            }
            other => missed.push(format!("{}: {other:?}", mutant.name)),
        }
    }
    assert!(missed.is_empty(), "not caught, or not by its rule: {missed:#?}");
}
