//! Volumes: which folder of this machine stands for each mount of a pod.
//!
//! A process here sees this machine's own file system, so a mount path in its arguments and environment is replaced by the
//! folder that stands for it. What is written *inside* files is not touched: files name things relative to a volume's root.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, Volume},
};

use crate::{
    error::{At, Error, Result},
    folder::{self, Folder},
    objects::{Objects, name},
    template::field,
};

/// Mount paths of a container and the folders that stand for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts(Vec<(String, PathBuf)>);

impl Mounts {
    /// From pairs of mount path and folder.
    #[must_use]
    pub fn new(pairs: impl IntoIterator<Item = (String, PathBuf)>) -> Self {
        let mut pairs: Vec<_> =
            pairs.into_iter().map(|(path, folder)| (path.trim_end_matches('/').to_owned(), folder)).collect();
        // The longest first: a mount inside another wins.
        pairs.sort_by(|(one, _), (two, _)| two.len().cmp(&one.len()).then(one.cmp(two)));
        Self(pairs)
    }

    /// `text` with a leading mount path replaced, also after the `=` of `--flag=/path`.
    #[must_use]
    pub fn rewrite(&self, text: &str) -> String {
        if let Some(path) = self.replace(text) {
            return path;
        }
        if text.starts_with('-')
            && let Some((flag, value)) = text.split_once('=')
            && let Some(path) = self.replace(value)
        {
            return format!("{flag}={path}");
        }
        text.to_owned()
    }

    fn replace(&self, text: &str) -> Option<String> {
        self.0.iter().find_map(|(mount, folder)| {
            let rest = text.strip_prefix(mount.as_str())?;
            (rest.is_empty() || rest.starts_with('/')).then(|| format!("{}{rest}", folder.display()))
        })
    }
}

/// Folders that stand for claims.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    given: BTreeMap<String, PathBuf>,
    seeds: Option<PathBuf>,
}

impl Claims {
    /// `given`: what the user said (`--volume CLAIM=DIR`). `seeds`: a folder whose sub-folders are copied into new claims.
    ///
    /// # Errors
    /// [`Error::NoVolume`] for a given folder that does not exist.
    pub fn new(given: BTreeMap<String, PathBuf>, seeds: Option<PathBuf>) -> Result<Self> {
        let mut absolute = BTreeMap::new();
        for (claim, path) in given {
            match path.canonicalize() {
                Ok(path) if path.is_dir() => absolute.insert(claim, path),
                _ => return Err(Error::NoVolume { claim, path }),
            };
        }
        Ok(Self { given: absolute, seeds })
    }

    /// The folder of a claim, made and seeded if it is new.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn folder(&self, claim: &str, state: &Folder) -> Result<PathBuf> {
        if let Some(folder) = self.given.get(claim) {
            return Ok(folder.clone());
        }
        let folder = state.volume(claim);
        let seeded = folder.with_file_name(format!(".{claim}.seeded"));
        if !seeded.exists() {
            fs::create_dir_all(&folder).at("create", &folder)?;
            if let Some(seed) = self.seeds.as_ref().map(|seeds| seeds.join(claim)).filter(|seed| seed.is_dir()) {
                copy_missing(&seed, &folder)?;
            }
            // Once only: a file the user has since deleted from the volume must not come back.
            folder::replace(&seeded, b"")?;
        }
        Ok(folder)
    }
}

/// Copies what `into` lacks. Files appear whole, and nothing there is overwritten.
fn copy_missing(from: &Path, into: &Path) -> Result<()> {
    for entry in fs::read_dir(from).at("read", from)? {
        let source = entry.at("read", from)?.path();
        let Some(file) = source.file_name() else { continue };
        let target = into.join(file);
        if source.is_dir() {
            fs::create_dir_all(&target).at("create", &target)?;
            copy_missing(&source, &target)?;
        } else if !target.exists() {
            let mut part = target.as_os_str().to_owned();
            part.push(".part");
            let part = PathBuf::from(part);
            fs::copy(&source, &part).at("copy", &source)?;
            fs::rename(&part, &target).at("write", &target)?;
        }
    }
    Ok(())
}

