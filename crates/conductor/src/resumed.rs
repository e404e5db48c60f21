//! Beginning with another run's commit: which one, what comes with it, and what does not fit.
//!
//! Weights, optimizer and step come with the tiles. Where the data stood comes with them only if the data is the same: a cursor
//! means nothing over other rows. What the other run had drawn and not learnt is drawn again under the same numbers, so that
//! nothing is left out; its generated groups and its weight versions stay its own.

use control::wire::CommitRef;
use serde::{Deserialize, Serialize};

use crate::{Commit, Cursor, Drawn, Frozen, Position, RunConfig, State, tiles_folder};

/// A commit that a run is to begin with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Uid of the run whose commit it is.
    pub run: String,
    /// The step it says comes next; its last one if nothing is said.
    pub step: Option<u64>,
}

/// What a run begins with that does not begin at the beginning. Part of its first record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// Uid of the run whose commit it was.
    pub run: String,
    /// The commit, in a folder of this run's own.
    pub commit: CommitRef,
    /// Where the data stands.
    pub cursor: Cursor,
    /// Groups that were drawn before the cursor and are in no step before the commit's.
    pub groups: Vec<Drawn>,
}

/// A commit of another run that is to be copied, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Folder of its tiles, relative to the other run's.
    pub folder: String,
    /// What this run begins with once they are copied.
    pub resumed: Resumed,
}

/// Trainer epochs begin with 1: this one is nobody's, so that a copy can be told from what a trainer of this run wrote.
pub const COPIED_EPOCH: u64 = 0;

/// Looks for the commit `from` in `other`, the state of the run it names, for a run that is to be as `config` says.
///
/// # Errors
/// Says which field cannot be met, and what there is instead. Nothing but another manifest helps.
pub fn find(other: &State, from: &Wanted, config: &RunConfig) -> Result<Found, String> {
    let run = &from.run;
    if config.frozen.warm.is_some() {
        return Err("spec.resumeFrom: there is a warmStart too, but a commit to begin with is past it".to_owned());
    }
    let Some(began) = &other.run else {
        return Err(format!("spec.resumeFrom.run: run {run} has not begun, so it has no commit"));
    };
    let commit = pick(other, run, from.step)?;
    let (theirs, ours) = (&began.config.frozen, &config.frozen);
    if theirs.model != ours.model {
        return Err(format!(
            "spec.resumeFrom.run: run {run} trained another model ({}), this one's is {}: its commits do not fit",
            theirs.model, ours.model
        ));
    }
    let step = commit.commit.step;
    if step >= config.live.total_steps {
        return Err(format!(
            "spec.totalSteps: the commit of run {run} is at step {step}, and steps are counted on from it: with {} in all there is \
             nothing left to learn",
            config.live.total_steps
        ));
    }
    let (cursor, groups) =
        if same_source(theirs, ours) { (commit.cursor, commit.unlearnt.clone()) } else { Default::default() };
    let folder = tiles_folder(Position::of(&commit.commit), COPIED_EPOCH);
    let resumed = Resumed { run: run.clone(), commit: CommitRef { folder, ..commit.commit.clone() }, cursor, groups };
    Ok(Found { folder: commit.commit.folder.clone(), resumed })
}

fn pick<'a>(other: &'a State, run: &str, step: Option<u64>) -> Result<&'a Commit, String> {
    let usable = || other.commits.iter().filter(|commit| !commit.commit.warming);
    if let Some(commit) = usable().rfind(|commit| step.is_none_or(|step| commit.commit.step == step)) {
        return Ok(commit);
    }
    let kept: Vec<String> = usable().map(|commit| commit.commit.step.to_string()).collect();
    let what = match (kept.is_empty(), other.commits.is_empty()) {
        (false, _) => format!("it keeps those of step {}; keep more with its spec.checkpoint.keep", kept.join(", ")),
        (true, false) => "its warm start is not over, and only commits after it can be begun with".to_owned(),
        (true, true) => "it has none yet".to_owned(),
    };
    Err(match step {
        Some(step) => format!("spec.resumeFrom.step: run {run} has no commit at step {step}: {what}"),
        None => format!("spec.resumeFrom.run: run {run} has no commit to begin with: {what}"),
    })
}

/// The same rows in the same order.
fn same_source(theirs: &Frozen, ours: &Frozen) -> bool {
    let rows = |frozen: &Frozen| (frozen.data.sha256.clone(), frozen.data.rows, frozen.shuffle_seed);
    rows(theirs) == rows(ours)
}
