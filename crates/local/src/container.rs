//! The life of one container: start, probe, restart with backoff, stop with its hook, SIGTERM, grace and SIGKILL.

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use rustix::process::Signal;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    pod,
    pod_log::{PodLog, ROTATE_BYTES, Tail},
    probe::{Check, Probe, Prober, Streak},
    process::{Exit, Process, Program, Spawner},
};

/// The kubelet begins at 10 s and ends at 300; processes here start in milliseconds and nobody pays for a busy loop but us.
const BACKOFF_FIRST: Duration = Duration::from_millis(250);
const BACKOFF_LAST: Duration = Duration::from_secs(10);
/// Reason of the state between an end and the next start, and how its message begins.
const CRASH_LOOP: &str = "CrashLoopBackOff";
const BACK_OFF: &str = "back-off ";
/// A container that ran this long starts its backoff anew (the kubelet: 10 minutes).
const BACKOFF_FORGET: Duration = Duration::from_secs(30);

/// How often the first success of a probe is looked for.
const EAGER: Duration = Duration::from_millis(100);

/// When a container is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Whatever its exit code.
    Always,
    /// When it is not 0.
    OnFailure,
    /// Not at all.
    Never,
}

impl Restart {
    /// From a pod's `restartPolicy`.
    #[must_use]
    pub fn read(policy: Option<&str>) -> Self {
        match policy {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }

    fn again(self, exit: Exit) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit != Exit::Code(0),
            Self::Never => false,
        }
    }
}

/// What runs before SIGTERM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreStop {
    /// A request or a command.
    Do(Check),
    /// A pause.
    Sleep(Duration),
}

/// All there is to know to run a container.
#[derive(Clone, Debug)]
pub struct Container {
    /// Its name in the pod.
    pub name: String,
    /// For people; nothing is pulled.
    pub image: String,
    /// What to execute.
    pub program: Program,
    /// Where its output goes.
    pub log: PathBuf,
    /// When to start it again.
    pub restart: Restart,
    /// Until it succeeds, the others wait.
    pub startup: Option<Probe>,
    /// Decides `ready`.
    pub readiness: Option<Probe>,
    /// Failing, it ends the process.
    pub liveness: Option<Probe>,
    /// Runs before SIGTERM.
    pub pre_stop: Option<PreStop>,
    /// From the order to stop to SIGKILL.
    pub grace: Duration,
}

/// What the node hears.
pub type Reports = mpsc::UnboundedSender<(String, ContainerStatus)>;

/// Orders to a container: run, or be gone by an instant. The instant may be moved forward.
pub type Stop = watch::Receiver<Option<Instant>>;

/// Runs a container until it has ended for good. Each change is reported under `pod`, the pod's uid.
pub async fn run(
    container: Container,
    pod: String,
    spawner: Spawner,
    prober: Prober,
    mut stop: Stop,
    reports: Reports,
) {
    let mut life = Life { container, pod, reports, status: ContainerStatus::default(), tail: Tail::default() };
    life.status.name.clone_from(&life.container.name);
    life.status.image.clone_from(&life.container.image);
    let mut backoff = BACKOFF_FIRST;
    loop {
        if stop.borrow().is_some() {
            return life.never_started();
        }
        life.enter(pod::waiting("ContainerCreating", None));
        let log = PodLog::open(&life.container.log, life.tail.clone(), ROTATE_BYTES);
        let began = Instant::now();
        match spawner.spawn(life.container.program.clone(), log).await {
            Ok(process) => {
                let exit = life.live(process, &prober, &mut stop).await;
                if stop.borrow().is_some() || !life.container.restart.again(exit) {
                    return;
                }
            }
            Err(error) => {
                if life.container.restart == Restart::Never {
                    return life.could_not_start(&error.to_string());
                }
                life.enter(pod::waiting("CreateContainerError", Some(error.to_string())));
            }
        }
        if began.elapsed() >= BACKOFF_FORGET {
            backoff = BACKOFF_FIRST;
        }
        life.crash_loop(backoff);
        tokio::select! {
            () = sleep(backoff) => {}
            _ = stop.wait_for(Option::is_some) => return life.never_started(),
        }
        backoff = (backoff * 2).min(BACKOFF_LAST);
        life.status.restart_count += 1;
    }
}

