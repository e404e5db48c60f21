//! The table of everything that was measured, printed and as a page of the docs.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::Options;
use crate::line::{Line, number, read};

/// (file, heading, what a reader must know)
const PARTS: [(&str, &str, &str); 3] = [
    (
        "straw",
        "Store, journal, queue",
        "Beside the raw file system: the same bytes, on the same file system, by turns. Reads come from the page cache. `calls` are \
         counts and the same everywhere. Concurrent writers share syncs; the peer's threads each have a file of their own, so each \
         of its writes pays for a sync. The first rows are measured beside straw-queue, too, and where JuiceFS can be mounted once \
         more there (`_juicefs`, one client, objects on the same disk): *ratio peer* is how many times as fast as straw-queue, which \
         gets the same work in the same round. Its recovery is scaled up from fewer tasks.",
    ),
    (
        "core",
        "Training and decode",
        "A training step is one GRPO update: forward, log-probs, loss, backward, gradient norm, AdamW. Decode is one token for each \
         sequence of a batch, with sampling and log-prob. One thread is timed by its CPU time, several by the wall. PyTorch runs \
         eagerly in float32, with fused projections, attention and AdamW; it starts from the same weights and must come to the same log-probs \
         and gradient norm, within 1e-3, before either is timed. *Of peak* is the share of what as many cores as there are \
         threads could do in fused multiply-adds, measured in the same round. The row `pytorch` measures nothing: its case is the \
         version of the peer.",
    ),
    (
        "rollout",
        "The whole loop",
        "The quickstart, by `thresh run`, with all its processes sharing the cores. `trainer_recovery` is the time from the `kill -9` \
         of a rank to the next optimizer step in the journal: the death is noticed, the attempt ended, the next one started, its \
         tiles loaded, and a retained batch learnt. `lease_renewals`, `results_accepted` and `conductor_failover` are of a conductor alone, \
         a process that is asked over HTTP: renewals beside as many calls that ask for nothing, results that are answered once they \
         are durable, and the time from a `kill -9` under load to the first result that the successor acknowledges, started at once.",
    ),
];

/// Prints the table, and writes the page when asked to.
pub fn run(options: &Options, write: Option<&Path>, command: &str) -> Result<()> {
    let page = page(&options.out, command)?;
    println!("{page}");
    if let Some(path) = write {
        std::fs::write(path, &page).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn page(out: &Path, command: &str) -> Result<String> {
    let parts = PARTS.map(|(file, heading, text)| (read(out, file), heading, text));
    let machine = parts.iter().find_map(|(lines, ..)| lines.as_ref().ok()?.first().cloned());
    let mut page = String::from("# Speed\n\n");
    page += "Figures are there to be compared within one run, not between machines: each is the median of rounds in which ours and \
             its peer took turns, and *times the peer* is the median of the rounds' ratios (above 1: ours is faster). Nothing is \
             tested against them.\n\n";
    writeln!(page, "Made by `{command}`.")?;
    if let Some(machine) = machine {
        let word = |name: &str| machine.more.get(name).map(|v| v.to_string().replace('"', "")).unwrap_or_default();
        let load = parts.iter().flat_map(|(lines, ..)| lines.iter().flatten()).map(|line| line.load);
        let (low, high) = load.fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
        writeln!(
            page,
            "Machine: {} cores, {}, {}, {} GiB of memory, {}; load average {low:.1} to {high:.1} while it ran.",
            machine.value,
            word("arch"),
            word("vectors"),
            word("memory_gib"),
            word("file_system"),
        )?;
    }
    for (lines, heading, text) in parts {
        write!(page, "\n## {heading}\n\n")?;
        match lines {
            Ok(lines) => {
                write!(page, "{text}\n\n")?;
                table(&mut page, &lines)?;
            }
            Err(error) => writeln!(page, "Not measured: {error:#}")?,
        }
    }
    Ok(page)
}

fn table(page: &mut String, lines: &[Line]) -> Result<()> {
    writeln!(page, "| what | case | value | unit | peer | peer's | times the peer | of peak | also |")?;
    writeln!(page, "|---|---|--:|---|---|--:|--:|--:|---|")?;
    for line in lines.iter().filter(|line| line.bench != "machine") {
        let range = line.range.map_or_else(String::new, |[low, high]| format!(" [{}..{}]", number(low), number(high)));
        writeln!(
            page,
            "| {} | {} | {}{range} | {} | {} | {} | {} | {} | {} |",
            line.bench,
            line.case,
            number(line.value),
            line.unit,
            line.peer.as_deref().unwrap_or_default(),
            line.peer_value.map(number).unwrap_or_default(),
            line.ratio.map(number).unwrap_or_default(),
            line.of_peak.map(|share| format!("{:.0} %", 100.0 * share)).unwrap_or_default(),
            also(line),
        )?;
    }
    Ok(())
}

/// Facts worth a place in the table.
fn also(line: &Line) -> String {
    let shown = line.more.iter().filter(|(name, _)| !matches!(name.as_str(), "rounds" | "threads" | "vectors"));
    let text = shown.map(|(name, value)| {
        let value = value.as_f64().map_or_else(|| value.to_string().replace('"', ""), number);
        format!("{} {value}", name.replace('_', " "))
    });
    text.collect::<Vec<_>>().join(", ")
}
