//! What a run on this machine waits for: what only this machine knows goes before what the objects say.

use std::path::{Path, PathBuf};

use glance::Why;
use jiff::Timestamp;

use crate::{one_look::OneLook, view};

/// The one thing the run waits for, the worst first.
pub fn local_why(look: &OneLook) -> Why {
    let file = &look.file;
    let of_objects = look.facts().map(|facts| glance::why(&facts));
    let phase = file.job.phase.to_string();
    let yours = |what: String| Why { phase: phase.clone(), what, owner: Some("you".into()), ..Why::default() };
    if look.is_over() {
        return of_objects.unwrap_or_else(|| yours("the run is over".into()));
    }
    if let Some(failure) = file.progress.as_ref().and_then(|progress| progress.failure.clone()) {
        let may =
            vec![glance_logs(look), "mend the cause and start a new run: another metadata.name, or --state".into()];
        return Why { may, ..yours(failure) };
    }
    if !look.lives() {
        let what = refused(look).unwrap_or_else(|| "nothing runs".into());
        let since = file.updated;
        return Why { phase: "Stopped".into(), since, may: vec![command(look)], ..yours(what) };
    }
    if file.stopping {
        let what = "it saves a checkpoint and stops, as you asked".to_owned();
        let may = vec!["press Ctrl-C again: it stops at once, from its last commit".to_owned()];
        return Why { owner: Some("trainer".into()), may, ..yours(what) };
    }
    if let Some(refused) = refused(look) {
        let may = vec!["correct the file and save it: it is taken up at once".to_owned()];
        return Why { unaffected: vec!["the run goes on as it was".into()], may, ..yours(refused) };
    }
    let found = of_objects.unwrap_or_else(|| Why { owner: Some("operator".into()), ..yours("it begins".into()) });
    // Only the conductor knows what it waits for while everything is there.
    let wait = file.progress.as_ref().and_then(|progress| view::long_wait(progress, look.now));
    match wait.filter(|_| !found.waits()) {
        Some(wait) => {
            let at = |ms: u64| i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
            Why {
                phase,
                what: wait.what.clone(),
                owner: Some(wait.owner.clone()),
                since: at(wait.since_ms),
                until: wait.until_ms.and_then(at),
                may: vec![glance_logs(look)],
                ..found
            }
        }
        None => found,
    }
}

fn glance_logs(look: &OneLook) -> String {
    look.facts().map_or_else(|| "thresh logs".into(), |facts| facts.ours("logs"))
}

/// That the file is not what runs, and why.
fn refused(look: &OneLook) -> Option<String> {
    let why = look.file.refused_edit.as_ref()?.replace('\n', "\n          ");
    Some(format!("{} is not what runs: its last edit was refused\n          {why}", look.file.manifest.display()))
}

