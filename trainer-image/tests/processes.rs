//! The real program: launcher, ranks, signals, exit codes.
#![allow(clippy::unwrap_used)]

#[path = "../../crates/train/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use control::wire::{Order, Phase, Report, Start};
use support::*;
use train::exit;

const RANDOM: Start = Start::Random { seed: 9 };

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// One attempt of `nodes` pods with `ranks` ranks each.
struct Attempt<'a> {
    volume: &'a Volume,
    conductor: &'a Conductor,
    nodes: usize,
    ranks: usize,
    layout: &'static str,
    master: u16,
    faults: &'static str,
}

impl<'a> Attempt<'a> {
    fn new(volume: &'a Volume, conductor: &'a Conductor, nodes: usize, ranks: usize, layout: &'static str) -> Self {
        Self { volume, conductor, nodes, ranks, layout, master: free_port(), faults: "" }
    }

    fn pod(&self, node: usize, port: u16) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thresh-trainer"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("THRESH_RUN_UID", RUN)
            .env("THRESH_VOLUME", self.volume.dir.path())
            .env("THRESH_TOKEN", TOKEN)
            .env("THRESH_CONDUCTOR", &self.conductor.url)
            .env("THRESH_ATTEMPT", "1")
            .env("THRESH_PARALLELISM", self.layout)
            .env("NODE_RANK", node.to_string())
            .env("NNODES", self.nodes.to_string())
            .env("NPROC_PER_NODE", self.ranks.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", self.master.to_string())
            .env("POD_NAME", format!("trainer-{node}"))
            .env("POD_UID", format!("uid-{node}"))
            .env("POD_IP", "127.0.0.1")
            .env("NODE_NAME", "node")
            .env("THRESH_PORT", port.to_string())
            .env("THRESH_THREADS", "1")
            .env("THRESH_FAULTS", self.faults)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// Runs every pod to its end: exit code and standard error of each.
    fn run(&self) -> Vec<(Option<i32>, String)> {
        let pods: Vec<Child> = (0..self.nodes).map(|node| self.pod(node, free_port()).spawn().unwrap()).collect();
        pods.into_iter()
            .map(|pod| pod.wait_with_output().unwrap())
            .map(|o| (o.status.code(), text(&o.stderr)))
            .collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn orders(volume: &Volume, dp: usize) -> Vec<Order> {
    let samples = samples(6, 51);
    let mut orders: Vec<Order> = (0..2).map(|k| train_order(&volume.store, Phase::Rl, k, &samples, dp, 2)).collect();
    orders.extend([save(2, "tiles/2"), publish(1, "weights/v1"), Order::Finish]);
    orders
}

fn reports(conductor: &Conductor) -> Vec<Report> {
    conductor.desk.lock().unwrap().reports.iter().map(|(_, r)| r.clone()).collect()
}

#[test]
fn an_attempt_runs_to_its_end_in_one_pod_or_in_two_with_the_bits_of_threads() {
    let volume = Volume::new();
    let threads = {
        let mut all = orders(&volume, 2);
        all.pop();
        support::Attempt::new(&volume, 2, 1).play(RANDOM, config(), all)
    };
    for (nodes, ranks) in [(1, 2), (2, 1)] {
        let volume = Volume::new();
        let conductor = conduct(RANDOM, config(), 7, orders(&volume, 2));
        let ends = Attempt::new(&volume, &conductor, nodes, ranks, r#"{"dp":2,"tp":1}"#).run();
        for (code, log) in &ends {
            assert_eq!(*code, Some(i32::from(exit::COMPLETE)), "{log}");
        }
        let reports = reports(&conductor);
        let timeless = |all: &[Report]| all.iter().map(timeless).collect::<Vec<_>>();
        assert_eq!(timeless(&reports), timeless(&threads));
        let desk = conductor.desk.lock().unwrap();
        assert_eq!((desk.claims.len(), desk.claims[0].pod.as_str()), (1, "trainer-0"));
    }
}

#[test]
fn the_rank_that_died_first_decides_the_pods_code_and_is_named() {
    for (faults, code, word) in [
        ("kill:rank=1,step=1,point=backward", 137, "SIGKILL"),
        ("kill:rank=0,point=tiles-half", 137, "SIGKILL"),
        ("error:rank=1,point=weights-written", i32::from(exit::FAILURE), "injected fault at weights-written"),
    ] {
        let volume = Volume::new();
        let conductor = conduct(RANDOM, config(), 1, orders(&volume, 2));
        let attempt = Attempt { faults, ..Attempt::new(&volume, &conductor, 1, 2, r#"{"dp":2,"tp":1}"#) };
        let (got, log) = attempt.run().remove(0);
        assert_eq!(got, Some(code), "{faults}: {log}");
        let last = log.lines().last().unwrap();
        let rank = if faults.contains("rank=1") { 1 } else { 0 };
        assert!(last.contains(&format!("rank {rank} failed first")) && last.contains(word), "{faults}: {last}");
        assert!(!reports(&conductor).contains(&Report::Finished));
    }
}

#[test]
fn a_pod_whose_ranks_fell_with_another_pods_says_so() {
    let volume = Volume::new();
    let conductor = conduct(RANDOM, config(), 1, orders(&volume, 2));
    let attempt = Attempt {
        faults: "kill:rank=1,step=0,point=optimizer",
        ..Attempt::new(&volume, &conductor, 2, 1, r#"{"dp":2,"tp":1}"#)
    };
    let ends = attempt.run();
    assert_eq!(ends[0].0, Some(i32::from(exit::PEER_FAILED)), "{}", ends[0].1);
    assert_eq!(ends[1].0, Some(137), "{}", ends[1].1);
}

#[test]
fn stop_fence_and_bad_settings_have_their_codes() {
    let volume = Volume::new();
    let layout = r#"{"dp":1,"tp":2}"#;
    let stop = conduct(RANDOM, config(), 1, vec![Order::Stop { reason: "suspended".into() }]);
    let (code, log) = Attempt::new(&volume, &stop, 1, 2, layout).run().remove(0);
    assert_eq!(code, Some(i32::from(exit::STOPPED)), "{log}");

    let fenced = conduct(RANDOM, config(), 1, vec![]);
    fenced.desk.lock().unwrap().fenced = true;
    let (code, log) = Attempt::new(&volume, &fenced, 1, 2, layout).run().remove(0);
    assert_eq!(code, Some(i32::from(exit::SUPERSEDED)), "{log}");

    let idle = conduct(RANDOM, config(), 1, vec![]);
    let (code, log) = Attempt::new(&volume, &idle, 1, 2, r#"{"dp":4,"tp":1}"#).run().remove(0);
    assert_eq!(code, Some(i32::from(exit::USER_MUST_ACT)), "{log}");
    assert!(log.contains("needs 4 ranks") && log.contains("gives 2"), "{log}");

    let attempt = Attempt { faults: "kill:point=lunch", ..Attempt::new(&volume, &idle, 1, 2, layout) };
    let (code, log) = attempt.run().remove(0);
    assert!(code == Some(i32::from(exit::USER_MUST_ACT)) && log.contains("lunch"), "{code:?} {log}");
}

/// Process ids of a process's children.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|p| p.parse().unwrap()).collect()
}

fn is_gone(pid: u32) -> bool {
    // A zombie that its new parent has not reaped yet is as good as gone.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |s| s.contains(") Z "))
}

fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Asks again until it holds, for at most a minute.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_waiting_pod_is_ready_counts_and_ends_at_sigterm() {
    let volume = Volume::new();
    let mut some = orders(&volume, 2);
    some.truncate(2);
    let conductor = conduct(RANDOM, config(), 1, some);
    let attempt = Attempt::new(&volume, &conductor, 1, 2, r#"{"dp":2,"tp":1}"#);
    let port = free_port();
    let mut pod = attempt.pod(0, port).spawn().unwrap();
    eventually("both batches are learnt", || reports(&conductor).len() == 2);
    eventually("ready", || get(port, "/readyz").is_some_and(|a| a.contains("200 OK")));
    assert!(get(port, "/livez").unwrap().contains("200 OK"));
    eventually("counted", || get(port, "/metrics").unwrap().contains("thresh_trainer_batches_total 2"));
    assert_eq!(children(pod.id()).len(), 2);
    let pid = rustix::process::Pid::from_raw(pod.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = pod.wait().unwrap();
    assert_eq!(status.code(), Some(i32::from(exit::TERMINATED)));
}

#[test]
fn a_pod_that_waits_for_another_holds_nothing_once_it_is_told_to_end() {
    let volume = Volume::new();
    let conductor = conduct(RANDOM, config(), 1, vec![]);
    let attempt = Attempt::new(&volume, &conductor, 2, 1, r#"{"dp":2,"tp":1}"#);
    let port = free_port();
    // The other pod never comes.
    let mut pod = attempt.pod(0, port).spawn().unwrap();
    eventually("it waits", || get(port, "/readyz").is_some_and(|a| a.contains("the ranks are meeting")));
    let pid = rustix::process::Pid::from_raw(pod.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut ended = None;
    eventually("it ends", || {
        ended = pod.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(i32::from(exit::TERMINATED)));
}

#[test]
fn ranks_die_with_their_launcher() {
    let volume = Volume::new();
    let conductor = conduct(RANDOM, config(), 1, vec![]);
    let attempt = Attempt::new(&volume, &conductor, 1, 2, r#"{"dp":2,"tp":1}"#);
    let mut pod = attempt.pod(0, free_port()).spawn().unwrap();
    // The log says when rank 0 has claimed, so that both ranks are well on their way.
    let mut log = BufReader::new(pod.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("claimed")));
    let ranks = children(pod.id());
    assert_eq!(ranks.len(), 2);
    pod.kill().unwrap();
    pod.wait().unwrap();
    for rank in ranks {
        eventually("the rank is gone", || is_gone(rank));
    }
}
