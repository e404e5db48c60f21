//! What can be known before anything is written or started: the manifest, the folders it names, and our binaries.

mod content;

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use api::{
    Problem, RLJob,
    manifest::{Kind, Object},
    volume::parse_pvc,
};

use crate::{
    error::{Error, Result},
    folder,
    status_file::StatusFile,
    template::Binaries,
};

/// Why nothing was started.
#[derive(Debug)]
pub enum Refused {
    /// The manifest, or what it names, is wrong; all that could be found at once.
    Manifest(Vec<Problem>),
    /// This machine or its folders are.
    Machine(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Machine(error)
    }
}

/// A manifest that was found good.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Where it was read.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
    /// Its objects.
    pub objects: Vec<Kind>,
}

impl Checked {
    /// Its RLJob.
    #[must_use]
    pub fn job(&self) -> Option<&RLJob> {
        job_in(&self.objects)
    }
}

fn job_in(objects: &[Kind]) -> Option<&RLJob> {
    objects.iter().find_map(|one| match one {
        Kind::RLJob(job) => Some(&**job),
        Kind::ServingCluster(_) | Kind::RolloutPool(_) => None,
    })
}

/// Where volumes may come from.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    /// `--volume CLAIM=DIR`.
    pub given: BTreeMap<String, PathBuf>,
    /// Folder beside the manifest.
    pub seeds: Option<PathBuf>,
    /// The state folder, which may not exist yet.
    pub state: PathBuf,
}

impl Volumes {
    /// Places where a path of a claim may be now, before the claim is made.
    fn places(&self, claim: &str, path: &str) -> Vec<PathBuf> {
        match self.given.get(claim) {
            Some(folder) => vec![folder.join(path)],
            None => [Some(self.state.join("volumes")), self.seeds.clone()]
                .into_iter()
                .flatten()
                .map(|folder| folder.join(claim).join(path))
                .collect(),
        }
    }
}

/// Reads a manifest, without touching anything else. `stored` are the objects of the state folder, if there are any.
///
/// # Errors
/// [`Refused`], with everything that could be found.
pub fn check(text: &str, path: &Path, stored: &[Kind], volumes: &Volumes) -> Result<Vec<Kind>, Vec<Problem>> {
    let file = path.display().to_string();
    let objects = plan::check(text, &file, stored)?;
    let mut problems = Vec::new();
    one_run(&objects, stored, &file, &mut problems);
    for object in &objects {
        if let Kind::RLJob(job) = &object.kind {
            let found = files(job, volumes)
                .into_iter()
                .chain(references(job, &objects))
                .chain(shards(job, volumes))
                .chain(context(job, volumes))
                .chain(nobody(job))
                .chain(claims(job, volumes));
            problems.extend(found.map(|problem| object.source.locate(problem)));
        }
    }
    problems.sort_by_key(|problem| (problem.document, problem.line));
    if problems.is_empty() { Ok(objects.into_iter().map(|object| object.kind).collect()) } else { Err(problems) }
}

/// [`check`] of a file, and of our binaries.
///
/// # Errors
/// [`Refused`].
pub fn check_file(path: &Path, volumes: &Volumes, binaries: &Binaries) -> Result<Checked, Refused> {
    let text = text_of(path)?;
    let stored = stored(&volumes.state)?;
    let objects = check(&text, path, &stored, volumes).map_err(Refused::Manifest)?;
    if let Some(job) = job_in(&objects) {
        same_volume(&job.spec.storage.claim_name, volumes)?;
    }
    for binary in ["thresh-rollout", "thresh-trainer"] {
        if let Err(reason) = binaries.find(binary) {
            let reason =
                format!("{reason}\n  fix: build it (cargo build --release --bins) or install it beside thresh");
            return Err(Refused::Machine(Error::Spawn {
                program: binary.into(),
                source: std::io::Error::new(std::io::ErrorKind::NotFound, reason),
            }));
        }
    }
    Ok(Checked { path: path.into(), text, objects })
}

