//! Ranks that are processes: this test program starts itself again, once per rank.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod suite;

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use comm::tcp::{TcpConfig, join};
use comm::{Abort, Error, Group, thread};
use tensor::Comm;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LONG: Duration = Duration::from_secs(120);

fn free_port() -> u16 {
    TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap().port()
}

fn config(port: u16, attempt: u64, rank: usize, size: usize) -> TcpConfig {
    let mut config = TcpConfig::new("run-1", attempt, rank, size, &format!("127.0.0.1:{port}"), LOOPBACK).unwrap();
    config.join_timeout = LONG;
    config.wait_timeout = LONG;
    config
}

/// A rank in a process of its own; what it does is `role`.
struct Rank(Child);

impl Rank {
    fn start(role: &str, port: u16, rank: usize, size: usize) -> Rank {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_rank_of_its_own", "--nocapture"])
            .env("COMM_TEST_ROLE", role)
            .env("COMM_TEST_PLACE", format!("{port} {rank} {size}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Rank(child)
    }

    fn wait_for_line(&mut self, wanted: &str) -> String {
        let out = BufReader::new(self.0.stdout.as_mut().unwrap());
        out.lines().map(Result::unwrap).find(|line| line.contains(wanted)).expect("the rank ended without its line")
    }

    fn finish(mut self) -> String {
        let mut out = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert!(self.0.wait().unwrap().success(), "{out}");
        out
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test of its own: the body of the processes that the tests below start.
#[test]
fn a_rank_of_its_own() {
    let Ok(role) = std::env::var("COMM_TEST_ROLE") else { return };
    let place = std::env::var("COMM_TEST_PLACE").unwrap();
    let place: Vec<usize> = place.split(' ').map(|x| x.parse().unwrap()).collect();
    let mut config = config(place[0] as u16, 7, place[1], place[2]);
    if role == "sit" {
        config.silence = Duration::from_secs(2);
    }
    let world = join(&config, &Abort::new()).unwrap();
    match role.as_str() {
        "suite" => println!("bits {:?}", suite::run(world)),
        "sit" => {
            world.barrier().unwrap();
            println!("sitting");
            std::thread::sleep(LONG);
        }
        "sleep-in-join" => {}
        other => panic!("no role {other}"),
    }
}

fn bits_of_threads() -> String {
    let ranks = thread::world(4, LONG).unwrap();
    let bits: Vec<Vec<u64>> = std::thread::scope(|s| {
        let threads: Vec<_> = ranks.into_iter().map(|g| s.spawn(|| suite::run(g))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    format!("bits {:?}", bits[0])
}

#[test]
fn processes_move_and_sum_to_the_same_bits_as_threads() {
    let port = free_port();
    // Rank 0 last: the others must wait for it.
    let ranks: Vec<Rank> = [3, 1, 2, 0].map(|r| Rank::start("suite", port, r, 4)).into();
    let want = bits_of_threads();
    for rank in ranks {
        let out = rank.finish();
        assert!(out.contains(&want), "{out}");
    }
}

#[test]
fn a_killed_process_ends_every_wait_and_is_named() {
    let port = free_port();
    let mut victim = Rank::start("sit", port, 1, 3);
    let (past_barrier, met) = std::sync::mpsc::channel();
    let bystander = std::thread::spawn(move || {
        let g = join(&config(port, 7, 2, 3), &Abort::new()).unwrap();
        g.barrier().unwrap();
        past_barrier.send(()).unwrap();
        // It waits for rank 0, which is alive and waits for rank 1: still it must not wait for ever.
        let error = g.broadcast_bytes(Vec::new(), 0).unwrap_err();
        (error, g)
    });
    let world = join(&config(port, 7, 0, 3), &Abort::new()).unwrap();
    world.barrier().unwrap();
    victim.wait_for_line("sitting");
    met.recv().unwrap();
    victim.0.kill().unwrap();
    let error = world.split("pair", &[0, 1]).unwrap().barrier().unwrap_err();
    assert!(matches!(error, tensor::Error::CommLost { peer: 1, .. }), "{error}");
    assert!(error.to_string().contains("rank 0 lost rank 1"), "{error}");
    let (error, _g) = bystander.join().unwrap();
    assert!(matches!(error, tensor::Error::CommLost { peer: 1, .. }), "{error}");
}

#[test]
fn a_process_that_is_stopped_ends_every_wait_and_is_named_but_one_that_works_does_not() {
    let port = free_port();
    let mut victim = Rank::start("sit", port, 1, 2);
    let mut config = config(port, 7, 0, 2);
    config.silence = Duration::from_secs(2);
    let world = join(&config, &Abort::new()).unwrap();
    world.barrier().unwrap();
    victim.wait_for_line("sitting");
    // It says nothing that we wait for, but it lives.
    std::thread::sleep(config.silence * 2);
    let pid = rustix::process::Pid::from_raw(i32::try_from(victim.0.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let error = world.barrier().unwrap_err();
    assert!(matches!(error, tensor::Error::CommLost { peer: 1, .. }), "{error}");
    assert!(error.to_string().contains("has said nothing for 2 s"), "{error}");
}

#[test]
fn a_large_message_to_a_rank_that_sends_one_too_does_not_deadlock() {
    let port = free_port();
    let size = 64 << 20;
    let exchange = move |rank: usize| {
        let g = join(&config(port, 7, rank, 2), &Abort::new()).unwrap();
        let all = g.all_gather_bytes(&vec![rank as u8; size]).unwrap();
        all.iter().enumerate().all(|(r, b)| b.len() == size && b.iter().all(|x| *x == r as u8))
    };
    let other = std::thread::spawn(move || exchange(1));
    assert!(exchange(0));
    assert!(other.join().unwrap());
}

#[test]
fn a_rank_of_an_older_attempt_cannot_join() {
    let port = free_port();
    let newer = std::thread::spawn(move || join(&config(port, 8, 0, 2), &Abort::new()).map(|g| g.size()));
    let error = join(&config(port, 7, 1, 2), &Abort::new()).unwrap_err();
    assert!(
        matches!(&error, Error::Refused { why, .. } if why.contains("attempt 8 has superseded attempt 7")),
        "{error}"
    );
    // The world forms all the same.
    let g = join(&config(port, 8, 1, 2), &Abort::new()).unwrap();
    assert_eq!(g.size(), 2);
    assert_eq!(newer.join().unwrap().unwrap(), 2);
}

#[test]
fn a_rank_0_that_meets_a_newer_attempt_gives_up_its_place() {
    let port = free_port();
    let old = std::thread::spawn(move || join(&config(port, 7, 0, 2), &Abort::new()).map(|_| ()));
    let new_1 = std::thread::spawn(move || join(&config(port, 8, 1, 2), &Abort::new()).map(|g| g.rank()));
    let error = old.join().unwrap().unwrap_err();
    assert!(matches!(&error, Error::Refused { why, .. } if why.contains("attempt 8")), "{error}");
    let new_0 = join(&config(port, 8, 0, 2), &Abort::new()).unwrap();
    assert_eq!(new_0.rank(), 0);
    assert_eq!(new_1.join().unwrap().unwrap(), 1);
}

#[test]
fn a_world_of_another_size_or_run_is_refused() {
    let port = free_port();
    let host = std::thread::spawn(move || join(&config(port, 7, 0, 2), &Abort::new()).map(|_| ()));
    let error = join(&config(port, 7, 1, 3), &Abort::new()).unwrap_err();
    assert!(error.to_string().contains("this world has 2 ranks, not 3"), "{error}");
    let mut stranger = config(port, 7, 1, 2);
    stranger.run_uid = "run-2".into();
    let mut said = String::new();
    for doublings in 0..8 {
        stranger.join_timeout = Duration::from_millis(200) * (1 << doublings);
        said = join(&stranger, &Abort::new()).unwrap_err().to_string();
        if said.contains("rank 0 of run run-1, not of run run-2") {
            break;
        }
    }
    assert!(said.contains("rank 0 of run run-1, not of run run-2"), "{said}");
    join(&config(port, 7, 1, 2), &Abort::new()).map(|_| ()).unwrap();
    host.join().unwrap().unwrap();
}

#[test]
fn silent_and_foreign_connections_hold_up_nobody() {
    let port = free_port();
    let host = std::thread::spawn(move || join(&config(port, 7, 0, 2), &Abort::new()).map(|_| ()));
    let mut strangers = Vec::new();
    while strangers.len() < 3 {
        if let Ok(mut s) = TcpStream::connect((LOOPBACK, port)) {
            if strangers.len() == 1 {
                std::io::Write::write_all(&mut s, b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
            }
            strangers.push(s);
        }
    }
    join(&config(port, 7, 1, 2), &Abort::new()).map(|_| ()).unwrap();
    host.join().unwrap().unwrap();
}

#[test]
fn waiting_for_the_others_ends_with_their_names_or_by_abort() {
    let mut alone = config(free_port(), 7, 0, 3);
    alone.join_timeout = Duration::from_millis(200);
    let error = join(&alone, &Abort::new()).unwrap_err();
    assert!(error.to_string().contains("rank 0 still misses ranks [1, 2]"), "{error}");

    let mut lost = config(free_port(), 7, 1, 3);
    lost.join_timeout = Duration::from_millis(200);
    let error = join(&lost, &Abort::new()).unwrap_err();
    assert!(matches!(error, Error::Rendezvous { rank: 1, .. }), "{error}");

    for rank in [0, 1] {
        let abort = Abort::new();
        let (handle, port) = (abort.clone(), free_port());
        let waiting = std::thread::spawn(move || join(&config(port, 7, rank, 2), &handle).map(|_| ()));
        abort.abort("stopped as asked");
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(&error, Error::Aborted { why, .. } if why == "stopped as asked"), "{error}");
    }
}

fn pair(wait: Duration) -> (Group, Group, Abort) {
    let port = free_port();
    let abort = Abort::new();
    let mut other = config(port, 7, 1, 2);
    other.wait_timeout = wait;
    let other = std::thread::spawn(move || join(&other, &Abort::new()).unwrap());
    let mut mine = config(port, 7, 0, 2);
    mine.wait_timeout = wait;
    let mine = join(&mine, &abort).unwrap();
    (mine, other.join().unwrap(), abort)
}

#[test]
fn a_silent_peer_runs_into_the_deadline_with_its_name() {
    let (mine, _other, _) = pair(Duration::from_millis(300));
    let error = mine.barrier().unwrap_err();
    assert!(
        matches!(&error, tensor::Error::CommTimeout { rank: 0, waiting_for, .. } if waiting_for == &[1]),
        "{error}"
    );
    assert!(error.to_string().contains("rank 0 waits for rank 1"), "{error}");
}

#[test]
fn an_abort_reaches_a_wait_of_this_process_and_tells_the_other_why() {
    let (mine, other, abort) = pair(LONG);
    std::thread::scope(|s| {
        let waiting = s.spawn(|| mine.barrier().unwrap_err());
        abort.abort("rank 0 must go");
        let error = waiting.join().unwrap();
        assert!(matches!(error, tensor::Error::CommAborted { .. }), "{error}");
    });
    let error = other.all_gather_bytes(b"").unwrap_err();
    assert!(matches!(&error, tensor::Error::CommLost { peer: 0, reason, .. } if reason.contains("must go")), "{error}");
}