/// Makes the folders of a pod's volumes; config and secrets are written out anew.
///
/// # Errors
/// [`Error::Template`] for something missing or not possible here, [`Error::File`].
pub fn materialise(
    pod: &Pod,
    address: &str,
    state: &Folder,
    objects: &Objects,
    claims: &Claims,
) -> Result<BTreeMap<String, PathBuf>> {
    let base = state.pod(name(pod), pod.metadata.uid.as_deref().unwrap_or_default()).join("volumes");
    let mut folders = BTreeMap::new();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let folder = match (&volume.persistent_volume_claim, &volume.host_path) {
            (Some(claim), _) => claims.folder(&claim.claim_name, state)?,
            (None, Some(host)) => PathBuf::from(&host.path),
            (None, None) => {
                let folder = base.join(&volume.name);
                fs::create_dir_all(&folder).at("create", &folder)?;
                for (file, content) in files(volume, pod, address, objects)? {
                    let path = folder.join(&file.path);
                    if let Some(parent) = path.parent() {
                        fs::create_dir_all(parent).at("create", parent)?;
                    }
                    folder::replace(&path, &content)?;
                    if let Some(mode) = file.mode {
                        let mode = fs::Permissions::from_mode(mode.cast_unsigned());
                        fs::set_permissions(&path, mode).at("write", &path)?;
                    }
                }
                folder
            }
        };
        folders.insert(volume.name.clone(), folder);
    }
    Ok(folders)
}

/// The mounts of one container.
///
/// # Errors
/// [`Error::Template`] when a mount names no volume of the pod.
pub fn mounts(pod: &Pod, container: &Container, folders: &BTreeMap<String, PathBuf>) -> Result<Mounts> {
    let mut pairs = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let refused = |reason: String| Error::Template {
            pod: name(pod).into(),
            field: format!("spec.containers[{}].volumeMounts[{}]", container.name, mount.name),
            reason,
        };
        let folder = folders.get(&mount.name).ok_or_else(|| refused("no volume of the pod has this name".into()))?;
        if mount.mount_path.trim_end_matches('/').is_empty() {
            return Err(refused("mountPath / cannot be mapped on a laptop".into()));
        }
        let folder = match mount.sub_path.as_deref().filter(|path| !path.is_empty()) {
            Some(path) => {
                let folder = folder.join(path);
                if !folder.exists() {
                    fs::create_dir_all(&folder).at("create", &folder)?;
                }
                folder
            }
            None => folder.clone(),
        };
        pairs.push((mount.mount_path.clone(), folder));
    }
    Ok(Mounts::new(pairs))
}

struct Target {
    path: String,
    mode: Option<i32>,
}

type Files = Vec<(Target, Vec<u8>)>;

fn files(volume: &Volume, pod: &Pod, address: &str, objects: &Objects) -> Result<Files> {
    let missing = |what: String| Error::Template {
        pod: name(pod).into(),
        field: format!("spec.volumes[{}]", volume.name),
        reason: what,
    };
    if let Some(source) = &volume.config_map {
        return config_map(&source.name, source.items.as_deref(), source.default_mode, source.optional, objects)
            .map_err(missing);
    }
    if let Some(source) = &volume.secret {
        let named = source.secret_name.as_deref().unwrap_or_default();
        // Secrets are for this user alone, whatever the template says: no other user's pod shares this machine's pods.
        return secret(named, source.items.as_deref(), source.optional, objects).map_err(missing);
    }
    if let Some(source) = &volume.downward_api {
        return downward(source.items.as_deref(), pod, address).map_err(missing);
    }
    if let Some(source) = &volume.projected {
        let mut all = Vec::new();
        for part in source.sources.iter().flatten() {
            if let Some(source) = &part.config_map {
                all.extend(
                    config_map(&source.name, source.items.as_deref(), None, source.optional, objects)
                        .map_err(missing)?,
                );
            } else if let Some(source) = &part.secret {
                all.extend(secret(&source.name, source.items.as_deref(), source.optional, objects).map_err(missing)?);
            } else if let Some(source) = &part.downward_api {
                all.extend(downward(source.items.as_deref(), pod, address).map_err(missing)?);
            } else {
                return Err(missing("this kind of projected source does not exist on a laptop".into()));
            }
        }
        return Ok(all);
    }
    if volume.empty_dir.is_some() {
        return Ok(Vec::new());
    }
    Err(missing(
        "only persistentVolumeClaim, configMap, secret, emptyDir, downwardAPI, projected and hostPath work on a laptop"
            .into(),
    ))
}

