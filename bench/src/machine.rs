//! What kind of machine this is: shapes, not names.

use std::path::Path;

use serde_json::json;

use crate::line::Line;

/// One-minute load average; 0 where it cannot be read.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|x| x.parse().ok()).unwrap_or(0.0)
}

/// Cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The widest vectors with fused multiply-add.
pub fn vectors() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return "AVX-512";
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            return "AVX2+FMA";
        }
        "SSE2"
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH
}

/// The kind of file system under `path`, by its magic number.
pub fn file_system(path: &Path) -> String {
    let Ok(found) = rustix::fs::statfs(path) else { return "unknown".to_owned() };
    match found.f_type as u64 & 0xffff_ffff {
        0xEF53 => "ext4".to_owned(),
        0x5846_5342 => "xfs".to_owned(),
        0x9123_683E => "btrfs".to_owned(),
        0x0102_1994 => "tmpfs (syncs cost nothing here)".to_owned(),
        0x794C_7630 => "overlayfs".to_owned(),
        0x6969 => "nfs".to_owned(),
        0x6573_5546 => "fuse".to_owned(),
        other => format!("{other:#x}"),
    }
}

/// The first line of every file.
pub fn line(out: &Path) -> Line {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.lines().find_map(|l| l.strip_prefix("MemTotal:")).unwrap_or_default();
    let kib: f64 = memory.split_whitespace().next().and_then(|x| x.parse().ok()).unwrap_or(0.0);
    Line::new("machine", "", cores() as f64, "cores")
        .with("vectors", vectors())
        .with("arch", std::env::consts::ARCH)
        .with("memory_gib", json!((kib / (1 << 20) as f64).round()))
        .with("file_system", file_system(out))
}
