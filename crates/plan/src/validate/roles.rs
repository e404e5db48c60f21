//! Rules of ServingClusters, RolloutPools, and the templates of both.

use api::{
    Accelerator, Engine, EngineKind, NATIVE_ENGINE_FLAGS, OPERATOR_ENGINE_FLAGS, Placement, Problem, RolloutPool,
    ServingCluster, Worker,
};

use super::{Checks, pod_template};

pub(super) fn engine(e: &Engine, accelerator: &Accelerator, spec: &str, c: &mut Checks) {
    if let Some(t) = &e.pod_template {
        c.problems.extend(pod_template::problems(t, "engine", &format!("{spec}engine.podTemplate")));
    }
    // Two engines in one pod would be two servers behind one name.
    c.rule(
        accelerator.per_node == e.tp,
        &format!("{spec}accelerator.perNode"),
        "an engine uses all devices of its pod",
        format!("{} devices per pod, but a model copy is split over tp {}", accelerator.per_node, e.tp),
        format!("write perNode: {}", e.tp),
    );
    for (i, arg) in e.args.iter().enumerate() {
        let flag = arg.split('=').next().unwrap_or_default();
        c.rule(
            !OPERATOR_ENGINE_FLAGS.contains(&flag),
            &format!("{spec}engine.args[{i}]"),
            "arguments the operator sets are not allowed",
            format!("{flag} is set by the operator"),
            "remove it, and use the field of the spec",
        );
        // Not for the schema to know: the operator and its own engine are of one version.
        if e.kind == EngineKind::Native
            && flag.starts_with("--")
            && !OPERATOR_ENGINE_FLAGS.contains(&flag)
            && !NATIVE_ENGINE_FLAGS.contains(&flag)
        {
            let fix = match api::manifest::nearest(flag, NATIVE_ENGINE_FLAGS) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("the native engine has {}", NATIVE_ENGINE_FLAGS.join(", ")),
            };
            let path = format!("{spec}engine.args[{i}]");
            c.problems.push(Problem::new(path, format!("the native engine has no {flag}"), "a known flag", fix));
        } else if e.kind == EngineKind::Native
            && NATIVE_ENGINE_FLAGS.contains(&flag)
            && !FLAGS_WITHOUT_NUMBER.contains(&flag)
            && let Some((_, value)) = arg.split_once('=')
            && value.parse::<u64>().is_err()
        {
            let path = format!("{spec}engine.args[{i}]");
            let what = format!("{flag} takes a whole number, not `{value}`");
            c.problems.push(Problem::new(path, what, "a number", format!("write a number, or remove {flag}")));
        }
    }
}

/// Native flags that take a text or nothing.
const FLAGS_WITHOUT_NUMBER: [&str; 3] = ["--weight-version", "--disable-radix-cache", "--incremental-streaming-output"];

pub(super) fn worker(placement: Placement, replicas: Option<u32>, w: &Worker, spec: &str, c: &mut Checks) {
    c.rule(
        placement == Placement::Replicas || replicas.is_none(),
        &format!("{spec}replicas"),
        "replicas is only allowed with placement Replicas",
        "there is one worker per node",
        "remove it, or write placement: Replicas",
    );
    if let Some(t) = &w.pod_template {
        c.problems.extend(pod_template::problems(t, "worker", &format!("{spec}worker.podTemplate")));
    }
}

/// Everything that is wrong with a ServingCluster, and with the edit from `old`.
pub fn validate_serving(old: Option<&ServingCluster>, new: &ServingCluster) -> Vec<Problem> {
    let mut c = Checks::new();
    let s = &new.spec;
    c.name(new.metadata.name.as_deref().unwrap_or_default(), 48);
    c.source(&s.model.source, &s.storage.claim_name, "spec.");
    c.rule(
        !s.storage.claim_name.is_empty(),
        "spec.storage.claimName",
        "must not be empty",
        "is empty",
        "name a PersistentVolumeClaim",
    );
    engine(&s.engine, &s.accelerator, "spec.", &mut c);
    if let Some(old) = old {
        let fix = "make another ServingCluster, or undo the edit";
        c.rule(old.spec.storage == s.storage, "spec.storage", "storage is immutable", "cannot be changed", fix);
        c.rule(
            old.spec.accelerator.vendor == s.accelerator.vendor,
            "spec.accelerator",
            "accelerator.vendor is immutable",
            "vendor cannot be changed",
            fix,
        );
        let writer = old.status.as_ref().and_then(|s| s.weights.writer.as_ref());
        c.rule(
            writer.is_none() || old.spec.model == s.model,
            "spec.model",
            "model may not change while an RLJob holds the writer's role",
            format!("RLJob {} publishes its weights to it", writer.map(|w| w.rljob.as_str()).unwrap_or_default()),
            fix,
        );
    }
    c.problems
}

/// Everything that is wrong with a RolloutPool, and with the edit from `old`.
pub fn validate_pool(old: Option<&RolloutPool>, new: &RolloutPool) -> Vec<Problem> {
    let mut c = Checks::new();
    let s = &new.spec;
    c.name(new.metadata.name.as_deref().unwrap_or_default(), 48);
    c.rule(
        !s.storage.claim_name.is_empty(),
        "spec.storage.claimName",
        "must not be empty",
        "is empty",
        "name a PersistentVolumeClaim",
    );
    worker(s.placement, s.replicas, &s.worker, "spec.", &mut c);
    if let Some(old) = old {
        let fix = "make another RolloutPool, or undo the edit";
        c.rule(old.spec.storage == s.storage, "spec.storage", "storage is immutable", "cannot be changed", fix);
        c.rule(old.spec.placement == s.placement, "spec.placement", "placement is immutable", "cannot be changed", fix);
    }
    c.problems
}