/// How long a container that has ended waits for its next start, if it does.
#[must_use]
pub fn backing_off(status: &ContainerStatus) -> Option<Duration> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let message = waiting.message.as_ref().filter(|_| waiting.reason.as_deref() == Some(CRASH_LOOP))?;
    let (wait, _) = message.strip_prefix(BACK_OFF)?.split_once(' ')?;
    wait.parse().ok().map(Duration::from_millis)
}

struct Life {
    container: Container,
    pod: String,
    reports: Reports,
    status: ContainerStatus,
    tail: Tail,
}

impl Life {
    fn report(&self) {
        let _ = self.reports.send((self.pod.clone(), self.status.clone()));
    }

    fn enter(&mut self, state: ContainerState) {
        if let Some(old) = self.status.state.replace(state)
            && old.terminated.is_some()
        {
            self.status.last_state = Some(old);
        }
        self.report();
    }

    fn crash_loop(&mut self, backoff: Duration) {
        let message = format!("{BACK_OFF}{} ms restarting container {}", backoff.as_millis(), self.container.name);
        self.enter(pod::waiting(CRASH_LOOP, Some(message)));
    }

    /// Stopped while nothing ran: whoever waits for the end must see one.
    fn never_started(&mut self) {
        if self.status.state.as_ref().is_none_or(|state| state.terminated.is_none()) {
            let last = self.status.last_state.as_ref().and_then(|state| state.terminated.clone());
            let end = last.unwrap_or_else(|| end_of(137, None, "NeverStarted", "stopped before it was started"));
            self.status.state = Some(ContainerState { terminated: Some(end), ..Default::default() });
        }
        self.status.ready = false;
        self.report();
    }

    fn could_not_start(&mut self, message: &str) {
        let end = end_of(128, None, "StartError", message);
        self.enter(ContainerState { terminated: Some(end), ..Default::default() });
    }

    /// From the start of a process to its end, whoever asked for it.
    async fn live(&mut self, mut process: Process, prober: &Prober, stop: &mut Stop) -> Exit {
        let started_at = Time(Timestamp::now());
        let mut watched = Watched::begin(&self.container, prober);
        self.status.container_id = Some(format!("process://{}", process.pid()));
        self.status.started = Some(self.container.startup.is_none());
        self.status.ready = self.container.readiness.is_none() && self.container.startup.is_none();
        self.enter(ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(started_at.clone()) }),
            ..Default::default()
        });
        let mut reason = None;
        let exit = loop {
            tokio::select! {
                biased;
                exit = process.wait() => break exit,
                () = wait_some(stop) => break self.end(&mut process, prober, stop).await,
                Some((kind, verdict)) = watched.verdicts.recv() => match (kind, verdict) {
                    (Kind::Readiness, verdict) => {
                        let ready = verdict.is_ok();
                        if self.status.ready != ready {
                            self.status.ready = ready;
                            self.report();
                        }
                    }
                    (Kind::Startup, Ok(())) => {
                        self.status.started = Some(true);
                        self.status.ready = self.container.readiness.is_none();
                        watched.started(&self.container, prober);
                        self.report();
                    }
                    (Kind::Liveness, Ok(())) => {}
                    (Kind::Startup | Kind::Liveness, Err(why)) => {
                        let probe = if kind == Kind::Startup { "startup" } else { "liveness" };
                        tracing::warn!(container = %self.container.name, %why, "{probe} probe failed; the process is ended");
                        reason = Some(format!("{probe} probe failed: {why}"));
                        let (_tell, mut until) = watch::channel(Some(Instant::now() + self.container.grace));
                        break self.end(&mut process, prober, &mut until).await;
                    }
                },
            }
        };
        drop(watched);
        self.status.ready = false;
        self.status.started = Some(false);
        let message =
            reason.unwrap_or_else(|| last_words::last_words(&self.tail.lines().join("\n"), exit == Exit::Signal(9)));
        let word = if exit == Exit::Code(0) { "Completed" } else { "Error" };
        let mut end = end_of(exit.code(), exit.signal(), word, &message);
        end.started_at = Some(started_at);
        end.container_id.clone_from(&self.status.container_id);
        self.enter(ContainerState { terminated: Some(end), ..Default::default() });
        exit
    }

    /// The hook, SIGTERM, and SIGKILL when the time is over.
    async fn end(&mut self, process: &mut Process, prober: &Prober, stop: &mut Stop) -> Exit {
        let hook = self.container.pre_stop.clone();
        let grace = self.container.grace;
        let hook = async {
            match hook {
                None => {}
                Some(PreStop::Sleep(pause)) => sleep(pause).await,
                Some(PreStop::Do(check)) => {
                    if let Err(why) = prober.check(&check, grace.max(Duration::from_secs(1))).await {
                        tracing::warn!(container = %self.container.name, %why, "preStop failed");
                    }
                }
            }
        };
        tokio::select! {
            biased;
            exit = process.wait() => return exit,
            () = hook => {}
            () = deadline(stop) => {}
        }
        process.signal(Signal::TERM);
        tokio::select! {
            biased;
            exit = process.wait() => return exit,
            () = deadline(stop) => {}
        }
        process.signal_group(Signal::KILL);
        process.wait().await
    }
}

