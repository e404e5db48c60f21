//! Random histories of coordinators, workers, readers and collectors on a simulated volume, checked against what was promised.
//!
//! Every participant is on a host of its own (or all share one), may be frozen in the middle of any call while the others go
//! on for as long as they like, may be lost there, and may be failed there; the whole machine may lose power. After each claim,
//! each read and at the end it is proved that
//!
//! * nothing acknowledged is lost, and the journal's history never changes once it has been told to anyone;
//! * nothing is there that nobody tried, and nothing that was refused or never acknowledged counts as accepted elsewhere;
//! * no pack that durable state reaches is removed, and whatever was published reads back identical for as long;
//! * receipts are stable: the same submission has the same references and the same position for ever;
//! * a queue that leaves the pool keeps nothing from going that the other one gave up, takes nothing that the other one needs, and
//!   never comes back.
//!
//! A failing seed is printed and does the same again: `STRAW_SEED=n cargo test --release -p straw --test histories`. A longer
//! search: `STRAW_SEEDS=1000000`, from `STRAW_FIRST_SEED`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod coordinator;
mod facts;
#[path = "../../src/sim_fs/random.rs"]
mod random;
#[path = "../support/mod.rs"]
mod support;
mod worker;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{World, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

#[test]
fn random_histories_keep_every_promise() {
    let seeds: Vec<u64> = match number("STRAW_SEED") {
        Some(seed) => vec![seed],
        None => {
            let first = number("STRAW_FIRST_SEED").unwrap_or(0);
            (first..first + number("STRAW_SEEDS").unwrap_or(3000)).collect()
        }
    };
    let began = std::time::Instant::now();
    let mut all = world::Counts::default();
    for seed in &seeds {
        match catch_unwind(AssertUnwindSafe(|| run(*seed))) {
            Ok(counts) => all.add(&counts),
            Err(_) => {
                World::forget();
                panic!("seed {seed} broke a promise; STRAW_SEED={seed} plays it again");
            }
        }
    }
    println!("{} histories in {:.1?}: {all:?}", seeds.len(), began.elapsed());
    if seeds.len() > 1000 {
        all.assert_every_thing_happened();
    }
}