/// A run goes on from its journal. On a volume without it, it would silently begin at the beginning.
fn same_volume(claim: &str, volumes: &Volumes) -> Result<()> {
    // A status that cannot be read is written anew by the run, and tells nothing here.
    let Some(status) = StatusFile::read(&volumes.state).ok().flatten() else { return Ok(()) };
    let default = volumes.state.join("volumes").join(claim);
    let now = volumes.given.get(claim).cloned().unwrap_or_else(|| default.clone());
    // Before its conductor has spoken a run need not have a folder.
    if status.progress.is_none() || status.uid.is_empty() || now.join(api::volume::run_dir(&status.uid)).is_dir() {
        return Ok(());
    }
    let is_default = status.volume.canonicalize().ok() == default.canonicalize().ok();
    let fix = if !status.run_dir.is_dir() {
        format!(
            "bring that folder back, or name the folder that runs/{} lies in now with --volume {claim}=DIR",
            status.uid
        )
    } else if is_default {
        format!("leave --volume {claim}=… out")
    } else {
        format!("say --volume {claim}={}", status.volume.display())
    };
    Err(Error::OtherVolume { run: status.name, now, was: status.run_dir, fix })
}

fn text_of(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| {
        let inside = path.join("rljob.yaml");
        let (reason, fix) = if inside.is_file() {
            ("it is a folder".to_owned(), format!("name the manifest in it: {}", inside.display()))
        } else {
            let reason = match error.kind() {
                ErrorKind::NotFound => "there is no such file".into(),
                ErrorKind::IsADirectory => "it is a folder".into(),
                ErrorKind::InvalidData => "it is not text (UTF-8)".into(),
                _ => error.to_string(),
            };
            (reason, "name a file with one RLJob; examples/quickstart/rljob.yaml is one".into())
        };
        Error::NoManifest { path: path.into(), reason, fix }
    })
}

/// Objects of our kinds in a state folder, read without holding it.
///
/// # Errors
/// [`Error::Damaged`].
pub fn stored(state: &Path) -> Result<Vec<Kind>> {
    let jobs = stored_of::<RLJob>(state)?.into_iter().map(|one| Kind::RLJob(Box::new(one)));
    let clusters = stored_of(state)?.into_iter().map(|one| Kind::ServingCluster(Box::new(one)));
    let pools = stored_of(state)?.into_iter().map(|one| Kind::RolloutPool(Box::new(one)));
    Ok(jobs.chain(clusters).chain(pools).collect())
}

/// Objects of one kind in a state folder, read without holding it.
///
/// # Errors
/// [`Error::Damaged`].
pub fn stored_of<K: crate::objects::Object>(state: &Path) -> Result<Vec<K>> {
    let folder = state.join("objects").join(K::plural(&()).as_ref());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "json") {
            found.extend(folder::read_json::<K>(&entry.path())?);
        }
    }
    Ok(found)
}

/// The name of the run in a manifest, before anything else is looked at; to find its state folder.
///
/// # Errors
/// [`Refused`].
pub fn run_name(path: &Path) -> Result<String, Refused> {
    let text = text_of(path)?;
    let file = path.display().to_string();
    let (objects, problems) = api::manifest::parse(&text, &file);
    let kinds: Vec<Kind> = objects.into_iter().map(|object| object.kind).collect();
    match job_in(&kinds)
        .and_then(|job| job.metadata.name.clone())
        .filter(|name| !name.is_empty() && !name.contains('/'))
    {
        Some(name) => Ok(name),
        // Whatever is wrong was found by the reader, or else there is no RLJob at all.
        None if problems.is_empty() => Err(Refused::Manifest(vec![no_job(&file)])),
        None => Err(Refused::Manifest(problems)),
    }
}

fn no_job(file: &str) -> Problem {
    Problem {
        file: Some(file.to_owned()),
        ..Problem::new("", "the file holds no RLJob", "one run", "`thresh run` needs exactly one RLJob in the file")
    }
}

