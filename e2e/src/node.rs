//! What happens to machines: processes killed, nodes lost and healed, volumes gone.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::Pod;

use crate::stage::repository;

/// Runs a command of the cluster's own script.
///
/// # Errors
/// When it fails; with its words.
pub fn cluster(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(repository().join("e2e/cluster/cluster.sh")).args(args).output().context("cluster.sh")?;
    if !output.status.success() {
        bail!("cluster.sh {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// A node that is lost until this is dropped, whatever becomes of the test.
pub struct Lost(Option<String>);

impl Lost {
    /// Kills its kubelet and cuts its link; its containers go on.
    ///
    /// # Errors
    /// When the script fails.
    pub fn node(number: u32) -> anyhow::Result<Self> {
        let lost = Self(Some(number.to_string()));
        cluster(&["node-kill", &number.to_string()])?;
        Ok(lost)
    }

    /// Brings it back.
    ///
    /// # Errors
    /// When it does not become Ready.
    pub fn heal(mut self) -> anyhow::Result<()> {
        self.0.take().map_or(Ok(()), |number| cluster(&["node-heal", &number]))
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(number) = self.0.take()
            && let Err(error) = cluster(&["node-heal", &number])
        {
            // The tests that follow will say so too; here it is said why.
            eprintln!("node {number} was not healed: {error:#}");
        }
    }
}

/// Pids on this machine of the containers of a pod, by the uid in their cgroup.
///
/// # Errors
/// When /proc cannot be read.
pub fn pids(pod: &Pod) -> anyhow::Result<Vec<u32>> {
    let uid = pod.metadata.uid.clone().context("a pod without uid")?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process may end while it is looked at.
        let Ok(groups) = std::fs::read_to_string(entry.path().join("cgroup")) else { continue };
        let program = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if groups.contains(&uid) && program.trim() != "pause" {
            found.push(pid);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Sends a signal to processes whose command line begins with `program`, in a pod of this machine.
///
/// # Errors
/// When there is none.
pub fn signal(pod: &Pod, program: &str, signal: &str) -> anyhow::Result<u32> {
    let mut hit = 0;
    for pid in pids(pod)? {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&command).starts_with(program) {
            let sent = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status()?;
            ensure!(sent.success(), "kill -{signal} {pid}");
            hit += 1;
        }
    }
    ensure!(hit > 0, "no process {program} in pod {}", pod.metadata.name.as_deref().unwrap_or_default());
    Ok(hit)
}

/// Sends a signal to one process.
///
/// # Errors
/// When it is not there.
pub fn kill(pid: u32, signal: &str) -> anyhow::Result<()> {
    let sent = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status()?;
    ensure!(sent.success(), "kill -{signal} {pid}");
    Ok(())
}

/// Uses up a container's memory from within its cgroup, as a leak would, until the kernel ends the largest process there: ours
/// is told to be the one.
///
/// # Errors
/// When the cgroup cannot be entered.
pub fn use_up_memory(pod: &Pod) -> anyhow::Result<()> {
    let pid = *pids(pod)?.first().context("a process")?;
    // (`tail` holds all of a line, and this one has no end before the gigabyte's.)
    // Everything of it counts against the pod's limit from here on; the rank is to be chosen, not the hog.
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000").context("make the rank the first to go")?;
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let group = groups
        .lines()
        .find_map(|line| line.split_once(":memory:").map(|(_, path)| format!("/sys/fs/cgroup/memory{path}")))
        .or_else(|| {
            groups.lines().find_map(|line| line.strip_prefix("0::").map(|path| format!("/sys/fs/cgroup{path}")))
        })
        .context("the container's cgroup")?;
    let script = format!("echo $$ > {group}/cgroup.procs && head -c 1G /dev/zero | tail");
    let mut hog = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).spawn()?;
    std::thread::spawn(move || hog.wait());
    Ok(())
}