/// The command that goes on with the run, wherever it is typed.
pub fn command(look: &OneLook) -> String {
    let file = &look.file;
    let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let state = absolute(&look.state);
    // Without its status file nobody knows which it was.
    let manifest = if file.manifest.as_os_str().is_empty() { "FILE".to_owned() } else { quoted(&file.manifest) };
    let mut words = vec!["thresh run".to_owned(), manifest];
    if absolute(&PathBuf::from("runs").join(&file.name)) != state {
        words.push(format!("--state {}", quoted(&state)));
    }
    words.extend(file.volumes.iter().map(|(claim, path)| format!("--volume {claim}={}", quoted(path))));
    if file.nodes > 1 {
        words.push(format!("--nodes {}", file.nodes));
    }
    words.join(" ")
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use api::{RLJob, RLJobStatus, conditions as cond};
    use control::wire::{Progress, Wait};
    use local::status_file::StatusFile;

    use super::*;

    fn job(status: &RLJobStatus) -> RLJob {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/rljob.yaml");
        let objects = api::manifest::read(&std::fs::read_to_string(path).unwrap(), "rljob.yaml").unwrap();
        let mut jobs = objects.into_iter().filter_map(|object| match object.kind {
            api::manifest::Kind::RLJob(job) => Some(*job),
            _ => None,
        });
        RLJob { status: Some(status.clone()), ..jobs.next().unwrap() }
    }

    fn look(file: &StatusFile, holder: Option<u32>) -> OneLook {
        OneLook::sample(Some(job(&file.job)), file.clone(), holder, Timestamp::from_second(60).unwrap())
    }

    #[test]
    fn one_thing_is_named_the_worst_first() {
        let mut file = StatusFile { progress: Some(Progress::default()), ..Default::default() };
        file.job.attempt = Some(Default::default());
        let what = |file: &StatusFile, holder| local_why(&look(file, holder)).what;
        assert!(what(&file, Some(1)).starts_with("nothing: it runs"), "{}", what(&file, Some(1)));
        let wait = Wait { what: "engine e-0".into(), owner: "conductor".into(), since_ms: 0, until_ms: None };
        file.progress.as_mut().unwrap().waits.push(wait);
        let why = local_why(&look(&file, Some(1)));
        assert_eq!((why.what.as_str(), why.owner.as_deref()), ("engine e-0", Some("conductor")));
        let set = |file: &mut StatusFile, type_, truth, reason, message| {
            cond::set(&mut file.job.conditions, type_, truth, reason, message, Some(1), Timestamp::UNIX_EPOCH);
        };
        set(&mut file, cond::TRAINER_READY, cond::Truth::False, "BackingOff", "3 failures without a new commit");
        assert_eq!(what(&file, Some(1)), "3 failures without a new commit");
        file.refused_edit = Some("error: a.yaml:3: spec.x: unknown field".into());
        assert!(what(&file, Some(1)).contains("its last edit was refused"));
        file.stopping = true;
        assert!(what(&file, Some(1)).starts_with("it saves a checkpoint"));
        file.progress.as_mut().unwrap().failure = Some("the model is broken".into());
        assert_eq!(what(&file, Some(1)), "the model is broken");
        set(&mut file, cond::FAILED, cond::Truth::True, "BackoffLimitExceeded", "gave up");
        assert_eq!(what(&file, Some(1)), "too many failures: gave up");
        assert_eq!(what(&file, None), "too many failures: gave up", "also when nobody holds it");
    }

    #[test]
    fn no_engine_answers_of_a_run_that_has_ended() {
        let mut file = StatusFile::default();
        let list = &mut file.job.conditions;
        cond::set(list, cond::FAILED, cond::Truth::True, "BackoffLimitExceeded", "m", None, Timestamp::UNIX_EPOCH);
        let mut look = look(&file, Some(1));
        let spec = &look.job.as_ref().unwrap().spec;
        let mut cluster = serde_json::to_value(&spec.serving.template.as_ref().unwrap().spec).unwrap();
        cluster["model"] = serde_json::json!({"source": spec.model.source});
        cluster["storage"] = serde_json::to_value(&spec.storage).unwrap();
        let mut cluster = api::ServingCluster::new("e", serde_json::from_value(cluster).unwrap());
        cluster.status = Some(api::ServingClusterStatus { ready_replicas: 2, ..Default::default() });
        look.serving = Some(cluster);
        let engines = |look: &OneLook| local_why(look).unaffected.iter().any(|line| line.contains("engines answer"));
        assert!(engines(&look));
        look.holder = None;
        assert!(!engines(&look));
    }

    #[test]
    fn what_goes_on_with_a_run_is_the_whole_command() {
        let desk = tempfile::tempdir().unwrap();
        let state = desk.path().canonicalize().unwrap().join("my state");
        std::fs::create_dir(&state).unwrap();
        let file = StatusFile {
            name: "r".into(),
            manifest: "/m/rljob.yaml".into(),
            volumes: [("c".to_owned(), PathBuf::from("/v"))].into(),
            nodes: 2,
            ..Default::default()
        };
        let state_flag = format!("--state '{}'", state.display());
        let expected = format!("thresh run /m/rljob.yaml {state_flag} --volume c=/v --nodes 2");
        let mut stopped = look(&file, None);
        stopped.state = state;
        assert_eq!(command(&stopped), expected);
        assert_eq!(local_why(&stopped).may, [expected]);
        let plain = StatusFile { volumes: Default::default(), nodes: 1, ..file };
        let mut usual = look(&plain, None);
        usual.state = "runs/r".into();
        assert_eq!(command(&usual), "thresh run /m/rljob.yaml");
        usual.file.manifest = PathBuf::new();
        assert_eq!(command(&usual), "thresh run FILE");
    }

    #[test]
    fn a_stopped_run_waits_for_you_and_not_for_what_it_last_waited_for() {
        let mut file = StatusFile::default();
        let list = &mut file.job.conditions;
        cond::set(list, cond::TRAINER_READY, cond::Truth::False, "Suspended", "m", None, Timestamp::UNIX_EPOCH);
        let why = local_why(&look(&file, None));
        assert_eq!(
            (why.phase.as_str(), why.what.as_str(), why.owner.as_deref()),
            ("Stopped", "nothing runs", Some("you"))
        );
    }
}