fn one_run(objects: &[Object], stored: &[Kind], file: &str, problems: &mut Vec<Problem>) {
    let mut jobs = objects.iter().filter_map(|object| match &object.kind {
        Kind::RLJob(job) => Some((object, job)),
        Kind::ServingCluster(_) | Kind::RolloutPool(_) => None,
    });
    let Some((object, job)) = jobs.next() else {
        problems.push(no_job(file));
        return;
    };
    for (second, _) in jobs {
        problems.push(second.source.locate(Problem::new(
            "metadata.name",
            "a second RLJob in one file",
            "one run",
            "a laptop runs one RLJob at a time: give each a file and a state folder of its own",
        )));
    }
    if let Some(before) = job_in(stored).and_then(|job| job.metadata.name.as_deref())
        && job.metadata.name.as_deref() != Some(before)
    {
        problems.push(object.source.locate(Problem::new(
            "metadata.name",
            format!("the state folder holds the run `{before}`"),
            "metadata.name is immutable",
            "keep the name, or give this run another folder with --state",
        )));
    }
}

/// Files that a run needs from its first second, so that their absence is an error of the manifest and not of the run.
fn files(job: &RLJob, volumes: &Volumes) -> Vec<Problem> {
    let claim = &job.spec.storage.claim_name;
    let mut wanted = vec![("spec.data.path", job.spec.data.path.clone())];
    wanted.extend(job.spec.data.eval_path.clone().map(|path| ("spec.data.evalPath", path)));
    wanted.extend(job.spec.warm_start.as_ref().map(|warm| ("spec.warmStart.data", warm.data.clone())));
    if let Some((_, path)) = parse_pvc(&job.spec.model.source) {
        wanted.push(("spec.model.source", format!("{path}/config.json")));
        wanted.push(("spec.model.source", format!("{path}/tokenizer.json")));
    }
    wanted
        .into_iter()
        .filter_map(|(field, path)| {
            let places = volumes.places(claim, &path);
            if let Some(file) = places.iter().find(|place| place.is_file()) {
                return content::problem(job, field, file);
            }
            let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            Some(Problem::new(
                field,
                format!("no file {path} on claim {claim} (looked for {})", looked.join(" and ")),
                "exists",
                format!("put it there, or say where the claim is with --volume {claim}=DIR"),
            ))
        })
        .collect()
}

/// Tensor parallelism that the model cannot be cut by. Found here it is a refused manifest; found by the trainer it would be
/// the end of the run.
fn shards(job: &RLJob, volumes: &Volumes) -> Vec<Problem> {
    let tp = u64::from(job.spec.trainer.parallelism.tp);
    let Some(config) = model_config(job, volumes) else { return Vec::new() };
    let size = |name: &str| config.get(name).and_then(serde_json::Value::as_u64);
    let heads = size("num_key_value_heads").or_else(|| size("num_attention_heads"));
    [(heads, "key-value heads"), (size("intermediate_size"), "columns of the feed-forward layers")]
        .into_iter()
        .filter_map(|(size, what)| Some((size.filter(|size| tp > 0 && !size.is_multiple_of(tp))?, what)))
        .map(|(size, what)| {
            Problem::new(
                "spec.trainer.parallelism",
                format!("tp {tp} cannot cut the model's {size} {what}"),
                "parallelism.tp must divide the model",
                format!("tp must divide {size}"),
            )
        })
        .collect()
}

/// Engines or workers that nobody starts: here nobody else can.
fn nobody(job: &RLJob) -> Vec<Problem> {
    let none = |field: &str, what: &str| {
        let fix = "write at least 1; to pause a run, use spec.suspend";
        Problem::new(field, format!("a run without {what} generates nothing"), "at least one", fix)
    };
    let engines = job.spec.serving.template.as_ref().map(|template| template.spec.replicas);
    let workers = job.spec.rollout.template.as_ref().and_then(|template| template.spec.replicas);
    let mut problems = Vec::new();
    if engines == Some(0) {
        problems.push(none("spec.serving.template.spec.replicas", "engines"));
    }
    if workers == Some(0) {
        problems.push(none("spec.rollout.template.spec.replicas", "workers"));
    }
    problems
}

