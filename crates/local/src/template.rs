//! From a container of a pod to a program of this machine: its binary, arguments and environment.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use crate::{
    error::{Error, Result},
    mount::{self, Mounts},
    objects::{Objects, name},
    process::Program,
};

/// What a process gets from this machine's environment, unless its template says otherwise: a container has these from its
/// image. The last ones, of faults and of when space is given back, are for tests.
const FROM_HOST: [&str; 15] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "TZ",
    "TMPDIR",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "RAYON_NUM_THREADS",
    "THRESH_FAULTS",
    "THRESH_CONDUCTOR_FAULTS",
    "THRESH_GIVE_BACK_LOOK_MS",
    "THRESH_GIVE_BACK_SETTLE_MS",
    "THRESH_GIVE_BACK_GAIN_BYTES",
    "THRESH_GIVE_BACK_LIVE_PERCENT",
];

/// Name of this machine's node in pods, unless more than one is played.
pub const NODE: &str = "localhost";

/// Where the binaries named by `command[0]` lie.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// The folder of the running executable.
    ///
    /// # Errors
    /// [`Error::Spawn`] when the system does not tell it.
    pub fn beside_this_one() -> Result<Self> {
        let own = env::current_exe().map_err(|source| Error::Spawn { program: "this executable".into(), source })?;
        let folder = own.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(Self { folder })
    }

    /// Another folder (tests).
    #[must_use]
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Path of a binary: only the last part of `command` counts, as images lay their files out as they like.
    ///
    /// # Errors
    /// What is missing and where it was looked for.
    pub fn find(&self, command: &str) -> Result<PathBuf, String> {
        let file = Path::new(command).file_name().ok_or_else(|| format!("{command:?} names no program"))?;
        let path = self.folder.join(file);
        if path.is_file() {
            Ok(path)
        } else {
            Err(format!(
                "no {} beside {}; on a laptop command[0] must name one of our binaries, and images are ignored",
                file.to_string_lossy(),
                self.folder.display()
            ))
        }
    }
}

/// A pod's own facts that a template may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its address.
    pub address: &'a str,
}

/// Value of a `fieldRef`.
#[must_use]
pub fn field(pod: &Pod, path: &str, address: &str) -> Option<String> {
    let spec = pod.spec.as_ref();
    match path {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => Some(pod.metadata.namespace.clone().unwrap_or_else(|| "default".into())),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => spec?.node_name.clone(),
        "spec.serviceAccountName" => Some(spec?.service_account_name.clone().unwrap_or_else(|| "default".into())),
        "status.podIP" | "status.podIPs" | "status.hostIP" | "status.hostIPs" => Some(address.to_owned()),
        _ => {
            let (map, key) = path.strip_suffix("']")?.split_once("['")?;
            let map = match map {
                "metadata.labels" => pod.metadata.labels.as_ref(),
                "metadata.annotations" => pod.metadata.annotations.as_ref(),
                _ => return None,
            };
            Some(map.and_then(|map| map.get(key)).cloned().unwrap_or_default())
        }
    }
}

/// Environment of a container, in the kubelet's order: `envFrom`, then `env`, each seeing those before it.
///
/// # Errors
/// [`Error::Template`] for a source that is missing or unknown.
pub fn environment(
    identity: Identity<'_>,
    container: &Container,
    objects: &Objects,
    mounts: &Mounts,
) -> Result<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let (content, optional, what) = if let Some(map) = &source.config_map_ref {
            let content = objects.config_maps.get(&map.name).map(mount::content_of);
            (content, map.optional, format!("ConfigMap {}", map.name))
        } else if let Some(secret) = &source.secret_ref {
            let content = objects.secrets.get(&secret.name).map(mount::secrets_of);
            (content, secret.optional, format!("Secret {}", secret.name))
        } else {
            continue;
        };
        match content {
            Some(content) => values.extend(
                content
                    .into_iter()
                    .map(|(key, bytes)| (format!("{prefix}{key}"), String::from_utf8_lossy(&bytes).into_owned())),
            ),
            None if optional == Some(true) => {}
            None => return Err(refused(identity.pod, container, "envFrom", format!("{what} does not exist"))),
        }
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = value(identity, container, variable, objects, &values)? {
            values.insert(variable.name.clone(), value);
        }
    }
    for value in values.values_mut() {
        *value = mounts.rewrite(value);
    }
    Ok(values)
}

