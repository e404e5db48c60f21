//! Processes of this node: each leads its own process group, none outlives the node, and its end is told at once.
//!
//! Three nets hold them. The kernel kills a child when the thread that started it ends ([`Spawner`] keeps one thread for
//! that, so it covers a panic, `kill -9` and a plain drop of the node). When a group's leader ends, the rest of its group is
//! killed, as a container ends with its first process. What slips through both (a grandchild of a killed node) carries the
//! node's mark in its environment and is killed before the next start ([`crate::leftovers`]).

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, waitid,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use crate::{
    error::{Error, Result},
    folder,
    pod_log::PodLog,
};

/// Environment variable that marks every process of a node, grandchildren included.
pub const MARK: &str = "THRESH_LOCAL_NODE";

/// What to execute. The environment is complete: nothing is inherited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Absolute path of the executable.
    pub path: PathBuf,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub folder: PathBuf,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// The code a container runtime reports: 128 + signal for a killed process.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// The signal, if one ended it.
    #[must_use]
    pub fn signal(self) -> Option<i32> {
        match self {
            Self::Code(_) => None,
            Self::Signal(signal) => Some(signal),
        }
    }
}

/// A started process. Dropping this does not end it.
#[derive(Clone, Debug)]
pub struct Process {
    pid: Pid,
    exit: watch::Receiver<Option<Exit>>,
    reaped: Arc<Mutex<bool>>,
}

impl Process {
    /// Process id, which is also its group's.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    /// Waits for its end. The group is dead then and its output complete.
    pub async fn wait(&mut self) -> Exit {
        // The reaper always sends before it goes; should it have panicked, the process counts as killed.
        match self.exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.unwrap_or(Exit::Signal(9)),
            Err(_) => Exit::Signal(9),
        }
    }

    /// Signals the leader alone, as a container runtime signals the first process.
    pub fn signal(&self, signal: Signal) {
        let reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        if !*reaped {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Signals the whole group.
    pub fn signal_group(&self, signal: Signal) {
        let reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        if !*reaped {
            let _ = kill_process_group(self.pid, signal);
        }
    }
}

/// A process as it is written down: a pid alone may be somebody else's by the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

impl Identity {
    /// Reads the identity of a living process.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The command's name may hold spaces and parentheses; fields count from the last ')'.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Self { pid, started: fields.get(19)?.parse().ok()? })
    }
}

struct Request {
    program: Program,
    log: PodLog,
    reply: oneshot::Sender<Result<Process>>,
}

/// Starts processes, all from one thread: a child dies with the thread that started it, and this one ends with the node.
#[derive(Clone, Debug)]
pub struct Spawner {
    requests: mpsc::Sender<Request>,
}

impl Spawner {
    /// Starts the thread. Living processes are listed in `record`.
    ///
    /// # Errors
    /// [`Error::Spawn`] when the system gives no thread.
    pub fn start(record: PathBuf) -> Result<Self> {
        let (requests, inbox) = mpsc::channel::<Request>();
        let alive = Arc::new(Record { path: record, alive: Mutex::default() });
        thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for request in inbox {
                    let _ = request.reply.send(spawn(request.program, request.log, &alive));
                }
            })
            .map_err(|source| Error::Spawn { program: "spawner thread".into(), source })?;
        Ok(Self { requests })
    }

    /// Starts a program; its output goes to `log`.
    ///
    /// # Errors
    /// [`Error::Spawn`].
    pub async fn spawn(&self, program: Program, log: PodLog) -> Result<Process> {
        let path = program.path.clone();
        let (reply, answer) = oneshot::channel();
        let gone = || Error::Spawn { program: path.clone(), source: io::Error::other("the node is shutting down") };
        self.requests.send(Request { program, log, reply }).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// The living processes, on disk for the next node.
struct Record {
    path: PathBuf,
    alive: Mutex<Vec<Identity>>,
}

impl Record {
    fn change(&self, change: impl FnOnce(&mut Vec<Identity>)) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut alive);
        // The mark in the environment finds what this record misses, so a failure here loses nothing.
        if let Err(error) = folder::try_replace_json(&self.path, &*alive) {
            tracing::warn!(%error, "the list of processes was not written");
        }
    }
}