fn config_map(
    named: &str,
    items: Option<&[KeyToPath]>,
    mode: Option<i32>,
    optional: Option<bool>,
    objects: &Objects,
) -> Result<Files, String> {
    let Some(source) = objects.config_maps.get(named) else {
        return absent("ConfigMap", named, optional);
    };
    pick(content_of(source), items, mode, optional, &format!("ConfigMap {named}"))
}

/// Everything a ConfigMap holds, as bytes.
#[must_use]
pub fn content_of(source: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = source.data.iter().flatten().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
    let bytes = source.binary_data.iter().flatten().map(|(key, ByteString(bytes))| (key.clone(), bytes.clone()));
    text.chain(bytes).collect()
}

/// Everything a Secret holds, as bytes; `stringData` wins, as on a server.
#[must_use]
pub fn secrets_of(source: &Secret) -> BTreeMap<String, Vec<u8>> {
    let bytes = source.data.iter().flatten().map(|(key, ByteString(bytes))| (key.clone(), bytes.clone()));
    let text = source.string_data.iter().flatten().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
    bytes.chain(text).collect()
}

fn secret(
    named: &str,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
    objects: &Objects,
) -> Result<Files, String> {
    let Some(source) = objects.secrets.get(named) else { return absent("Secret", named, optional) };
    pick(secrets_of(source), items, Some(0o600), optional, &format!("Secret {named}"))
}

fn absent(kind: &str, named: &str, optional: Option<bool>) -> Result<Files, String> {
    if optional == Some(true) { Ok(Vec::new()) } else { Err(format!("{kind} {named} does not exist")) }
}

fn pick(
    content: BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    mode: Option<i32>,
    optional: Option<bool>,
    source: &str,
) -> Result<Files, String> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(content.into_iter().map(|(path, bytes)| (Target { path, mode }, bytes)).collect());
    };
    let mut picked = Vec::new();
    for item in items {
        match content.get(&item.key) {
            Some(bytes) => {
                picked.push((Target { path: inside(&item.path)?, mode: item.mode.or(mode) }, bytes.clone()));
            }
            None if optional == Some(true) => {}
            None => return Err(format!("{source} has no key {}", item.key)),
        }
    }
    Ok(picked)
}

fn downward(items: Option<&[DownwardAPIVolumeFile]>, pod: &Pod, address: &str) -> Result<Files, String> {
    let mut all = Vec::new();
    for item in items.unwrap_or_default() {
        let path = item.field_ref.as_ref().map(|reference| reference.field_path.as_str()).ok_or("needs a fieldRef")?;
        let text = field(pod, path, address).ok_or_else(|| format!("{path} is not known here"))?;
        all.push((Target { path: inside(&item.path)?, mode: item.mode }, text.into_bytes()));
    }
    Ok(all)
}

