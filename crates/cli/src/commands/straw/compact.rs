//! `thresh straw compact`: says what it would move; moves it with `--yes`.

use std::path::Path;

use anyhow::{Context, Result, bail};
use control::{
    client::ConductorClient,
    names::Names,
    wire::{CompactReply, CompactRequest},
};
use local::folder::Folder;
use serde_json::json;
use straw::compact::{Sparse, copy, sparse};
use straw::queue::Op;
use straw::{Inspection, Journal, PackInfo, RealFs, Store};

use super::journaled::journaled;
use super::look::Look;
use super::pool::{journal_of, packs_of, pool_of, size};
use crate::{
    args::{Output, StrawCompact},
    display::say,
    one_look::{OneLook, call},
};

/// Records of one transaction.
const MOVES_PER_TXN: usize = 4096;

/// Moves what is needed out of packs that are mostly dead.
pub fn compact(args: &StrawCompact) -> Result<u8> {
    if args.yes
        && let Some(reply) = asked(args)?
    {
        let CompactReply { packs, records, live_bytes, bytes, .. } = reply;
        say(&match args.folder.output {
            Output::Json => {
                json!({"asked": true, "packs": packs, "records": records, "liveBytes": live_bytes, "bytes": bytes})
                    .to_string()
            }
            Output::Human => told(&reply),
        });
        return Ok(0);
    }
    let pool = pool_of(&args.folder)?;
    let Some(journal) = journal_of(&pool) else {
        bail!(
            "{}: no journal tells what is needed\n  fix: name the folder with `packs` and `journal` in it",
            pool.display()
        )
    };
    let (plan, freed) = if args.yes {
        act(&pool, &journal, args.live_percent)?
    } else {
        let look = whole(&pool)?;
        let queue = look.known().context("the journal was read")?;
        let packs = sealed(&look.found);
        let unneeded = packs.iter().filter(|pack| !queue.is_live(&pack.name)).map(|pack| pack.bytes).sum();
        (sparse(&packs, queue, args.live_percent, stays), unneeded)
    };
    if args.folder.output == Output::Json {
        let one =
            |s: &Sparse| json!({"pack": s.pack, "bytes": s.bytes, "liveBytes": s.live_bytes, "records": s.live.len()});
        let plan: Vec<_> = plan.iter().map(one).collect();
        say(&json!({"done": args.yes, "plan": plan, "freedBytes": if args.yes { freed } else { 0 }}).to_string());
        return Ok(0);
    }
    human(&plan, args.yes, freed).iter().for_each(|line| say(line));
    Ok(0)
}

/// Asks the conductor of a run that lives; nothing when there is none to ask.
fn asked(args: &StrawCompact) -> Result<Option<CompactReply>> {
    let request = CompactRequest { live_percent: args.live_percent };
    let ask = async |client: ConductorClient| client.compact(&request).await;
    let answer = match &args.conductor {
        Some(url) => {
            let token = std::env::var("THRESH_TOKEN").unwrap_or_default();
            Some(call(Names::default(), url, &token, ask)?)
        }
        None if Folder::holder(&args.folder.folder).is_some() => {
            let answer = OneLook::at(args.folder.folder.clone())?.call(ask);
            // Its journal is not ours to claim.
            Some(answer.with_context(|| {
                format!(
                    "{0}: the run lives, and has no conductor to ask at this moment\n  fix: try again; `thresh why {0}` says what it waits for",
                    args.folder.folder.display()
                )
            })?)
        }
        None => None,
    };
    match answer {
        None => Ok(None),
        Some(Ok(reply)) => Ok(Some(reply)),
        Some(Err(error)) => match &args.conductor {
            Some(_) => bail!(
                "--conductor: {error}\n  \
                 fix: name http://IP:7070 with the IP of the pod NAME-conductor-0, and its token in THRESH_TOKEN"
            ),
            None => bail!(
                "the run lives, and its conductor was asked: {error}\n  fix: try again; `thresh why {}` says what it waits for",
                args.folder.folder.display()
            ),
        },
    }
}

fn told(reply: &CompactReply) -> String {
    if reply.packs == 0 {
        return "no pack is mostly dead".to_owned();
    }
    let (packs, records) = (api::count(reply.packs, "pack"), api::count(reply.records, "record"));
    format!(
        "the conductor moves {records} ({}) out of {packs} ({}); the files go once nobody can hold an old reference",
        size(reply.live_bytes),
        size(reply.bytes)
    )
}

/// An archive's index is a record of its own, with references that no queue translates.
fn stays(owner: &str) -> bool {
    straw::Archive::is_owner(owner)
}

/// A store whose journal can be read and whose packs are there: by a journal that is gone nothing would be needed.
fn whole(pool: &Path) -> Result<Look> {
    let look = Look::at(pool)?;
    if let Some(one) = look.found.errors.first() {
        bail!(
            "{}: {}: {}: nothing is moved, nor given back, in a store that is not sound\n  \
             fix: `thresh straw verify` names all that is damaged or missing; restore it from a copy",
            pool.display(),
            one.file,
            one.what
        )
    }
    match look.queue {
        Some(Err(error)) => Err(error),
        _ => Ok(look),
    }
}

/// The packs as whoever only looks may see them, without asking for a lock: as they are once the run has stopped.
fn sealed(found: &Inspection) -> Vec<PackInfo> {
    let info = |pack: &straw::PackReport| PackInfo {
        name: pack.name.clone(),
        owner: pack.owner.clone(),
        bytes: pack.bytes,
        sealed: pack.sealed,
        abandoned: !pack.sealed,
    };
    found.packs.iter().map(info).collect()
}