fn value(
    identity: Identity<'_>,
    container: &Container,
    variable: &EnvVar,
    objects: &Objects,
    before: &BTreeMap<String, String>,
) -> Result<Option<String>> {
    let Some(source) = &variable.value_from else {
        return Ok(Some(expand(variable.value.as_deref().unwrap_or_default(), before)));
    };
    let missing = |what: String| refused(identity.pod, container, &format!("env[{}]", variable.name), what);
    let (content, key, optional, what) = if let Some(reference) = &source.field_ref {
        return field(identity.pod, &reference.field_path, identity.address)
            .map(Some)
            .ok_or_else(|| missing(format!("fieldPath {} is not known here", reference.field_path)));
    } else if let Some(reference) = &source.secret_key_ref {
        let content = objects.secrets.get(&reference.name).map(mount::secrets_of);
        (content, &reference.key, reference.optional, format!("Secret {}", reference.name))
    } else if let Some(reference) = &source.config_map_key_ref {
        let content = objects.config_maps.get(&reference.name).map(mount::content_of);
        (content, &reference.key, reference.optional, format!("ConfigMap {}", reference.name))
    } else {
        return Err(missing("only fieldRef, secretKeyRef and configMapKeyRef work on a laptop".into()));
    };
    match content.as_ref().map(|content| content.get(key)) {
        Some(Some(bytes)) => Ok(Some(String::from_utf8_lossy(bytes).into_owned())),
        _ if optional == Some(true) => Ok(None),
        Some(None) => Err(missing(format!("{what} has no key {key}"))),
        None => Err(missing(format!("{what} does not exist"))),
    }
}

/// The program of a container.
///
/// # Errors
/// [`Error::Template`].
pub fn program(
    identity: Identity<'_>,
    container: &Container,
    objects: &Objects,
    mounts: &Mounts,
    binaries: &Binaries,
    node: &BTreeMap<String, String>,
    folder: &Path,
) -> Result<Program> {
    let mut env: BTreeMap<String, String> =
        FROM_HOST.iter().filter_map(|key| Some(((*key).to_owned(), env::var(key).ok()?))).collect();
    let own = environment(identity, container, objects, mounts)?;
    let command = container.command.as_deref().unwrap_or_default();
    let Some((command, rest)) = command.split_first() else {
        let reason = "is empty: on a laptop it must name one of our binaries, since images are ignored".to_owned();
        return Err(refused(identity.pod, container, "command", reason));
    };
    let path = binaries
        .find(&expand(command, &own))
        .map_err(|reason| refused(identity.pod, container, "command[0]", reason))?;
    let args =
        rest.iter().chain(container.args.iter().flatten()).map(|arg| mounts.rewrite(&expand(arg, &own))).collect();
    env.extend(own);
    env.extend(node.iter().map(|(key, value)| (key.clone(), value.clone())));
    Ok(Program { path, args, env, folder: folder.to_owned() })
}

/// A command run inside a container: a probe or a hook.
///
/// # Errors
/// [`Error::Template`].
pub fn exec(
    of: &Program,
    command: &[String],
    mounts: &Mounts,
    binaries: &Binaries,
    pod: &str,
    field: &str,
) -> Result<Program> {
    let refused = |reason: String| Error::Template { pod: pod.into(), field: field.into(), reason };
    let Some((program, args)) = command.split_first() else { return Err(refused("is empty".into())) };
    // A hook often is a shell line; the machine has a shell even though it has no image.
    let path = match program.as_str() {
        "sh" | "/bin/sh" => PathBuf::from("/bin/sh"),
        program => binaries.find(program).map_err(refused)?,
    };
    Ok(Program { path, args: args.iter().map(|arg| mounts.rewrite(arg)).collect(), ..of.clone() })
}

