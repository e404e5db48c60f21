//! Rules of an RLJob.

use api::{InitKind, Mode, Optimizer, Problem, RLJob};
use serde_json::Value;

use super::{Checks, pod_template, relative, roles};

/// Everything that is wrong with `new`, and, given `old`, with the edit from it. Empty means the API server takes it and the
/// operator can act on it.
pub fn validate(old: Option<&RLJob>, new: &RLJob) -> Vec<Problem> {
    let mut c = Checks::new();
    c.name(new.metadata.name.as_deref().unwrap_or_default(), 40);
    create(new, &mut c);
    if let Some(old) = old {
        update(old, new, &mut c);
    }
    c.problems
}

fn create(job: &RLJob, c: &mut Checks) {
    let s = &job.spec;
    c.source(&s.model.source, &s.storage.claim_name, "spec.");
    c.rule(
        !s.storage.claim_name.is_empty(),
        "spec.storage.claimName",
        "must not be empty",
        "is empty",
        "name a PersistentVolumeClaim",
    );
    let seeded = s.model.init.seed.is_some();
    c.rule(
        (s.model.init.kind == InitKind::Random) == seeded,
        "spec.model.init",
        "seed is required with kind Random and only allowed there",
        if seeded { "has a seed, but the weights are pretrained" } else { "kind Random has no seed" },
        if seeded { "remove seed, or write kind: Random" } else { "add seed, or write kind: Pretrained" },
    );
    data(job, c);
    warm_start(job, c);
    resume_from(job, c);
    numbers(job, c);
    batch(job, c);
    trainer(job, c);
    scheduling(job, c);
    sources(job, c);
    if let Some(t) = &s.conductor.pod_template {
        c.problems.extend(pod_template::problems(t, "conductor", "spec.conductor.podTemplate"));
    }
}

fn data(job: &RLJob, c: &mut Checks) {
    let s = &job.spec;
    let rule = "must be a path relative to the volume's root";
    let fix = "write the path below the volume's root, as in data/train.jsonl";
    c.rule(
        relative(&s.data.path),
        "spec.data.path",
        rule,
        format!("`{}` is not a path below the volume's root", s.data.path),
        fix,
    );
    if let Some(p) = &s.data.eval_path {
        c.rule(relative(p), "spec.data.evalPath", rule, format!("`{p}` is not a path below the volume's root"), fix);
    }
    if let Some(w) = &s.warm_start {
        c.rule(
            relative(&w.data),
            "spec.warmStart.data",
            rule,
            format!("`{}` is not a path below the volume's root", w.data),
            fix,
        );
        c.rule(
            w.stop_at_pass_rate.is_none() || s.data.eval_path.is_some(),
            "spec.warmStart",
            "warmStart.stopAtPassRate needs data.evalPath",
            "stopAtPassRate is set, but there are no held-out prompts to measure it on",
            "set data.evalPath, or remove stopAtPassRate",
        );
    }
    c.rule(
        s.eval.is_none() || s.data.eval_path.is_some(),
        "spec.eval",
        "eval needs data.evalPath",
        "there are no held-out prompts to evaluate on",
        "set data.evalPath, or remove eval",
    );
}

fn warm_start(job: &RLJob, c: &mut Checks) {
    let Some(w) = &job.spec.warm_start else { return };
    optimizer(&w.optimizer, "spec.warmStart.optimizer", c);
    c.rule(
        w.check_every_steps <= w.max_steps,
        "spec.warmStart.checkEverySteps",
        "checkEverySteps must not exceed maxSteps",
        format!(
            "the pass rate would never be measured: every {} steps of at most {}",
            w.check_every_steps, w.max_steps
        ),
        format!("use at most {}", w.max_steps),
    );
    if let Some(rate) = w.stop_at_pass_rate {
        c.rule(
            rate > 0.0 && rate <= 1.0,
            "spec.warmStart.stopAtPassRate",
            "must be above 0 and at most 1",
            format!("{rate} is not a share"),
            "use a number such as 0.25",
        );
    }
}

