//! Saving, loading and publishing from ranks that are processes: this test program starts itself again.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use checkpoint::{ExportTypes, FILE_BYTES_MAX, PublishTo, RealDisk, hf, publish};
use comm::tcp::{TcpConfig, join};
use parallel::{Grid, Groups, Layout};
use support::{Rank, config, config_json, on_ranks};
use tensor::DType;

/// Not a test of its own: the body of the processes that the test below starts.
#[test]
fn a_rank_of_its_own() {
    let Ok(place) = std::env::var("CHECKPOINT_TEST_PLACE") else { return };
    let fields: Vec<&str> = place.split(' ').collect();
    let [port, rank, dp, tp] = [0, 1, 2, 3].map(|i| fields[i].parse::<usize>().unwrap());
    let dir = Path::new(fields[4]);
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let world = TcpConfig::new("run", 1, rank, dp * tp, &format!("127.0.0.1:{port}"), loopback).unwrap();
    let world = join(&world, &comm::Abort::new()).unwrap();
    let groups = Groups::new(world, Grid::new(Layout::dp_tp(dp, tp)).unwrap()).unwrap();
    let mut rank = if fields[5] == "-" {
        Rank::filled(groups, &config(true), DType::F32)
    } else {
        let mut rank = Rank::new(groups, &config(true), DType::F32);
        rank.load(&dir.join(fields[5]), None).unwrap();
        rank.assert_filled();
        rank
    };
    rank.optimizer.set_optimizer_steps(7);
    rank.save(&dir.join(fields[6]), 5).unwrap();
    let folder = dir.join(format!("{}-published", fields[6]));
    let to = PublishTo {
        folder: &folder,
        config_from: &dir.join("model"),
        types: ExportTypes::All(DType::F32),
        file_bytes_max: FILE_BYTES_MAX.min(9_000),
    };
    publish(&RealDisk, &to, &rank.groups, &*rank.be, &rank.store).unwrap();
    assert_eq!(hf::folder_digest(&folder).unwrap(), rank.digest());
}

fn run(dir: &Path, (dp, tp): (usize, usize), from: &str, to: &str) {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let children: Vec<_> = (0..dp * tp)
        .map(|rank| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "a_rank_of_its_own"])
                .env("CHECKPOINT_TEST_PLACE", format!("{port} {rank} {dp} {tp} {} {from} {to}", dir.display()))
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn processes_save_reshard_and_publish_as_threads_do() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("model")).unwrap();
    std::fs::write(dir.path().join("model/config.json"), config_json(32, true)).unwrap();
    run(dir.path(), (2, 1), "-", "a");
    run(dir.path(), (1, 2), "a", "b");
    let digests = on_ranks((2, 2), |g| {
        let mut rank = Rank::new(g, &config(true), DType::F32);
        rank.load(&dir.path().join("b"), None).unwrap();
        rank.assert_filled();
        rank.digest()
    });
    for to in ["a", "b"] {
        assert_eq!(hf::folder_digest(&dir.path().join(format!("{to}-published"))).unwrap(), digests[0]);
    }
}