/// Claims the journal, and moves. What is interrupted is finished by the next call, or removed by the run's own collector.
fn act(pool: &Path, journal: &Path, live_percent: u64) -> Result<(Vec<Sparse>, u64)> {
    let name = || journal.display().to_string();
    // What is there is understood before anyone is fenced.
    whole(pool)?;
    let store = Store::open(RealFs::new(), packs_of(pool))?;
    if let Some(pack) = store.packs()?.into_iter().find(|pack| !pack.sealed && !pack.abandoned) {
        bail!(
            "{} is writing to pack {}: the run lives, and its conductor would be ended\n  \
             fix: name its state folder, or say --conductor URL: then it is asked; or stop the run, or suspend it, and try again",
            pack.owner,
            pack.name
        )
    }
    let member = store.register(straw::pool::MAIN)?;
    let (journal, found) = Journal::claim(RealFs::new(), journal, "thresh-straw-compact").with_context(name)?;
    let mut owned = journaled(found.snapshot.as_deref(), &found.txns).with_context(name)?;
    let plan = sparse(&store.packs()?, &owned.queue, live_percent, stays);
    let writer = store.writer("compact")?;
    for pack in &plan {
        let moves = copy(&store, &writer, &pack.pack, &pack.live).with_context(|| pack.pack.clone())?;
        for moves in moves.chunks(MOVES_PER_TXN) {
            let op = owned.queue.move_records(moves)?;
            journal.append(&[owned.record(&op)?]).with_context(name)?;
            owned.queue.apply(&op)?;
        }
    }
    writer.seal();
    // Nobody holds a lease: the claim voided them all. What nothing needed before goes, too.
    let done = store.packs()?.into_iter().filter(|pack| pack.sealed || pack.abandoned).map(|pack| pack.name);
    let empty: Vec<String> =
        done.filter(|pack| !owned.queue.is_live(pack) && !owned.queue.retired().contains(pack)).collect();
    if !empty.is_empty() {
        let op: Op = owned.queue.retire(&empty)?;
        journal.append(&[owned.record(&op)?]).with_context(name)?;
        owned.queue.apply(&op)?;
    }
    let freed = member.remove(owned.queue.retired())?;
    Ok((plan, freed))
}

/// `freed`: bytes of the files that were removed, or if nothing is done, of packs of which nothing at all is needed.
fn human(plan: &[Sparse], done: bool, freed: u64) -> Vec<String> {
    let word = if done { "moved" } else { "would move" };
    let mut lines: Vec<String> = plan
        .iter()
        .map(|s| {
            let (records, live) = (api::count(s.live.len() as u64, "record"), size(s.live_bytes));
            format!("{word} {records} ({live}) out of {} ({})", s.pack, size(s.bytes))
        })
        .collect();
    let gain: u64 = plan.iter().map(|s| s.bytes.saturating_sub(s.live_bytes)).sum();
    lines.push(match (plan.is_empty(), done) {
        (true, true) if freed > 0 => {
            format!("no pack is mostly dead; files of {} that nothing needs were removed", size(freed))
        }
        (true, true) => "no pack is mostly dead".to_owned(),
        (true, false) if freed == 0 => "no pack is mostly dead".to_owned(),
        (false, true) if freed == 0 => {
            "done; the files go once the other queues of the pool have given them up, too".to_owned()
        }
        (false, true) => format!("done; files of {} were removed", size(freed)),
        (_, false) => format!(
            "nothing was changed; {} would come free{}\n  \
             fix: say --yes: the conductor of a run that lives is asked, and the journal of one that has stopped is claimed",
            size(gain + freed),
            if freed > 0 { format!(", {} of it in packs that nothing needs", size(freed)) } else { String::new() }
        ),
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_moved_is_said_before_it_is_moved() {
        let live = straw::Ref { pack: "w-0".into(), offset: 0, len: 100, head: 10, crc: 0, ..straw::Ref::default() };
        let plan = [Sparse { pack: "w-0".into(), bytes: 3 << 20, live_bytes: 100, live: vec![live] }];
        let all = [human(&plan, false, 0), human(&plan, true, 3 << 20), human(&plan, true, 0), human(&[], false, 0)];
        let all = all.map(|lines| lines.join("\n"));
        assert!(
            all[0].starts_with("would move 1 record (100 B) out of w-0 (3.0 MiB)\nnothing was changed; 3.0 MiB"),
            "{all:?}"
        );
        assert_eq!(all[1], "moved 1 record (100 B) out of w-0 (3.0 MiB)\ndone; files of 3.0 MiB were removed");
        assert!(all[2].ends_with("other queues of the pool have given them up, too"));
        assert_eq!(all[3], "no pack is mostly dead");
        let unneeded = human(&[], false, 2 << 20).join("\n");
        assert!(
            unneeded.starts_with(
                "nothing was changed; 2.0 MiB would come free, 2.0 MiB of it in packs that nothing needs\n"
            ),
            "what --yes removes is said without it, too: {unneeded}"
        );
        let reply = CompactReply { packs: 2, records: 3, live_bytes: 100, bytes: 3 << 20, ..CompactReply::default() };
        assert!(told(&reply).starts_with("the conductor moves 3 records (100 B) out of 2 packs (3.0 MiB)"));
        assert_eq!(told(&CompactReply::default()), all[3]);
    }
}