fn end_of(code: i32, signal: Option<i32>, reason: &str, message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: code,
        signal,
        reason: Some(reason.into()),
        message: (!message.is_empty()).then(|| message.to_owned()),
        finished_at: Some(Time(Timestamp::now())),
        ..Default::default()
    }
}

async fn wait_some(stop: &mut Stop) {
    // A node that is gone gives no orders, and its processes die with it.
    if stop.wait_for(Option::is_some).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until the ordered instant, which may be moved meanwhile.
async fn deadline(stop: &mut Stop) {
    loop {
        let until = *stop.borrow_and_update();
        let passed = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = passed => return,
            changed = stop.changed() => if changed.is_err() {
                match until {
                    Some(until) => return sleep_until(until).await,
                    None => return,
                }
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Startup,
    Readiness,
    Liveness,
}

type Verdict = (Kind, Result<(), String>);

/// The probes of a living process; they end with it.
struct Watched {
    verdicts: mpsc::Receiver<Verdict>,
    tell: mpsc::Sender<Verdict>,
    tasks: Vec<JoinHandle<()>>,
}

impl Watched {
    fn begin(container: &Container, prober: &Prober) -> Self {
        let (tell, verdicts) = mpsc::channel(8);
        let mut watched = Self { verdicts, tell, tasks: Vec::new() };
        match &container.startup {
            Some(probe) => watched.add(Kind::Startup, probe.clone(), prober.clone()),
            None => watched.started(container, prober),
        }
        watched
    }

    fn started(&mut self, container: &Container, prober: &Prober) {
        self.stop();
        for (kind, probe) in [(Kind::Readiness, &container.readiness), (Kind::Liveness, &container.liveness)] {
            if let Some(probe) = probe {
                self.add(kind, probe.clone(), prober.clone());
            }
        }
    }

    fn add(&mut self, kind: Kind, probe: Probe, prober: Prober) {
        let tell = self.tell.clone();
        self.tasks.push(tokio::spawn(async move {
            sleep(probe.initial_delay).await;
            let mut streak = Streak::default();
            let mut next = Instant::now();
            let mut met = false;
            loop {
                // Failures count once a period, as anywhere. The first success is looked for more often in between: a
                // process that is up within milliseconds is not kept waiting for a whole period.
                let counted = met || Instant::now() >= next;
                let result = prober.check(&probe.check, probe.timeout).await;
                met |= result.is_ok();
                if (counted || result.is_ok())
                    && streak.take(result.is_ok(), &probe).is_some()
                    && tell.send((kind, result)).await.is_err()
                {
                    return;
                }
                if counted {
                    next = Instant::now() + probe.period;
                }
                sleep_until(if met { next } else { next.min(Instant::now() + EAGER) }).await;
            }
        }));
    }

    fn stop(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    struct Bench {
        folder: tempfile::TempDir,
        stop: watch::Sender<Option<Instant>>,
        reports: mpsc::UnboundedReceiver<(String, ContainerStatus)>,
        task: JoinHandle<()>,
        _spawner: Spawner,
    }

    fn start(script: &str, change: impl FnOnce(&mut Container)) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let spawner = Spawner::start(folder.path().join("processes.json")).unwrap();
        let prober = Prober::new(spawner.clone()).unwrap();
        let mut container = Container {
            name: "c".into(),
            image: "i".into(),
            program: Program {
                path: "/bin/sh".into(),
                args: vec!["-c".into(), script.into()],
                env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
                folder: folder.path().into(),
            },
            log: folder.path().join("c.log"),
            restart: Restart::Always,
            startup: None,
            readiness: None,
            liveness: None,
            pre_stop: None,
            grace: Duration::from_secs(600),
        };
        change(&mut container);
        let (stop, orders) = watch::channel(None);
        let (tell, reports) = mpsc::unbounded_channel();
        let task = tokio::spawn(run(container, "uid".into(), spawner.clone(), prober, orders, tell));
        Bench { folder, stop, reports, task, _spawner: spawner }
    }

    impl Bench {
        async fn until(&mut self, wanted: impl Fn(&ContainerStatus) -> bool) -> ContainerStatus {
            loop {
                let (pod, status) = self.reports.recv().await.expect("the container is gone");
                assert_eq!(pod, "uid");
                if wanted(&status) {
                    return status;
                }
            }
        }

        async fn end(&mut self) -> ContainerStatus {
            let mut last = None;
            while let Some((_, status)) = self.reports.recv().await {
                last = Some(status);
            }
            last.unwrap()
        }

        fn log(&self) -> String {
            std::fs::read_to_string(self.folder.path().join("c.log")).unwrap()
        }

        fn exec(&self, script: &str) -> Check {
            Check::Exec(Program {
                path: "/bin/sh".into(),
                args: vec!["-c".into(), script.into()],
                env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
                folder: self.folder.path().into(),
            })
        }
    }

    fn running(status: &ContainerStatus) -> bool {
        status.state.as_ref().is_some_and(|state| state.running.is_some())
    }

    fn code(status: &ContainerStatus) -> Option<i32> {
        status.state.as_ref()?.terminated.as_ref().map(|end| end.exit_code)
    }

    #[tokio::test]
    async fn always_restarts_in_place_with_backoff_and_remembers_the_last_end() {
        let mut bench = start("echo died; exit 7", |_| {});
        let loop_ = bench.until(|status| status.restart_count == 1 && code(status).is_none() && !running(status)).await;
        let end = loop_.last_state.unwrap().terminated.unwrap();
        assert_eq!((end.exit_code, end.message.as_deref()), (7, Some("died")));
        let waiting = bench
            .until(|status| {
                status.restart_count == 1
                    && status
                        .state
                        .as_ref()
                        .unwrap()
                        .waiting
                        .as_ref()
                        .is_some_and(|w| w.reason.as_deref() == Some("CrashLoopBackOff"))
            })
            .await;
        assert!(waiting.state.unwrap().waiting.unwrap().message.unwrap().contains("back-off 500 ms"));
        bench.stop.send_replace(Some(Instant::now()));
        assert_eq!(code(&bench.end().await), Some(7), "the end that is shown is the last real one");
    }

    #[tokio::test]
    async fn never_and_on_failure_end_by_their_rule() {
        for (policy, script, expected) in
            [(Restart::Never, "exit 75", 75), (Restart::Never, "exit 0", 0), (Restart::OnFailure, "exit 0", 0)]
        {
            let mut bench = start(script, |container| container.restart = policy);
            let end = bench.end().await;
            assert_eq!((code(&end), end.restart_count), (Some(expected), 0));
            bench.task.await.unwrap();
        }
        let mut bench =
            start("test -e again || { touch again; exit 1; }", |container| container.restart = Restart::OnFailure);
        let end = bench.end().await;
        assert_eq!((code(&end), end.restart_count), (Some(0), 1));
    }

    #[tokio::test]
    async fn stopping_runs_the_hook_then_sigterm_and_the_exit_code_is_the_processes_own() {
        let script = "trap 'echo term; exit 75' TERM; echo up; while :; do sleep 0.02; done";
        let mut bench = start(script, |container| {
            container.restart = Restart::Never;
            let mut hook = container.program.clone();
            hook.args = vec!["-c".into(), "echo hook >> c.log".into()];
            container.pre_stop = Some(PreStop::Do(Check::Exec(hook)));
        });
        bench.until(running).await;
        while !bench.log().contains("up") {
            sleep(Duration::from_millis(5)).await;
        }
        bench.stop.send_replace(Some(Instant::now() + Duration::from_secs(600)));
        assert_eq!(code(&bench.end().await), Some(75));
        assert_eq!(bench.log(), "up\nhook\nterm\n");
    }

    #[tokio::test]
    async fn sigkill_follows_when_the_grace_is_over_also_when_it_is_shortened() {
        let mut bench = start("trap '' TERM; echo up; while :; do sleep 0.02; done", |_| {});
        bench.until(running).await;
        while !bench.log().contains("up") {
            sleep(Duration::from_millis(5)).await;
        }
        bench.stop.send_replace(Some(Instant::now() + Duration::from_secs(3600)));
        sleep(Duration::from_millis(50)).await;
        assert!(!bench.task.is_finished());
        bench.stop.send_replace(Some(Instant::now()));
        assert_eq!(code(&bench.end().await), Some(137));
    }

    #[tokio::test]
    async fn readiness_follows_its_probe_and_liveness_ends_the_process() {
        let mut bench = start("while :; do sleep 0.02; done", |container| container.restart = Restart::Never);
        bench.until(running).await;
        let probe = |check| Probe {
            check,
            initial_delay: Duration::ZERO,
            period: Duration::from_millis(20),
            timeout: Duration::from_secs(60),
            success_threshold: 1,
            failure_threshold: 2,
        };
        let (ready, live) = (bench.exec("test -e ready"), bench.exec("test ! -e sick"));
        bench.stop.send_replace(Some(Instant::now()));
        let folder = bench.folder.path().to_owned();
        let mut bench = start("while :; do sleep 0.02; done", |container| {
            container.restart = Restart::Never;
            container.readiness = Some(probe(ready));
            container.liveness = Some(probe(live));
        });
        assert!(!bench.until(running).await.ready);
        std::fs::write(folder.join("ready"), "").unwrap();
        assert!(bench.until(|status| status.ready).await.ready);
        std::fs::remove_file(folder.join("ready")).unwrap();
        bench.until(|status| !status.ready).await;
        std::fs::write(folder.join("sick"), "").unwrap();
        let end = bench.end().await.state.unwrap().terminated.unwrap();
        assert_eq!(end.exit_code, 143);
        assert!(end.message.unwrap().starts_with("liveness probe failed: exit code 1"));
    }

    #[tokio::test]
    async fn nothing_else_is_probed_before_the_startup_probe_succeeds() {
        let mut bench = start("while :; do sleep 0.02; done", |container| {
            let exec = |script: &str| {
                let mut program = container.program.clone();
                program.args = vec!["-c".into(), script.into()];
                Some(Probe {
                    check: Check::Exec(program),
                    initial_delay: Duration::ZERO,
                    period: Duration::from_millis(20),
                    timeout: Duration::from_secs(60),
                    success_threshold: 1,
                    failure_threshold: 1000,
                })
            };
            container.startup = exec("test -e loaded");
            container.readiness = exec("touch asked");
        });
        bench.until(running).await;
        sleep(Duration::from_millis(150)).await;
        assert!(!bench.folder.path().join("asked").exists());
        std::fs::write(bench.folder.path().join("loaded"), "").unwrap();
        let status = bench.until(|status| status.ready).await;
        assert_eq!(status.started, Some(true));
    }

    #[tokio::test]
    async fn a_program_that_cannot_start_ends_a_pod_that_never_restarts() {
        let mut bench = start("", |container| {
            container.restart = Restart::Never;
            container.program.path = "/no/such".into();
        });
        let end = bench.end().await.state.unwrap().terminated.unwrap();
        assert_eq!((end.exit_code, end.reason.as_deref()), (128, Some("StartError")));
    }
}