/// Volumes that were given for claims the run does not have: probably misspelt.
fn claims(job: &RLJob, volumes: &Volumes) -> Vec<Problem> {
    let claim = job.spec.storage.claim_name.as_str();
    let strangers = volumes.given.keys().filter(|given| *given != claim);
    strangers
        .map(|given| {
            Problem::new(
                "spec.storage.claimName",
                format!("--volume names the claim {given}, and this run has only {claim}"),
                "a claim of the run",
                format!("write --volume {claim}=DIR, or leave it out"),
            )
        })
        .collect()
}

/// Answers that no context of the model can hold: its engines would refuse every prompt.
fn context(job: &RLJob, volumes: &Volumes) -> Option<Problem> {
    let positions = model_config(job, volumes)?.get("max_position_embeddings")?.as_u64()?;
    let wanted = u64::from(job.spec.sampling.max_new_tokens);
    (wanted >= positions).then(|| {
        Problem::new(
            "spec.sampling.maxNewTokens",
            format!("{wanted} new tokens leave no room for a prompt in the model's {positions} positions"),
            "prompt and answer fit the model's context",
            format!("write at most {positions} less the longest prompt"),
        )
    })
}

/// The model's config.json. One that cannot be read is the trainer's to judge: it knows what it needs.
fn model_config(job: &RLJob, volumes: &Volumes) -> Option<serde_json::Value> {
    let (claim, path) = parse_pvc(&job.spec.model.source)?;
    let places = volumes.places(claim, &format!("{path}/config.json"));
    let text = places.iter().find_map(|place| fs::read_to_string(place).ok())?;
    serde_json::from_str(&text).ok()
}

/// On a cluster a missing ServingCluster is waited for; here nobody else can bring it.
fn references(job: &RLJob, objects: &[Object]) -> Vec<Problem> {
    let there = |kind: &str, name: &str| {
        objects.iter().any(|object| object.kind.name() == kind && object.kind.object_name() == name)
    };
    let mut problems = Vec::new();
    let mut check = |field: &str, kind: &str, name: &str| {
        if !there(kind, name) {
            problems.push(Problem::new(
                field,
                format!("{kind} `{name}` is not in this file"),
                "exists",
                format!("add the {kind} to the file, or use a template"),
            ));
        }
    };
    if job.spec.serving.template.is_none() {
        check("spec.serving.ref", "ServingCluster", &job.serving_name());
    }
    if job.spec.rollout.template.is_none() {
        check("spec.rollout.ref", "RolloutPool", &job.rollout_name());
    }
    problems
}

#[cfg(test)]
mod tests {
    use control::wire::Progress;

    use super::*;

    #[test]
    fn a_run_does_not_begin_anew_on_a_volume_that_does_not_hold_it() {
        let desk = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = desk.path().canonicalize().unwrap().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let (state, mine, other) = (folder("state"), folder("mine"), folder("other"));
        let on = |given: Option<&PathBuf>| {
            let given = given.map(|path| ("data".to_owned(), path.clone())).into_iter().collect();
            same_volume("data", &Volumes { given, seeds: None, state: state.clone() })
                .map_err(|error| error.to_string())
        };
        on(None).unwrap();
        let run_dir = mine.join("runs/u");
        let mut status =
            StatusFile { name: "r".into(), uid: "u".into(), run_dir, volume: mine.clone(), ..Default::default() };
        status.write(&state).unwrap();
        on(Some(&other)).unwrap();
        status.progress = Some(Progress::default());
        status.write(&state).unwrap();
        let gone = on(Some(&mine)).unwrap_err();
        assert!(gone.contains("bring that folder back"), "{gone}");
        folder("mine/runs/u");
        on(Some(&mine)).unwrap();
        let forgotten = on(None).unwrap_err();
        let fix = format!("\n  fix: say --volume data={}, or start a new run", mine.display());
        assert!(forgotten.contains(&fix) && forgotten.contains("the run r is not on"), "{forgotten}");
        folder("other/runs/u");
        on(Some(&other)).unwrap();
        status.volume = folder("state/volumes/data");
        status.run_dir = folder("state/volumes/data/runs/u");
        status.write(&state).unwrap();
        on(None).unwrap();
        fs::remove_dir_all(other.join("runs")).unwrap();
        let given = on(Some(&other)).unwrap_err();
        assert!(given.contains("fix: leave --volume data=… out"), "{given}");
    }
}