/// Replaces `$(NAME)` by its value; an unknown name stays as it is, `$$` is a dollar sign.
#[must_use]
pub fn expand(text: &str, values: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(escaped) = after.strip_prefix('$') {
            out.push('$');
            rest = escaped;
        } else if let Some((known, end)) =
            after.strip_prefix('(').and_then(|inner| inner.find(')').map(|end| (&inner[..end], end)))
        {
            match values.get(known) {
                Some(value) => out.push_str(value),
                None => out.push_str(&rest[at..=at + end + 2]),
            }
            rest = &after[end + 2..];
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

fn refused(pod: &Pod, container: &Container, field: &str, reason: String) -> Error {
    Error::Template { pod: name(pod).into(), field: format!("spec.containers[{}].{field}", container.name), reason }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_expand_as_the_kubelet_expands_them() {
        let values = BTreeMap::from([("IP".to_owned(), "127.77.0.1".to_owned()), ("E".to_owned(), String::new())]);
        for (text, expected) in [
            ("$(IP):7070", "127.77.0.1:7070"),
            ("a$(E)b", "ab"),
            ("$(NONE)/x", "$(NONE)/x"),
            ("$$(IP)", "$(IP)"),
            ("$IP and $( and $", "$IP and $( and $"),
            ("$(IP", "$(IP"),
            ("$$$(IP)", "$127.77.0.1"),
        ] {
            assert_eq!(expand(text, &values), expected, "{text}");
        }
    }

    fn objects(folder: &Path) -> Objects {
        let mut objects = Objects::open(folder).unwrap();
        let secret = json!({"metadata": {"name": "run"}, "data": {"token": "czNjcjN0"}});
        objects.secrets.apply(serde_json::from_value(secret).unwrap(), Timestamp::now()).unwrap();
        let config = json!({"metadata": {"name": "c"}, "data": {"LEVEL": "info"}});
        objects.config_maps.apply(serde_json::from_value(config).unwrap(), Timestamp::now()).unwrap();
        objects
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "r-t1-0-x", "namespace": "rl", "uid": "u",
                "labels": {"batch.kubernetes.io/job-completion-index": "1"}},
            "spec": {"nodeName": "localhost", "containers": []},
        }))
        .unwrap()
    }

    #[test]
    fn the_environment_comes_from_fields_secrets_and_config_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let container: Container = serde_json::from_value(json!({"name": "trainer",
            "envFrom": [{"configMapRef": {"name": "c"}, "prefix": "LOG_"}],
            "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}},
                {"name": "THRESH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "run", "key": "token"}}},
                {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": true}}},
                {"name": "LISTEN", "value": "$(POD_IP):1 $(LATER)"},
                {"name": "LATER", "value": "x"},
                {"name": "THRESH_VOLUME", "value": "/volume"},
            ]}))
        .unwrap();
        let mounts = Mounts::new([("/volume".to_owned(), PathBuf::from("/s/v"))]);
        let pod = pod();
        let identity = Identity { pod: &pod, address: "127.77.0.9" };
        let env = environment(identity, &container, &objects(folder.path()), &mounts).unwrap();
        let expected = [
            ("LATER", "x"),
            ("LISTEN", "127.77.0.9:1 $(LATER)"),
            ("LOG_LEVEL", "info"),
            ("NODE_RANK", "1"),
            ("POD_IP", "127.77.0.9"),
            ("THRESH_TOKEN", "s3cr3t"),
            ("THRESH_VOLUME", "/s/v"),
        ];
        assert_eq!(env.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn command_names_a_binary_beside_us_and_arguments_meet_the_mounts() {
        let folder = tempfile::tempdir().unwrap();
        let objects = objects(folder.path());
        std::fs::write(folder.path().join("thresh-rollout"), "").unwrap();
        let binaries = Binaries::in_folder(folder.path());
        let mounts = Mounts::new([("/volume".to_owned(), PathBuf::from("/s/v"))]);
        let pod = pod();
        let identity = Identity { pod: &pod, address: "127.77.0.9" };
        let make = |container: serde_json::Value| {
            let container = serde_json::from_value(container).unwrap();
            let node = BTreeMap::from([("THRESH_HOSTS_FILE".to_owned(), "/s/hosts".to_owned())]);
            program(identity, &container, &objects, &mounts, &binaries, &node, folder.path())
        };
        let program = make(json!({"name": "engine", "image": "ignored",
            "command": ["/usr/local/bin/thresh-rollout", "engine"],
            "args": ["--model-path", "$(THRESH_VOLUME)/m", "--listen=$(THRESH_VOLUME):x"],
            "env": [{"name": "THRESH_VOLUME", "value": "/volume"}]}))
        .unwrap();
        assert_eq!(program.path, folder.path().join("thresh-rollout"));
        assert_eq!(program.args, ["engine", "--model-path", "/s/v/m", "--listen=/s/v:x"]);
        assert_eq!(program.env["THRESH_HOSTS_FILE"], "/s/hosts");
        assert!(program.env.contains_key("PATH") && !program.env.contains_key("CARGO_MANIFEST_DIR"));
        for (container, expected) in [
            (json!({"name": "x", "command": ["sglang"]}), "spec.containers[x].command[0]: no sglang beside"),
            (json!({"name": "x"}), "spec.containers[x].command: is empty"),
            (
                json!({"name": "x", "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "run", "key": "no"}}}]}),
                "spec.containers[x].env[T]: Secret run has no key no",
            ),
        ] {
            let error = make(container).unwrap_err().to_string();
            assert!(error.starts_with("pod r-t1-0-x: ") && error.contains(expected), "{error}");
        }
    }
}
