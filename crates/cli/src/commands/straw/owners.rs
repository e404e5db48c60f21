//! `thresh straw owners`

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::json;
use straw::owners::{Holder, Need, holders};

use super::look::Look;
use super::pool::{pool_of, size};
use crate::{
    args::{Output, StrawFolder},
    display::say,
};

/// Tells who still needs which packs.
pub fn owners(args: &StrawFolder) -> Result<u8> {
    let pool = pool_of(args)?;
    let look = Look::at(&pool)?;
    let others: Vec<String> = look.others().into_iter().map(str::to_owned).collect();
    let hint = look.hint();
    let Some(queue) = look.queue else {
        let fix = match hint {
            Some(_) => "restore the journal from a copy",
            None => "name the run's folder, not its packs",
        };
        bail!("{}: there is no journal here, and only a journal says who needs what\n  fix: {fix}", pool.display());
    };
    let found = holders(&queue?);
    if args.output == Output::Json {
        say(&json!({"owners": found, "otherQueues": others}).to_string());
        return Ok(0);
    }
    human(&found).iter().for_each(|line| say(line));
    if !others.is_empty() {
        say(&format!("packs are shared with {}: their journals say what they need", others.join(", ")));
    }
    hint.iter().for_each(|line| say(line));
    Ok(0)
}

/// A line for each holder; what many tasks hold is one line.
fn human(found: &[Holder]) -> Vec<String> {
    let mut lines = Vec::new();
    for (need, what) in [(Need::Task, "begun task"), (Need::Group, "finished group")] {
        let all: Vec<&Holder> = found.iter().filter(|holder| holder.need == need).collect();
        let mut packs = BTreeMap::new();
        for (pack, bytes) in all.iter().flat_map(|holder| &holder.packs) {
            *packs.entry(pack.as_str()).or_insert(0) += bytes;
        }
        if !all.is_empty() {
            let records = all.iter().map(|holder| holder.records).sum();
            lines.push(line(&api::count(all.len(), what), records, packs.values().sum(), packs.len()));
        }
    }
    for holder in found {
        let name = match holder.need {
            Need::Batch => format!("batch {}", holder.name),
            Need::Owner => format!("owner {}", holder.name),
            Need::Task | Need::Group => continue,
        };
        lines.push(line(&name, holder.records, holder.bytes, holder.packs.len()));
    }
    if lines.is_empty() {
        lines.push("nothing is needed: no task has begun, and no batch is kept".to_owned());
    }
    lines
}

fn line(name: &str, records: u64, bytes: u64, packs: usize) -> String {
    format!("{name:<24}  {}  {} in {}", api::count(records, "record"), size(bytes), api::count(packs, "pack"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_groups_are_summed_and_batches_and_owners_are_named() {
        let holder = |need, name: &str, pack: &str| Holder {
            need,
            name: name.into(),
            records: 2,
            bytes: 3 << 20,
            packs: BTreeMap::from([(pack.to_owned(), 3 << 20)]),
        };
        let found = [
            holder(Need::Task, "4", "a"),
            holder(Need::Task, "5", "a"),
            holder(Need::Batch, "7", "b"),
            holder(Need::Owner, "scorable", "c"),
        ];
        insta::assert_snapshot!(human(&found).join("\n"));
        assert_eq!(human(&[]), ["nothing is needed: no task has begun, and no batch is kept"]);
    }
}