fn spawn(program: Program, mut log: PodLog, record: &Arc<Record>) -> Result<Process> {
    let failed = |source| Error::Spawn { program: program.path.clone(), source };
    let (mut output, input) = io::pipe().map_err(failed)?;
    let mut command = Command::new(&program.path);
    command
        .args(&program.args)
        .env_clear()
        .envs(&program.env)
        .current_dir(&program.folder)
        .stdin(Stdio::null())
        .stdout(input.try_clone().map_err(failed)?)
        .stderr(input)
        .process_group(0);
    die_with_this_thread(&mut command);
    let child = command.spawn().map_err(failed)?;
    // The command holds the pipe's write ends: without this the reader would never see the end.
    drop(command);
    let pid = Pid::from_child(&child);
    let identity = Identity::of(pid.as_raw_pid());
    record.change(|alive| alive.extend(identity));

    let (told, exit) = watch::channel(None);
    let reaped = Arc::new(Mutex::new(false));
    let reaped_too = Arc::clone(&reaped);
    let (drained, output_done) = mpsc::channel::<()>();
    let reader = thread::Builder::new().name("pod log".into()).spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(bytes @ 1..) = output.read(&mut buffer) {
            log.write(&buffer[..bytes]);
        }
        log.finish();
        drop(drained);
    });
    let record = Arc::clone(record);
    let reaper = thread::Builder::new().name("reaper".into()).spawn(move || {
        let end = reap(child, pid, &reaped_too);
        record.change(|alive| alive.retain(|one| Some(*one) != identity));
        // Its last lines are part of its end. A process that left the group and kept the pipe must not hold us up.
        let _ = output_done.recv_timeout(Duration::from_millis(500));
        told.send_replace(Some(end));
    });
    if let Err(source) = reader.and(reaper) {
        let _ = kill_process_group(pid, Signal::KILL);
        return Err(failed(source));
    }
    Ok(Process { pid, exit, reaped })
}

/// Waits for the leader, kills what is left of its group while the pid cannot have been given to another, then reaps it.
fn reap(mut child: Child, pid: Pid, reaped: &Mutex<bool>) -> Exit {
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
    // From here on the pid may be given to somebody else: no signal of ours may be under way.
    let mut reaped = reaped.lock().unwrap_or_else(PoisonError::into_inner);
    *reaped = true;
    let _ = kill_process_group(pid, Signal::KILL);
    match child.wait() {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or(9)),
        },
        Err(error) => {
            tracing::error!(%error, pid = pid.as_raw_pid(), "a child could not be reaped");
            Exit::Signal(9)
        }
    }
}

fn die_with_this_thread(command: &mut Command) {
    let parent = getpid();
    // SAFETY: the closure runs between fork and exec in a child of a multi-threaded process, where only async-signal-safe
    // work is allowed: it makes two system calls (prctl, getppid) and neither allocates nor takes a lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the line above took effect.
            if getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()));
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_log::{ROTATE_BYTES, Tail};

    fn shell(folder: &std::path::Path, script: &str) -> Program {
        Program {
            path: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into()), ("ONLY".into(), "this".into())]),
            folder: folder.into(),
        }
    }

    struct Bench {
        folder: tempfile::TempDir,
        spawner: Spawner,
        tail: Tail,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let spawner = Spawner::start(folder.path().join("processes.json")).unwrap();
            Self { folder, spawner, tail: Tail::default() }
        }

        async fn run(&self, script: &str) -> Process {
            let log = PodLog::open(&self.folder.path().join("log"), self.tail.clone(), ROTATE_BYTES);
            self.spawner.spawn(shell(self.folder.path(), script), log).await.unwrap()
        }

        fn recorded(&self) -> Vec<Identity> {
            folder::read_json(&self.folder.path().join("processes.json")).unwrap().unwrap()
        }
    }

    async fn gone(pid: i32) {
        while Identity::of(pid).is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn the_exit_and_the_last_lines_are_told_together() {
        let bench = Bench::new();
        assert_eq!(bench.run("echo out; echo err >&2; exit 3").await.wait().await, Exit::Code(3));
        assert_eq!(bench.tail.lines(), ["out", "err"]);
        let exit = bench.run("kill -9 $$").await.wait().await;
        assert_eq!((exit, exit.code()), (Exit::Signal(9), 137));
    }

    #[tokio::test]
    async fn nothing_is_inherited_from_our_environment() {
        let bench = Bench::new();
        bench.run("env | cut -d= -f1 | sort | tr '\\n' ' '").await.wait().await;
        assert_eq!(bench.tail.lines(), ["ONLY PATH PWD"]);
    }

    #[tokio::test]
    async fn the_rest_of_a_group_ends_with_its_leader() {
        let bench = Bench::new();
        bench.run("sleep 1000 & echo $!; exit 1").await.wait().await;
        gone(bench.tail.lines()[0].parse().unwrap()).await;
    }

    #[tokio::test]
    async fn processes_die_with_the_node_that_started_them() {
        let bench = Bench::new();
        let process = bench.run("trap '' TERM; while :; do sleep 0.05; done").await;
        assert_eq!(bench.recorded().len(), 1);
        let Bench { spawner, .. } = bench;
        drop(spawner);
        gone(process.pid()).await;
    }

    #[tokio::test]
    async fn living_processes_are_on_record_and_ended_ones_are_not() {
        let bench = Bench::new();
        let mut process = bench.run("sleep 1000").await;
        assert_eq!(bench.recorded(), [Identity::of(process.pid()).unwrap()]);
        process.signal(Signal::TERM);
        assert_eq!(process.wait().await, Exit::Signal(15));
        assert!(bench.recorded().is_empty());
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let bench = Bench::new();
        let mut program = shell(bench.folder.path(), "");
        program.path = "/no/such/thresh-trainer".into();
        let log = PodLog::open(&bench.folder.path().join("log"), Tail::default(), ROTATE_BYTES);
        let error = bench.spawner.spawn(program, log).await.unwrap_err().to_string();
        assert!(error.contains("/no/such/thresh-trainer"), "{error}");
    }
}
