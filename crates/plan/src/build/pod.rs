//! What all our pods have in common, and the user's pod template over it.

use std::collections::BTreeMap;

use api::PodTemplate;
use k8s_openapi::DeepMerge;
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction,
    ObjectFieldSelector, PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
    ResourceRequirements, SeccompProfile, SecretKeySelector, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{CONFIG, TOKEN_KEY, VOLUME};

/// A pod of ours before the user's template.
pub(crate) struct PodParts {
    pub container: &'static str,
    pub image: String,
    pub command: Vec<String>,
    pub env: Vec<EnvVar>,
    pub port: u16,
    pub resources: Option<ResourceRequirements>,
    pub claim: String,
    pub config_map: Option<String>,
    pub grace_seconds: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub restart: &'static str,
    /// Seconds a fresh process may take until it answers; 0 for no start-up probe.
    pub startup_seconds: i32,
}

pub(crate) fn var(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
}

fn field(name: &str, path: &str) -> EnvVar {
    let from = ObjectFieldSelector { field_path: path.into(), ..ObjectFieldSelector::default() };
    EnvVar {
        name: name.into(),
        value: None,
        value_from: Some(EnvVarSource { field_ref: Some(from), ..EnvVarSource::default() }),
    }
}

/// A variable from the token of a Secret.
pub(crate) fn token(name: &str, secret: String) -> EnvVar {
    let from = SecretKeySelector { key: TOKEN_KEY.into(), name: secret, optional: None };
    EnvVar {
        name: name.into(),
        value: None,
        value_from: Some(EnvVarSource { secret_key_ref: Some(from), ..EnvVarSource::default() }),
    }
}

/// Rank of the pod in its Indexed Job.
pub(crate) fn node_rank() -> EnvVar {
    field("NODE_RANK", "metadata.labels['batch.kubernetes.io/job-completion-index']")
}

/// What every process is told; first, because later values refer to it as `$(NAME)`.
pub(crate) fn common_env() -> Vec<EnvVar> {
    vec![
        field("POD_NAME", "metadata.name"),
        field("POD_UID", "metadata.uid"),
        field("POD_IP", "status.podIP"),
        field("NODE_NAME", "spec.nodeName"),
        var("THRESH_VOLUME", VOLUME),
        var("THRESH_LOG", "json"),
    ]
}

/// What every process of one run is told.
pub(crate) fn run_env(uid: &str, name: &str) -> Vec<EnvVar> {
    let mut env = common_env();
    env.push(var("THRESH_RUN_UID", uid));
    env.push(var("THRESH_RUN_NAME", name));
    env.push(var("THRESH_RUN_DIR", format!("$(THRESH_VOLUME)/{}", api::volume::run_dir(uid))));
    env
}

fn probe(path: &str, port: u16, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(port.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(3),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// The pod template: ours, then the user's merged over it (lists of containers, volumes, mounts and variables by name).
pub(crate) fn template(parts: PodParts, user: Option<&PodTemplate>) -> PodTemplateSpec {
    let mut mounts = vec![VolumeMount {
        name: "volume".into(),
        mount_path: VOLUME.into(),
        // The root, and what is remounted under it reaches us: a subPath would not survive a remount of a FUSE client.
        mount_propagation: Some("HostToContainer".into()),
        ..VolumeMount::default()
    }];
    let mut volumes = vec![Volume {
        name: "volume".into(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name: parts.claim, read_only: None }),
        ..Volume::default()
    }];
    if let Some(name) = parts.config_map {
        mounts.push(VolumeMount {
            name: "config".into(),
            mount_path: CONFIG.into(),
            read_only: Some(true),
            ..VolumeMount::default()
        });
        volumes.push(Volume {
            name: "config".into(),
            config_map: Some(ConfigMapVolumeSource { name, ..ConfigMapVolumeSource::default() }),
            ..Volume::default()
        });
    }
    let container = Container {
        name: parts.container.into(),
        image: Some(parts.image),
        command: Some(parts.command),
        env: Some(parts.env),
        ports: Some(vec![ContainerPort {
            name: Some("http".into()),
            container_port: parts.port.into(),
            ..ContainerPort::default()
        }]),
        resources: parts.resources,
        volume_mounts: Some(mounts),
        startup_probe: (parts.startup_seconds > 0).then(|| probe("/livez", parts.port, 2, parts.startup_seconds / 2)),
        readiness_probe: Some(probe("/readyz", parts.port, 2, 2)),
        liveness_probe: Some(probe("/livez", parts.port, 10, 6)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
            run_as_non_root: Some(true),
            ..SecurityContext::default()
        }),
        ..Container::default()
    };
    let mut rendered = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            annotations: (!parts.annotations.is_empty()).then_some(parts.annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            containers: vec![container],
            volumes: Some(volumes),
            restart_policy: Some(parts.restart.into()),
            termination_grace_period_seconds: Some(parts.grace_seconds),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(PodSecurityContext {
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        }),
    };
    // A template that does not decode was refused by validate; here it changes nothing rather than half of the pod.
    if let Some(user) = user.and_then(|u| crate::validate::pod_template::decode(u).ok()) {
        rendered.merge_from(user);
    }
    let spec = rendered.spec.get_or_insert_default();
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        // How it ended is told with why, also after its pod and its log are gone.
        container.termination_message_policy.get_or_insert_with(|| "FallbackToLogsOnError".into());
    }
    // Ours win where a selector depends on them.
    rendered.metadata.get_or_insert_default().labels.get_or_insert_default().extend(parts.labels);
    rendered
}
