//! Probes, as the kubelet runs them: real periods, consecutive thresholds.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, Probe as Template},
    apimachinery::pkg::util::intstr::IntOrString,
};
use tokio::net::TcpStream;

use crate::{
    error::{Error, Result},
    pod_log::{PodLog, Tail},
    process::{Exit, Program, Spawner},
};

/// What a probe does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// GET; 200 to 399 is a success.
    Http {
        /// Whole URL.
        url: String,
        /// Extra headers.
        headers: Vec<(String, String)>,
    },
    /// Connect.
    Tcp {
        /// `address:port`.
        address: String,
    },
    /// Run; exit code 0 is a success.
    Exec(Program),
}

/// A probe with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What to do.
    pub check: Check,
    /// Wait after the start.
    pub initial_delay: Duration,
    /// From one check to the next.
    pub period: Duration,
    /// A check that takes longer has failed.
    pub timeout: Duration,
    /// Successes in a row that count as one.
    pub success_threshold: u32,
    /// Failures in a row that count as one.
    pub failure_threshold: u32,
}

impl Probe {
    /// Reads a probe of a container whose pod has `address`; `exec` makes a program of a command.
    ///
    /// # Errors
    /// [`Error::Template`] for a port that is not there or a kind of probe this node lacks.
    pub fn read(
        template: &Template,
        container: &Container,
        address: &str,
        pod: &str,
        exec: impl Fn(&[String]) -> Result<Program>,
    ) -> Result<Self> {
        let seconds = |value: Option<i32>, default: i32| {
            Duration::from_secs(u64::try_from(value.unwrap_or(default).max(0)).unwrap_or(0))
        };
        let count = |value: Option<i32>, default: u32| value.and_then(|value| value.try_into().ok()).unwrap_or(default);
        let check = if let Some(get) = &template.http_get {
            http(get, container, address, pod)?
        } else if let Some(socket) = &template.tcp_socket {
            let host = socket.host.as_deref().unwrap_or(address);
            Check::Tcp { address: format!("{host}:{}", port(&socket.port, container, pod)?) }
        } else if let Some(run) = &template.exec {
            Check::Exec(exec(run.command.as_deref().unwrap_or_default())?)
        } else {
            return Err(Error::Template {
                pod: pod.into(),
                field: format!("spec.containers[{}].…Probe", container.name),
                reason: "only httpGet, tcpSocket and exec probes work on a laptop".into(),
            });
        };
        Ok(Self {
            check,
            initial_delay: seconds(template.initial_delay_seconds, 0),
            period: seconds(template.period_seconds, 10).max(Duration::from_secs(1)),
            timeout: seconds(template.timeout_seconds, 1).max(Duration::from_secs(1)),
            success_threshold: count(template.success_threshold, 1).max(1),
            failure_threshold: count(template.failure_threshold, 3).max(1),
        })
    }
}

/// The URL and headers of an HTTP action.
///
/// # Errors
/// [`Error::Template`] for a named port the container does not declare.
pub fn http(get: &HTTPGetAction, container: &Container, address: &str, pod: &str) -> Result<Check> {
    let scheme = get.scheme.as_deref().unwrap_or("HTTP").to_ascii_lowercase();
    let host = get.host.as_deref().unwrap_or(address);
    let path = get.path.as_deref().unwrap_or("/");
    let slash = if path.starts_with('/') { "" } else { "/" };
    Ok(Check::Http {
        url: format!("{scheme}://{host}:{}{slash}{path}", port(&get.port, container, pod)?),
        headers: get.http_headers.iter().flatten().map(|one| (one.name.clone(), one.value.clone())).collect(),
    })
}

fn port(port: &IntOrString, container: &Container, pod: &str) -> Result<i32> {
    match port {
        IntOrString::Int(port) => Ok(*port),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|one| one.name.as_deref() == Some(name))
            .map(|one| one.container_port)
            .or_else(|| name.parse().ok())
            .ok_or_else(|| Error::Template {
                pod: pod.into(),
                field: format!("spec.containers[{}].ports", container.name),
                reason: format!("no port is named {name}"),
            }),
    }
}

/// Makes the checks.
#[derive(Clone, Debug)]
pub struct Prober {
    http: reqwest::Client,
    spawner: Spawner,
}

