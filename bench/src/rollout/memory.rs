//! The most memory each process of a run ever had.

use std::collections::BTreeMap;

use anyhow::Result;

use super::local_run::Process;
use crate::line::{Line, Lines};

/// Peak resident KiB by role.
#[derive(Default)]
pub struct Peaks {
    by_role: BTreeMap<&'static str, u64>,
}

impl Peaks {
    /// Takes the peaks of living processes into account. The kernel keeps a process's peak for as long as it lives.
    pub fn look(&mut self, processes: &[Process]) {
        for process in processes {
            let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let Some(kib) = peak.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok()) else { continue };
            let known = self.by_role.entry(role(process)).or_default();
            *known = kib.max(*known);
        }
    }
}

fn role(process: &Process) -> &'static str {
    let pod = process.pod.as_str();
    match process.rank {
        Some(_) => "trainer rank",
        None if pod.is_empty() => "thresh run",
        None if pod.contains("-conductor") => "conductor",
        None if pod.contains("-serving") => "engine",
        None if pod.contains("-rollout") => "worker",
        None => "trainer launcher",
    }
}

/// One line a role; of several processes the largest.
pub fn report(peaks: &Peaks, lines: &mut Lines) -> Result<()> {
    peaks
        .by_role
        .iter()
        .try_for_each(|(role, kib)| lines.add(Line::new("peak_memory", *role, *kib as f64 / 1024.0, "MiB")))
}
