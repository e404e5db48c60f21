//! `thresh straw top`: a store as it changes, a line a look.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use jiff::Zoned;
use serde::Serialize;
use serde_json::json;

use super::pool::{pool_of, size};
use crate::{
    args::{Output, StrawTop},
    display::say,
};

/// One look.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Look {
    packs: u64,
    open: u64,
    pack_bytes: u64,
    epoch: u64,
    last: u64,
    journal_bytes: u64,
    /// Nothing where the journal tells of no queue.
    queue: Option<Depths>,
    /// Damaged places.
    damage: usize,
}

/// How much waits where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Depths {
    unfinished: usize,
    unbatched: usize,
    batches: usize,
}

/// Shows the store again and again, until it is stopped or has been shown `count` times.
pub fn top(args: &StrawTop) -> Result<u8> {
    let pool = pool_of(&args.folder)?;
    let every = Duration::from_secs_f64(args.interval);
    let mut before: Option<(Instant, Look)> = None;
    let mut shown = 0u64;
    loop {
        let began = Instant::now();
        let now = look_at(&pool)?;
        if args.folder.output == Output::Json {
            say(&json!(now).to_string());
        } else {
            let past = before.as_ref().map(|(at, look)| (began.duration_since(*at).as_secs_f64(), look));
            say(&line(&Zoned::now().strftime("%H:%M:%S").to_string(), &now, past));
        }
        shown += 1;
        if args.count.is_some_and(|count| shown >= count) {
            return Ok(0);
        }
        before = Some((began, now));
        std::thread::sleep(every.saturating_sub(began.elapsed()));
    }
}

fn look_at(pool: &Path) -> Result<Look> {
    let look = super::look::Look::at(pool)?;
    // A journal of something else, or one that is damaged, has no depths to show.
    let queue = look.known();
    let found = &look.found;
    let journal = found.journal.as_ref();
    Ok(Look {
        packs: found.packs.len() as u64,
        open: found.packs.iter().filter(|pack| !pack.sealed).count() as u64,
        pack_bytes: found.packs.iter().map(|pack| pack.bytes).sum(),
        epoch: journal.map_or(0, |journal| journal.epoch),
        last: journal.map_or(0, |journal| journal.last),
        journal_bytes: journal.map_or(0, |journal| journal.segments.iter().map(|segment| segment.bytes).sum()),
        queue: queue.map(|queue| Depths {
            unfinished: queue.tasks_len(),
            unbatched: queue.unbatched().count(),
            batches: queue.batches().count(),
        }),
        damage: found.errors.len(),
    })
}

/// `past` is an earlier look, and how many seconds ago it was.
fn line(time: &str, now: &Look, past: Option<(f64, &Look)>) -> String {
    let rate = |grown: u64, seconds: f64| grown as f64 / seconds.max(1e-3);
    let (mut bytes, mut transactions) = (String::new(), String::new());
    if let Some((seconds, past)) = past {
        bytes = format!(" (+{}/s)", size(rate(now.pack_bytes.saturating_sub(past.pack_bytes), seconds) as u64));
        transactions = format!(" (+{:.1}/s)", rate(now.last.saturating_sub(past.last), seconds));
    }
    let mut line = format!(
        "{time}  packs {} ({} open) {}{bytes}  journal {}  epoch {}  transaction {}{transactions}",
        now.packs,
        now.open,
        size(now.pack_bytes),
        size(now.journal_bytes),
        now.epoch,
        now.last,
    );
    if let Some(queue) = now.queue {
        line += &format!(
            "  tasks {} unfinished, {} finished in no batch  batches {}",
            queue.unfinished, queue.unbatched, queue.batches
        );
    }
    if now.damage > 0 {
        line += &format!("  {} damaged or missing: look with `thresh straw verify`", api::count(now.damage, "place"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_there_is_and_how_fast_it_grows() {
        let past = Look { packs: 1, pack_bytes: 1 << 20, last: 100, ..Look::default() };
        let queue = Some(Depths { unfinished: 12, unbatched: 3, batches: 2 });
        let now = Look {
            packs: 2,
            open: 1,
            pack_bytes: 5 << 20,
            epoch: 3,
            last: 150,
            journal_bytes: 40_000,
            queue,
            damage: 0,
        };
        let damaged = Look { damage: 1, queue: None, ..now.clone() };
        let lines = [
            line("14:02:11", &now, None),
            line("14:02:13", &now, Some((2.0, &past))),
            line("14:02:15", &damaged, None),
        ];
        insta::assert_snapshot!(lines.join("\n"));
    }
}