fn resume_from(job: &RLJob, c: &mut Checks) {
    let Some(from) = &job.spec.resume_from else { return };
    c.rule(
        is_uid(&from.run),
        "spec.resumeFrom.run",
        "resumeFrom.run must be the uid of a run: lower-case letters, digits and '-'",
        format!("`{}` is no uid", from.run),
        "write metadata.uid of the run's RLJob, which is also the name of its folder under runs/ on the volume",
    );
    c.rule(
        job.spec.warm_start.is_none(),
        "spec.resumeFrom",
        "warmStart and resumeFrom exclude each other",
        "there is a warmStart too, but a commit to begin with is past it",
        "remove warmStart",
    );
    if let Some(step) = from.step {
        c.rule(
            step < job.spec.total_steps,
            "spec.totalSteps",
            "totalSteps must be above resumeFrom.step",
            format!("{} steps in all, of which the run begins with {step}", job.spec.total_steps),
            "steps are counted on from the commit: write the number of the last one",
        );
    }
}

fn is_uid(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn optimizer(o: &Optimizer, path: &str, c: &mut Checks) {
    let at = |f: &str| format!("{path}.{f}");
    for (field, v) in [("lr", o.lr), ("weightDecay", o.weight_decay), ("schedule.minLr", o.schedule.min_lr)] {
        let rule = "must be between 0 and 1";
        c.rule(
            (0.0..=1.0).contains(&v),
            &at(field),
            rule,
            format!("{v} is not between 0 and 1"),
            "use a value such as 1e-5",
        );
    }
    c.rule(
        o.clip_grad_norm >= 0.0,
        &at("clipGradNorm"),
        "must not be negative",
        format!("{} is negative", o.clip_grad_norm),
        "use 0 or more",
    );
    c.rule(
        o.betas.iter().all(|b| (0.0..1.0).contains(b)),
        &at("betas"),
        "each must be at least 0 and below 1",
        format!("{:?} are not decays", o.betas),
        "use values such as [0.9, 0.95]",
    );
    c.rule(
        o.eps > 0.0,
        &at("eps"),
        "must be above 0",
        format!("{} would divide by zero", o.eps),
        "use a value such as 1e-8",
    );
}

fn numbers(job: &RLJob, c: &mut Checks) {
    let s = &job.spec;
    c.rule(
        (0.001..=1000.0).contains(&s.sampling.temperature),
        "spec.sampling.temperature",
        "must be between 0.001 and 1000",
        format!("at temperature {} there is no policy to learn from", s.sampling.temperature),
        "use 1.0, or a number near it",
    );
    optimizer(&s.optimizer, "spec.optimizer", c);
    let a = &s.algorithm;
    c.rule(
        (0.0..=1.0).contains(&a.clip_low),
        "spec.algorithm.clipLow",
        "must be between 0 and 1",
        format!("the ratio cannot be clipped at 1 − {}", a.clip_low),
        "use a value such as 0.2",
    );
    c.rule(
        a.clip_high >= 0.0,
        "spec.algorithm.clipHigh",
        "must not be negative",
        format!("{} is negative", a.clip_high),
        "use a value such as 0.28",
    );
    if let Some(clip_c) = a.clip_c {
        c.rule(
            clip_c > 1.0,
            "spec.algorithm.clipC",
            "must be above 1",
            format!("{clip_c} would clip every loss"),
            "use a value such as 3.0, or remove it",
        );
    }
    if let Some(kl) = &a.kl {
        c.rule(
            kl.coef > 0.0,
            "spec.algorithm.kl.coef",
            "must be above 0 (leave kl out for none)",
            format!("{} penalises nothing", kl.coef),
            "use a number above 0, or remove kl",
        );
    }
    c.rule(
        a.entropy_coef >= 0.0,
        "spec.algorithm.entropyCoef",
        "must not be negative",
        format!("{} is negative", a.entropy_coef),
        "use 0 or more",
    );
    if let Some(t) = &a.tis {
        c.rule(
            t.low >= 0.0 && t.low <= t.high,
            "spec.algorithm.tis",
            "must satisfy 0 <= low <= high",
            format!("low {} and high {} are no interval of weights", t.low, t.high),
            "use values such as low: 0, high: 2",
        );
    }
}

fn batch(job: &RLJob, c: &mut Checks) {
    let s = &job.spec;
    let b = &s.batch;
    let (prompts, samples) = (u64::from(b.prompts_per_step), u64::from(s.sampling.samples_per_prompt));
    let rollouts = prompts * samples;
    if let Some(over) = b.over_sampling {
        c.rule(
            over >= b.prompts_per_step,
            "spec.batch.overSampling",
            "overSampling must be at least promptsPerStep",
            format!("{over} groups cannot fill a step of {prompts}"),
            format!("use at least {prompts}, or remove it"),
        );
    }
    if let Some(g) = b.global_batch_size {
        c.rule(
            g > 0 && rollouts.is_multiple_of(u64::from(g)),
            "spec.batch",
            "batch.globalBatchSize must divide batch.promptsPerStep x sampling.samplesPerPrompt",
            format!("{rollouts} rollouts ({prompts} prompts × {samples} samples) cannot be split into updates of {g}"),
            format!("use a divisor of {rollouts}"),
        );
    }
    let update = b.global_batch_size.map_or(rollouts, u64::from);
    let t = &s.trainer;
    let dp = u64::from(t.world_size() / t.parallelism.tp.max(1));
    c.rule(
        dp <= update,
        "spec.batch",
        "an update must hold at least one rollout per data-parallel rank",
        format!("{dp} data-parallel ranks cannot share {update} rollouts"),
        format!("use at least {dp} rollouts per update, or fewer devices"),
    );
    for (set, field) in [(s.max_staleness.is_some(), "maxStaleness"), (s.staleness_policy.is_some(), "stalenessPolicy")]
    {
        c.rule(
            s.mode == Mode::Async || !set,
            &format!("spec.{field}"),
            &format!("{field} is only allowed with mode Async"),
            "in Sync mode every sample is of the step's own version",
            "remove it, or write mode: Async",
        );
    }
}

fn trainer(job: &RLJob, c: &mut Checks) {
    let t = &job.spec.trainer;
    let (nodes, per_node, tp) = (t.nodes, t.accelerator.per_node, t.parallelism.tp);
    let world = u64::from(nodes) * u64::from(per_node);
    let devices = format!("{world} devices ({nodes} nodes × {per_node})");
    let devices = if nodes == 1 { devices.replace("nodes", "node") } else { devices };
    c.rule(
        tp > 0 && world.is_multiple_of(u64::from(tp)),
        "spec.trainer.parallelism",
        "nodes x accelerator.perNode must be divisible by parallelism.tp",
        format!("{devices} cannot be split by tp {tp}"),
        format!("tp must divide {world}"),
    );
    if let Some(dp) = t.parallelism.dp {
        c.rule(
            u64::from(dp) * u64::from(tp) == world,
            "spec.trainer.parallelism",
            "dp x tp must equal nodes x accelerator.perNode",
            format!("dp {dp} × tp {tp} = {} does not use {devices}", u64::from(dp) * u64::from(tp)),
            if tp > 0 && world.is_multiple_of(u64::from(tp)) {
                format!("write dp: {}, or leave dp out", world / u64::from(tp))
            } else {
                "leave dp out".to_owned()
            },
        );
    }
    let f = &t.failure_policy;
    c.rule(
        f.max_delay_seconds >= f.base_delay_seconds,
        "spec.trainer.failurePolicy.maxDelaySeconds",
        "maxDelaySeconds must be at least baseDelaySeconds",
        format!("{} is below baseDelaySeconds {}", f.max_delay_seconds, f.base_delay_seconds),
        format!("use at least {}", f.base_delay_seconds),
    );
    for (i, rule) in f.rules.iter().enumerate() {
        c.rule(
            rule.on_exit_codes.is_some() != rule.on_disruption.unwrap_or(false),
            &format!("spec.trainer.failurePolicy.rules[{i}]"),
            "exactly one of onExitCodes and onDisruption must be set",
            "does not say which failures it is for",
            "set onExitCodes, or onDisruption: true",
        );
    }
    if let Some(p) = &t.pod_template {
        c.problems.extend(pod_template::problems(p, "trainer", "spec.trainer.podTemplate"));
    }
}

fn scheduling(job: &RLJob, c: &mut Checks) {
    if let Some(manager) = &job.spec.managed_by {
        c.rule(
            [api::MANAGER, "kueue.x-k8s.io/multikueue"].contains(&manager.as_str()),
            "spec.managedBy",
            "managedBy must be thresh.dev/operator or kueue.x-k8s.io/multikueue",
            format!("nobody is called {manager}"),
            "leave it out, unless another controller manages this object",
        );
    }
    let Some(s) = &job.spec.scheduling else { return };
    if let Some(queue) = &s.queue_name {
        let plain = |ch: char| ch.is_ascii_lowercase() || ch.is_ascii_digit();
        c.rule(
            queue.starts_with(plain)
                && queue.ends_with(plain)
                && queue.chars().all(|ch| plain(ch) || ch == '-' || ch == '.'),
            "spec.scheduling.queueName",
            "queueName must be lower-case letters, digits, '-' and '.'",
            format!("`{queue}` cannot be the name of a LocalQueue"),
            "name a LocalQueue of this namespace",
        );
    }
    let classes =
        [("priorityClassName", &s.priority_class_name), ("retryPriorityClassName", &s.retry_priority_class_name)];
    for (field, class) in classes {
        c.rule(
            class.as_ref().is_none_or(|name| !name.is_empty()),
            &format!("spec.scheduling.{field}"),
            &format!("{field} must not be empty"),
            "is empty",
            "name a PriorityClass, or remove it",
        );
    }
    if let Some(topology) = &s.topology {
        c.rule(
            !topology.key.is_empty(),
            "spec.scheduling.topology.key",
            "topology.key must not be empty",
            "is empty",
            "name a label of your nodes, such as topology.kubernetes.io/rack",
        );
    }
}

fn sources(job: &RLJob, c: &mut Checks) {
    let s = &job.spec;
    let pairs = [
        ("serving", s.serving.ref_.as_ref(), s.serving.template.is_some()),
        ("rollout", s.rollout.ref_.as_ref(), s.rollout.template.is_some()),
    ];
    for (field, reference, template) in pairs {
        c.rule(
            reference.is_some() != template,
            &format!("spec.{field}"),
            "exactly one of ref and template must be set",
            if template { "has both ref and template" } else { "has neither ref nor template" },
            "keep one: ref to use an existing one, template to make one",
        );
        if let Some(r) = reference {
            c.rule(
                !r.name.is_empty(),
                &format!("spec.{field}.ref.name"),
                "must not be empty",
                "is empty",
                "name an object of this namespace",
            );
        }
    }
    if let Some(t) = &s.serving.template {
        roles::engine(&t.spec.engine, &t.spec.accelerator, "spec.serving.template.spec.", c);
    }
    if let Some(t) = &s.rollout.template {
        roles::worker(t.spec.placement, t.spec.replicas, &t.spec.worker, "spec.rollout.template.spec.", c);
    }
}

fn update(old: &RLJob, new: &RLJob, c: &mut Checks) {
    let (o, n) = (&old.spec, &new.spec);
    let new_run = "start a new RLJob, or undo the edit";
    let mut same = |holds: bool, path: &str, rule: &str| {
        if !holds {
            let why = rule.split_once(": ").map_or(String::new(), |(_, why)| format!(": {why}"));
            let what = changes(path, old, new);
            let message = format!("cannot be changed while the RLJob exists{what}{why}");
            c.rule(holds, path, rule, message, new_run);
        }
    };
    same(o.model == n.model, "spec.model", "model is immutable: a new model is a new run");
    same(o.storage == n.storage, "spec.storage", "storage is immutable");
    same(o.warm_start == n.warm_start, "spec.warmStart", "warmStart is immutable");
    same(o.resume_from == n.resume_from, "spec.resumeFrom", "resumeFrom is immutable: a run begins once");
    same(o.data == n.data, "spec.data", "data is immutable: other data is a new run");
    same(o.sampling == n.sampling, "spec.sampling", "sampling is immutable: other sampling is a new run");
    same(o.mode == n.mode, "spec.mode", "mode is immutable");
    same(o.max_staleness == n.max_staleness, "spec.maxStaleness", "maxStaleness is immutable");
    same(o.staleness_policy == n.staleness_policy, "spec.stalenessPolicy", "stalenessPolicy is immutable");
    same(o.batch == n.batch, "spec.batch", "batch is immutable: other batch sizes are a new run");
    same(o.reward == n.reward, "spec.reward", "reward is immutable: another reward is a new run");
    same(o.algorithm.name == n.algorithm.name, "spec.algorithm", "algorithm.name is immutable");
    let union = "the choice between ref and template is immutable";
    same(o.serving.ref_.is_some() == n.serving.ref_.is_some(), "spec.serving", union);
    same(o.rollout.ref_.is_some() == n.rollout.ref_.is_some(), "spec.rollout", union);
    if let (Some(a), Some(b)) = (&o.rollout.template, &n.rollout.template) {
        same(a.spec.placement == b.spec.placement, "spec.rollout.template.spec.placement", "placement is immutable");
    }
    same(o.managed_by == n.managed_by, "spec.managedBy", "managedBy is immutable");
    let queue = |s: &api::RLJobSpec| s.scheduling.as_ref().and_then(|s| s.queue_name.clone()).unwrap_or_default();
    c.rule(
        queue(o) == queue(n) || o.suspend,
        "spec.scheduling",
        "scheduling.queueName may change only while suspended",
        "the attempt is in its queue now",
        "set suspend: true first, and change the queue once it is suspended",
    );
    c.rule(
        o.trainer.accelerator.vendor == n.trainer.accelerator.vendor || o.suspend,
        "spec.trainer",
        "trainer.accelerator.vendor may change only while suspended",
        "the trainer runs on another kind of device now",
        "set suspend: true first, and change the vendor once it is suspended",
    );
}

/// ` (shuffleSeed 42 → 43)`: what differs below a field of the spec.
fn changes(path: &str, old: &RLJob, new: &RLJob) -> String {
    let pointer = path.trim_start_matches("spec").replace('.', "/");
    let field = |job: &RLJob| {
        let spec = serde_json::to_value(&job.spec).unwrap_or_default();
        spec.pointer(&pointer).cloned().unwrap_or_default()
    };
    let mut all = Vec::new();
    differences(&field(old), &field(new), "", &mut all);
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

fn differences(old: &Value, new: &Value, at: &str, all: &mut Vec<String>) {
    if let (Value::Object(a), Value::Object(b)) = (old, new) {
        let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for key in keys {
            let (old, new) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
            let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            differences(old, new, &at, all);
        }
    } else if old != new {
        let show = |value: &Value| match value {
            Value::Null => "unset".to_owned(),
            Value::String(text) => text.clone(),
            Value::Object(_) | Value::Array(_) => "other values".to_owned(),
            Value::Bool(_) | Value::Number(_) => value.to_string(),
        };
        let at = if at.is_empty() { String::new() } else { format!("{at} ") };
        all.push(match (old, new) {
            (Value::Object(_), Value::Null) => format!("{at}removed"),
            (Value::Null, Value::Object(_)) => format!("{at}added"),
            _ => format!("{at}{} → {}", show(old), show(new)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_edit_says_what_differs() {
        let difference = |old: Value, new: Value| {
            let mut all = Vec::new();
            differences(&old, &new, "", &mut all);
            all.join(", ")
        };
        let (old, new) =
            (serde_json::json!({"seed": 0, "stop": ["a"]}), serde_json::json!({"seed": 1, "topK": 4, "stop": []}));
        assert_eq!(difference(old, new), "seed 0 → 1, stop other values → other values, topK unset → 4");
        assert_eq!(difference("Sync".into(), "Async".into()), "Sync → Async");
        assert_eq!(difference(serde_json::json!({"warm": {}}), serde_json::json!({})), "warm removed");
    }
}