fn inside(path: &str) -> Result<String, String> {
    if path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(format!("path {path} leaves its volume"));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn mount_paths_are_rewritten_where_they_lead_and_nowhere_else() {
        let mounts = Mounts::new([
            ("/volume/".to_owned(), PathBuf::from("/s/volumes/data")),
            ("/volume/cache".to_owned(), PathBuf::from("/s/cache")),
        ]);
        for (text, expected) in [
            ("/volume", "/s/volumes/data"),
            ("/volume/models/a", "/s/volumes/data/models/a"),
            ("/volume/cache/x", "/s/cache/x"),
            ("/volume/cached", "/s/volumes/data/cached"),
            ("--model-path=/volume/m", "--model-path=/s/volumes/data/m"),
            ("/volumes", "/volumes"),
            ("http://x/volume/a", "http://x/volume/a"),
            ("A=/volume/m", "A=/volume/m"),
        ] {
            assert_eq!(mounts.rewrite(text), expected);
        }
    }

    struct Fixture {
        _folder: tempfile::TempDir,
        state: Folder,
        objects: Objects,
        beside: PathBuf,
    }

    fn fixture() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let state = Folder::open(&folder.path().join("state")).unwrap();
        let objects = Objects::open(&state.objects()).unwrap();
        let beside = folder.path().join("beside");
        Fixture { _folder: folder, state, objects, beside }
    }

    fn pod(volumes: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "labels": {"role": "trainer"}},
            "spec": {"containers": [], "volumes": volumes},
        }))
        .unwrap()
    }

    #[test]
    fn a_new_claim_gets_the_files_beside_the_manifest_once_and_keeps_its_own() {
        let Fixture { _folder, state, beside, .. } = fixture();
        fs::create_dir_all(beside.join("data/model")).unwrap();
        fs::write(beside.join("data/model/config.json"), "theirs").unwrap();
        fs::write(beside.join("data/train.jsonl"), "rows").unwrap();
        fs::create_dir_all(state.volume("data")).unwrap();
        fs::write(state.volume("data").join("train.jsonl"), "mine").unwrap();
        let claims = Claims::new(BTreeMap::new(), Some(beside)).unwrap();
        let folder = claims.folder("data", &state).unwrap();
        assert_eq!(fs::read_to_string(folder.join("model/config.json")).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(folder.join("train.jsonl")).unwrap(), "mine");
        fs::remove_file(folder.join("model/config.json")).unwrap();
        claims.folder("data", &state).unwrap();
        assert!(!folder.join("model/config.json").exists());
    }

    #[test]
    fn a_given_volume_is_used_as_it_is_and_must_exist() {
        let Fixture { _folder, state, beside, .. } = fixture();
        let given = |path: &Path| BTreeMap::from([("data".to_owned(), path.to_owned())]);
        let error = Claims::new(given(&beside), None).unwrap_err().to_string();
        assert!(error.contains("no such folder"), "{error}");
        fs::create_dir_all(&beside).unwrap();
        let claims = Claims::new(given(&beside), None).unwrap();
        assert_eq!(claims.folder("data", &state).unwrap(), beside.canonicalize().unwrap());
        assert!(!state.volume("data").exists());
    }

    #[test]
    fn config_and_secrets_become_files_and_secrets_are_private() {
        let Fixture { _folder, state, mut objects, .. } = fixture();
        let config = json!({"metadata": {"name": "c"}, "data": {"a.json": "1", "b.json": "2"}});
        objects.config_maps.apply(serde_json::from_value(config).unwrap(), Timestamp::now()).unwrap();
        let token = json!({"metadata": {"name": "s"}, "data": {"token": "czNjcjN0"}});
        objects.secrets.apply(serde_json::from_value(token).unwrap(), Timestamp::now()).unwrap();
        let pod = pod(json!([
            {"name": "all", "configMap": {"name": "c"}},
            {"name": "one", "configMap": {"name": "c", "items": [{"key": "a.json", "path": "in/x.json"}]}},
            {"name": "secret", "secret": {"secretName": "s"}},
            {"name": "labels", "downwardAPI": {"items": [{"path": "role", "fieldRef": {"fieldPath": "metadata.labels['role']"}}]}},
            {"name": "gone", "configMap": {"name": "none", "optional": true}},
        ]));
        let folders = materialise(&pod, "127.77.0.1", &state, &objects, &Claims::default()).unwrap();
        let read = |volume: &str, file: &str| fs::read_to_string(folders[volume].join(file)).unwrap();
        assert_eq!((read("all", "a.json"), read("all", "b.json")), ("1".into(), "2".into()));
        assert_eq!(fs::read_dir(&folders["one"]).unwrap().count(), 1);
        assert_eq!((read("one", "in/x.json"), read("labels", "role")), ("1".into(), "trainer".into()));
        assert_eq!(read("secret", "token"), "s3cr3t");
        let mode = fs::metadata(folders["secret"].join("token")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_mounted_is_named() {
        let Fixture { _folder, state, objects, .. } = fixture();
        for (volume, expected) in [
            (json!({"name": "v", "configMap": {"name": "none"}}), "ConfigMap none does not exist"),
            (json!({"name": "v", "nfs": {"server": "s", "path": "/"}}), "only persistentVolumeClaim"),
        ] {
            let error =
                materialise(&pod(json!([volume])), "", &state, &objects, &Claims::default()).unwrap_err().to_string();
            assert!(error.starts_with("pod p: spec.volumes[v]: ") && error.contains(expected), "{error}");
        }
    }
}
