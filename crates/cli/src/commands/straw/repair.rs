//! `thresh straw repair`: says what it would do; does it with `--yes`.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;
use straw::RealFs;
use straw::repair::{Action, SET_ASIDE, act, plan_journal, plan_packs};

use super::journaled::queue_of;
use super::look::Look;
use super::pool::{journal_of, packs_of, pool_of, size};
use crate::{
    FAILED,
    args::{Output, StrawRepair},
    display::say,
};

/// Mends what can be mended without a copy.
pub fn repair(args: &StrawRepair) -> Result<u8> {
    let pool = pool_of(&args.folder)?;
    let fs = RealFs::new();
    let journal = journal_of(&pool);
    let mut plan: Vec<Action> = Vec::new();
    if let Some(journal) = &journal {
        let steps = plan_journal(&*fs, journal)?;
        if args.yes {
            act(&*fs, journal, &steps).with_context(|| journal.display().to_string())?;
        }
        plan.extend(steps);
    }
    // What the journal gave up is known once it can be read: perhaps only now.
    let queue = journal.as_ref().map(|journal| queue_of(journal));
    if let Some(Ok(queue)) = &queue {
        let packs = packs_of(&pool);
        let steps = plan_packs(&*fs, &packs, straw::pool::MAIN, queue.retired())?;
        if args.yes {
            act(&*fs, &packs, &steps).with_context(|| packs.display().to_string())?;
        }
        plan.extend(steps);
    }
    // Now what is left. With nothing done, what is set aside would be read no more.
    let damage = remaining(&pool, &plan, args.yes)?;
    if args.folder.output == Output::Json {
        say(&json!({"done": args.yes, "plan": plan, "remaining": damage}).to_string());
    } else {
        human(&plan, args.yes, &damage).iter().for_each(|line| say(line));
    }
    Ok(if damage.is_empty() { 0 } else { FAILED })
}

/// Damage that stays: only a copy can mend it.
fn remaining(pool: &Path, plan: &[Action], done: bool) -> Result<Vec<String>> {
    let mended = |file: &str| {
        let is = |of: &str| file.rsplit('/').next() == Some(of);
        !done && plan.iter().any(|action| matches!(action, Action::SetAside { file, .. } if is(file)))
    };
    let mut found = straw::verify(&*RealFs::new(), pool).with_context(|| pool.display().to_string())?.errors;
    // What is missing has no bytes that could be wrong.
    let missing = Look::at(pool)?.found.errors.into_iter().filter(|one| !found.contains(one)).collect::<Vec<_>>();
    found.extend(missing);
    let errors = found.iter().filter(|one| !mended(&one.file));
    Ok(errors.map(|one| format!("{} at byte {}: {}", one.file, one.offset, one.what)).collect())
}

fn human(plan: &[Action], done: bool, damage: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = plan
        .iter()
        .map(|action| {
            let (did, would) = match action {
                Action::Remove { .. } => ("removed ", "would remove "),
                Action::SetAside { .. } => ("renamed ", "would rename "),
            };
            let word = if done { did } else { would };
            match action {
                Action::Remove { file, bytes, why } => format!("{word}{file} ({}): {why}", size(*bytes)),
                Action::SetAside { file, why } => format!("{word}{file} to {file}{SET_ASIDE}: {why}"),
            }
        })
        .collect();
    lines.extend(damage.iter().map(|one| format!("cannot be mended: {one}")));
    lines.push(match (plan.is_empty(), done, damage.is_empty()) {
        (true, _, true) => {
            "nothing that can be mended; `thresh straw verify` looks at every byte that is needed".to_owned()
        }
        (false, true, true) => "done".to_owned(),
        (false, false, true) => {
            "nothing was changed\n  fix: say --yes to do it; it is safe while the run lives".to_owned()
        }
        (empty, done, false) => {
            let rest = if empty || done { "" } else { "; say --yes to do the rest" };
            format!("damage is left\n  fix: restore the files named above from a copy{rest}")
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_done_is_said_before_it_is_done_and_what_cannot_be_is_said_too() {
        let plan = [
            Action::SetAside { file: "snap-1.snap".into(), why: "its checksum is wrong".into() },
            Action::Remove { file: "w-0.pack".into(), bytes: 3 << 20, why: "the journal gave it up".into() },
        ];
        let damage = ["packs/w-1.pack at byte 64: wrong checksum".to_owned()];
        let all = [
            human(&plan, false, &[]),
            human(&plan, true, &[]),
            human(&plan, false, &damage),
            human(&[], true, &damage),
            human(&[], false, &[]),
        ];
        insta::assert_snapshot!(all.map(|lines| lines.join("\n")).join("\n\n"));
    }
}