impl Prober {
    /// A prober; exec checks start through `spawner`.
    ///
    /// # Errors
    /// [`Error::Spawn`] when no HTTP client can be made.
    pub fn new(spawner: Spawner) -> Result<Self> {
        // Pods are on this machine: a proxy of the user's environment must not see these.
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .build()
            .map_err(|error| Error::Spawn { program: "HTTP client".into(), source: std::io::Error::other(error) })?;
        Ok(Self { http, spawner })
    }

    /// Makes one check.
    ///
    /// # Errors
    /// Why it failed, for a person.
    pub async fn check(&self, check: &Check, timeout: Duration) -> Result<(), String> {
        tokio::time::timeout(timeout, self.unbounded(check))
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {} s", timeout.as_secs_f64())))
    }

    async fn unbounded(&self, check: &Check) -> Result<(), String> {
        match check {
            Check::Http { url, headers } => {
                let request =
                    headers.iter().fold(self.http.get(url), |request, (name, value)| request.header(name, value));
                let status = request.send().await.map_err(|error| format!("GET {url}: {}", root(&error)))?.status();
                if (200..400).contains(&status.as_u16()) { Ok(()) } else { Err(format!("GET {url}: {status}")) }
            }
            Check::Tcp { address } => {
                TcpStream::connect(address).await.map(drop).map_err(|error| format!("connect to {address}: {error}"))
            }
            Check::Exec(program) => {
                let tail = Tail::default();
                let log = PodLog::open(std::path::Path::new("/dev/null"), tail.clone(), u64::MAX);
                let mut process = self.spawner.spawn(program.clone(), log).await.map_err(|error| error.to_string())?;
                let kill = KillOnDrop(process.clone());
                let exit = process.wait().await;
                drop(kill);
                match exit {
                    Exit::Code(0) => Ok(()),
                    exit => Err(format!("exit code {}: {}", exit.code(), tail.lines().join(" / "))),
                }
            }
        }
    }
}

/// A check that timed out must not go on.
struct KillOnDrop(crate::process::Process);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.signal_group(rustix::process::Signal::KILL);
    }
}

fn root(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Counts results in a row and says when the verdict changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streak {
    last: Option<bool>,
    length: u32,
}

impl Streak {
    /// Takes a result; `Some` when a threshold is reached by it or was before.
    pub fn take(&mut self, success: bool, probe: &Probe) -> Option<bool> {
        if self.last == Some(success) {
            self.length = self.length.saturating_add(1);
        } else {
            (self.last, self.length) = (Some(success), 1);
        }
        let threshold = if success { probe.success_threshold } else { probe.failure_threshold };
        (self.length >= threshold).then_some(success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_its_results_in_a_row() {
        let probe = Probe {
            check: Check::Tcp { address: String::new() },
            initial_delay: Duration::ZERO,
            period: Duration::ZERO,
            timeout: Duration::ZERO,
            success_threshold: 2,
            failure_threshold: 3,
        };
        let mut streak = Streak::default();
        let verdicts: Vec<_> = [false, false, true, true, false, false, true, false, false, false, false]
            .into_iter()
            .map(|result| streak.take(result, &probe))
            .collect();
        let (up, down) = (Some(true), Some(false));
        assert_eq!(verdicts, [None, None, None, up, None, None, None, None, None, down, down]);
    }

    #[test]
    fn named_ports_and_defaults_are_resolved() {
        let container: Container = serde_json::from_value(serde_json::json!({
            "name": "engine", "ports": [{"name": "http", "containerPort": 30000}],
        }))
        .unwrap();
        let read = |probe: serde_json::Value| {
            Probe::read(
                &serde_json::from_value(probe).unwrap(),
                &container,
                "127.77.1.2",
                "engine-0",
                |_| unreachable!(),
            )
        };
        let probe = read(serde_json::json!({"httpGet": {"path": "health", "port": "http"}})).unwrap();
        assert_eq!(probe.check, Check::Http { url: "http://127.77.1.2:30000/health".into(), headers: vec![] });
        assert_eq!((probe.period.as_secs(), probe.timeout.as_secs(), probe.failure_threshold), (10, 1, 3));
        let error = read(serde_json::json!({"tcpSocket": {"port": "metrics"}})).unwrap_err().to_string();
        assert_eq!(error, "pod engine-0: spec.containers[engine].ports: no port is named metrics");
    }
}
