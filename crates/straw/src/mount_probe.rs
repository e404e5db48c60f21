//! What kind of mount a folder lies on, and whether a store may trust it.
//!
//! A store needs two things of a mount: what was synced is there for good, and what one process synced another one sees when
//! it opens the file anew. Which mount breaks them is told by three sources: the kernel's list of mounts, the settings that
//! JuiceFS shows in the hidden file `.config` of its root, and a self-test with two handles. It changes nothing but a file of
//! its own, which it removes.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// A mount and what follows from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MountReport {
    /// The mount, where the kernel names one.
    pub mount: Option<Mount>,
    /// JuiceFS's settings, where they can be read.
    pub juicefs: Option<JuiceFs>,
    /// Why no store may be kept here. Empty is good.
    pub refusals: Vec<Finding>,
    /// What costs time or attention, and loses nothing.
    pub warnings: Vec<Finding>,
}

/// Something about a mount that a person should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is so, and what it means.
    pub what: String,
    /// What to do about it.
    pub fix: String,
}

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Type of the file system: `ext4`, `fuse.juicefs`, `nfs4`, ...
    pub kind: String,
    /// What is mounted.
    pub source: String,
    /// Options of the mount and of its file system.
    pub options: Vec<String>,
}

/// JuiceFS's settings, as its `.config` shows them. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(deserialize = "PascalCase"), default)]
pub struct JuiceFs {
    /// The client.
    pub version: String,
    /// Caches of the metadata.
    pub meta: JuiceFsMeta,
    /// How data goes to the objects.
    pub chunk: JuiceFsChunk,
    /// The kernel's side.
    pub fuse_opts: JuiceFsFuse,
    /// The kernel keeps a file's length and times for so long.
    pub attr_timeout: u64,
    /// ... a name of a file.
    pub entry_timeout: u64,
    /// ... a name of a folder.
    pub dir_entry_timeout: u64,
    /// ... that a name is missing.
    pub neg_entry_timeout: u64,
    /// The kernel keeps listings of folders.
    pub readdir_cache: bool,
}

/// See [`JuiceFs`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(deserialize = "PascalCase"), default)]
pub struct JuiceFsMeta {
    /// The client keeps what it knows of an open file for so long, also when it is opened anew.
    pub open_cache: u64,
    /// Nothing may be written.
    pub read_only: bool,
}

/// See [`JuiceFs`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(deserialize = "PascalCase"), default)]
pub struct JuiceFsChunk {
    /// A sync returns once data is on this host's disk, before it is in the objects.
    pub writeback: bool,
}

/// See [`JuiceFs`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all(deserialize = "PascalCase"), default)]
pub struct JuiceFsFuse {
    /// The kernel keeps writes back, too, until a sync.
    pub enable_writeback: bool,
}

impl MountReport {
    /// All refusals as one error for people; `None` when a store may be kept here.
    pub fn refusal(&self) -> Option<String> {
        let one = |finding: &Finding| format!("{}\n  fix: {}", finding.what, finding.fix);
        (!self.refusals.is_empty()).then(|| self.refusals.iter().map(one).collect::<Vec<_>>().join("\n"))
    }
}

/// Looks at the mount that `folder` lies on. Reads two files; writes nothing.
///
/// # Errors
/// When the folder is not there.
pub fn probe(folder: &Path) -> io::Result<MountReport> {
    let folder = folder.canonicalize()?;
    let mount = std::fs::read("/proc/self/mountinfo").ok().and_then(|text| mount_of(&folder, &mounts(&text)));
    let is_juicefs = mount.as_ref().is_some_and(|mount| mount.kind == "fuse.juicefs");
    let config = match &mount {
        Some(mount) if is_juicefs => {
            // A volume whose subfolder alone is mounted has it in none of our folders.
            let places = folder.ancestors().take_while(|place| place.starts_with(&mount.point));
            let read = |place: &Path| std::fs::read(place.join(".config"));
            Some(
                places
                    .map(read)
                    .reduce(|found, above| found.or(above))
                    .unwrap_or_else(|| Err(ErrorKind::NotFound.into())),
            )
        }
        _ => None,
    };
    let config = config.map(|bytes| bytes.map_err(|e| e.to_string()).and_then(|bytes| parse_config(&bytes)));
    Ok(judge(mount, config))
}

/// True when locks on files of the folder are seen by all hosts that mount it; false where that is not known. A FUSE mount whose
/// server knows no locks keeps them to one host without a word, so mounts that are known to share them are named.
pub(crate) fn locks_are_shared(folder: &Path) -> bool {
    mount_under(folder).is_some_and(|mount| shares_locks(&mount))
}

/// Why files of the folder are not to be mapped; `None` on mounts that are known to be of this host alone.
pub(crate) fn refuses_maps(folder: &Path) -> Option<String> {
    match mount_under(folder) {
        Some(mount) => refuses_maps_on(&mount),
        None => Some("it is not known what it is mounted from".to_owned()),
    }
}

fn refuses_maps_on(mount: &Mount) -> Option<String> {
    let why = || format!("{} is {}, where another host can cut a file short", mount.point.display(), mount.kind);
    (!is_of_one_host(&mount.kind)).then(why)
}

fn mount_under(folder: &Path) -> Option<Mount> {
    let folder = folder.canonicalize().ok()?;
    mount_of(&folder, &mounts(&std::fs::read("/proc/self/mountinfo").ok()?))
}

/// One host has the files, and its kernel knows all that is done to them.
fn is_of_one_host(kind: &str) -> bool {
    matches!(kind, "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" | "f2fs" | "bcachefs" | "zfs" | "tmpfs" | "overlay")
}

fn shares_locks(mount: &Mount) -> bool {
    let has = |option: &str| mount.options.iter().any(|have| have == option);
    match mount.kind.as_str() {
        kind if is_of_one_host(kind) => true,
        // The server of the volume has the locks; those of a client that is lost end with its session.
        "fuse.juicefs" | "ceph" => true,
        "nfs" | "nfs4" => has("local_lock=none"),
        "lustre" => has("flock"),
        _ => false,
    }
}

/// The settings in a `.config`.
fn parse_config(bytes: &[u8]) -> Result<JuiceFs, String> {
    serde_json::from_slice(bytes).map_err(|e| e.to_string())
}

/// All mounts that a `mountinfo` names, in its order: later ones lie on top.
fn mounts(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(mount_line).collect()
}

/// `id parent major:minor root POINT OPTIONS [tags...] - KIND SOURCE OPTIONS`
fn mount_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = PathBuf::from(OsString::from_vec(unescaped(fields.nth(4)?)));
    let text = |field: &[u8]| String::from_utf8_lossy(&unescaped(field)).into_owned();
    let own = text(fields.next()?);
    fields.find(|field| *field == b"-")?;
    let (kind, source) = (text(fields.next()?), text(fields.next()?));
    let of_kind = fields.next().map(text).unwrap_or_default();
    let mut options: Vec<String> = own.split(',').chain(of_kind.split(',')).map(str::to_owned).collect();
    options.retain(|option| !option.is_empty());
    options.sort();
    options.dedup();
    Some(Mount { point, kind, source, options })
}

/// Blanks and backslashes are written as `\040` and so on.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(decoded) if byte == b'\\' => {
                out.push(decoded);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

/// The mount that a folder (absolute, without links) lies on: the last of those with the longest point.
fn mount_of(folder: &Path, mounts: &[Mount]) -> Option<Mount> {
    let over = mounts.iter().filter(|mount| folder.starts_with(&mount.point));
    over.max_by_key(|mount| mount.point.components().count()).cloned()
}

/// What follows from a mount and, where it is JuiceFS, from its settings.
fn judge(mount: Option<Mount>, config: Option<Result<JuiceFs, String>>) -> MountReport {
    let mut report = MountReport { mount, juicefs: None, refusals: Vec::new(), warnings: Vec::new() };
    let MountReport { mount, refusals, warnings, .. } = &mut report;
    let Some(mount) = mount else { return report };
    let found = |what: String, fix: &str| Finding { what, fix: fix.to_owned() };
    let at = mount.point.display();
    let has = |option: &str| mount.options.iter().any(|have| have == option);
    match mount.kind.as_str() {
        "tmpfs" | "ramfs" => warnings.push(found(
            format!("{at} is memory ({}): nothing survives a restart of the machine", mount.kind),
            "use a disk or a shared volume for a run that is to be kept",
        )),
        "nfs" | "nfs4" if !has("lookupcache=none") && !has("lookupcache=pos") && !has("lookupcache=positive") => {
            refusals.push(found(
                format!("{at} is NFS that remembers missing names: a superseded conductor may not see its successor"),
                "mount it with lookupcache=positive",
            ));
        }
        _ => {}
    }
    match config {
        None => {}
        Some(Err(why)) => warnings.push(found(
            format!("{at} is JuiceFS, and its settings cannot be read ({why}): whether it may lose what was acknowledged is not known"),
            "make sure that it is mounted without --writeback and with --open-cache 0; as root, `thresh straw inspect` shows them",
        )),
        Some(Ok(config)) => {
            judge_juicefs(&at.to_string(), &config, refusals, warnings);
            report.juicefs = Some(config);
        }
    }
    report
}

fn judge_juicefs(at: &str, config: &JuiceFs, refusals: &mut Vec<Finding>, warnings: &mut Vec<Finding>) {
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let mut refuse = |broken: bool, what: String, fix: &str| {
        if broken {
            refusals.push(Finding { what, fix: fix.to_owned() });
        }
    };
    refuse(
        config.chunk.writeback,
        format!(
            "{at} is JuiceFS with writeback: acknowledged data can be lost with this host, and other hosts cannot read it yet"
        ),
        "mount it without --writeback",
    );
    refuse(
        config.fuse_opts.enable_writeback,
        format!(
            "{at} is JuiceFS with the kernel's write-back cache: other hosts may see a file's length before its bytes"
        ),
        "mount it without -o writeback_cache",
    );
    refuse(
        config.meta.open_cache > 0,
        format!(
            "{at} is JuiceFS with open-cache {} s: a file that was opened anew may show old bytes for so long",
            seconds(config.meta.open_cache)
        ),
        "mount it with --open-cache 0",
    );
    refuse(
        config.neg_entry_timeout > 0,
        format!(
            "{at} is JuiceFS with negative-entry-cache {} s: a superseded conductor may not see its successor for so long",
            seconds(config.neg_entry_timeout)
        ),
        "mount it with --negative-entry-cache 0",
    );
    if config.readdir_cache {
        warnings.push(Finding {
            what: format!("{at} is JuiceFS with readdir-cache: new packs are found late, and space is freed late"),
            fix: "mount it without --readdir-cache".to_owned(),
        });
    }
    let stale = config.attr_timeout.max(config.entry_timeout).max(config.dir_entry_timeout);
    if stale > 10_000_000_000 {
        warnings.push(Finding {
            what: format!(
                "{at} is JuiceFS that keeps attributes or names for {} s: other hosts' changes are seen so late",
                seconds(stale)
            ),
            fix: "mount it with --attr-cache, --entry-cache and --dir-entry-cache of a second".to_owned(),
        });
    }
}

/// What the self-test saw.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// Seconds of one write and one sync of 4 KiB.
    pub sync_s: f64,
    /// A second handle read exactly what the first one had synced: a file that grew, through a handle opened before and one
    /// opened after.
    pub fresh_handle: bool,
    /// The handle opened before saw it, too. A store does not need this.
    pub old_handle: bool,
    /// Of two exclusive creations of one name the second failed, and a name that had been missing was seen once it was there.
    pub exclusive: bool,
}

impl Seen {
    /// Why no store may be kept here.
    pub fn refusal(&self) -> Option<Finding> {
        let what = match (self.fresh_handle, self.exclusive) {
            (false, _) => "bytes that were synced are not seen by a file that is opened anew",
            (_, false) => "two processes can create the same name: nothing keeps a superseded owner from writing",
            _ => return None,
        };
        Some(Finding {
            what: what.to_owned(),
            fix: "mount the volume without client-side caches, or use another".to_owned(),
        })
    }
}

/// Writes through one handle and looks through others, in a file of its own in `folder`, which it removes. Takes three syncs.
/// Both handles are of this host: what another host sees, only its mount's settings tell.
///
/// # Errors
/// As the file system says.
pub fn self_test(folder: &Path) -> io::Result<Seen> {
    let path = folder.join(format!(".probe-{:016x}", crate::Fs::unique(&*crate::RealFs::new())));
    let seen = look_through(&path);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound && seen.is_ok() => Err(e),
        _ => seen,
    }
}

fn look_through(path: &Path) -> io::Result<Seen> {
    const HALF: usize = 4096;
    let missing = !path.try_exists()?;
    let create = || OpenOptions::new().write(true).create_new(true).open(path);
    let writer = create()?;
    let exclusive = missing && path.try_exists()? && create().is_err_and(|e| e.kind() == ErrorKind::AlreadyExists);
    let bytes: Vec<u8> = (0..2 * HALF).map(|i| (i % 251) as u8).collect();
    let (first, second) = bytes.split_at(HALF);
    writer.write_all_at(first, 0)?;
    writer.sync_data()?;
    let before = File::open(path)?;
    before.read_exact_at(&mut [0; HALF], 0)?;
    let since = Instant::now();
    writer.write_all_at(second, HALF as u64)?;
    writer.sync_data()?;
    let sync_s = since.elapsed().as_secs_f64();
    let reads = |file: &File| {
        let mut read = vec![0; 2 * HALF];
        file.read_exact_at(&mut read, 0).is_ok() && read == bytes
    };
    Ok(Seen { sync_s, fresh_handle: reads(&File::open(path)?), old_handle: reads(&before), exclusive })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n\
        50 22 0:39 / /data/my\\040volume rw,nosuid shared:8 master:1 - fuse.juicefs JuiceFS:v rw,user_id=0,max_read=131072\n\
        51 22 0:40 / /data rw - tmpfs tmpfs rw\n\
        52 50 254:0 /x /data/my\\040volume/inner rw - ext4 /dev/vda rw\n\
        53 22 0:41 / /nfs rw - nfs4 host:/x rw,vers=4.2\n\
        nonsense\n";

    fn mount_at(folder: &str) -> Mount {
        mount_of(Path::new(folder), &mounts(INFO)).unwrap()
    }

    #[test]
    fn the_mount_of_a_folder_is_the_innermost_and_its_blanks_are_decoded() {
        assert_eq!(mount_at("/home/x").kind, "ext4");
        assert_eq!(mount_at("/data2/x").point, Path::new("/"));
        assert_eq!(mount_at("/data/other").kind, "tmpfs");
        let juicefs = mount_at("/data/my volume/runs/r");
        assert_eq!((juicefs.kind.as_str(), juicefs.source.as_str()), ("fuse.juicefs", "JuiceFS:v"));
        assert_eq!(juicefs.options, ["max_read=131072", "nosuid", "rw", "user_id=0"]);
        assert_eq!(mount_at("/data/my volume/inner/x").kind, "ext4");
    }

    #[test]
    fn of_two_mounts_on_one_point_the_later_lies_on_top() {
        let info = [INFO, b"60 22 0:50 / /data rw - xfs /dev/vdb rw\n"].concat();
        assert_eq!(mount_of(Path::new("/data/x"), &mounts(&info)).unwrap().kind, "xfs");
    }

    fn juicefs(config: &str) -> MountReport {
        judge(Some(mount_at("/data/my volume")), Some(parse_config(config.as_bytes())))
    }

    const DEFAULT: &str = r#"{"Meta": {"OpenCache": 0, "ReadOnly": false}, "Chunk": {"Writeback": false, "BlockSize": 4194304},
        "Version": "1.4.2", "AttrTimeout": 1000000000, "DirEntryTimeout": 1000000000, "NegEntryTimeout": 0,
        "EntryTimeout": 1000000000, "ReaddirCache": false, "FuseOpts": {"EnableWriteback": false}}"#;

    #[test]
    fn juicefs_as_it_is_mounted_by_default_is_good() {
        let report = juicefs(DEFAULT);
        assert_eq!((report.refusals.len(), report.warnings.len(), report.refusal()), (0, 0, None));
        assert_eq!(report.juicefs.unwrap().version, "1.4.2");
    }

    #[test]
    fn settings_that_can_lose_acknowledged_data_or_show_old_bytes_are_refused() {
        for (from, to, said) in [
            ("\"Writeback\": false", "\"Writeback\": true", "acknowledged data can be lost"),
            ("\"EnableWriteback\": false", "\"EnableWriteback\": true", "write-back cache"),
            ("\"OpenCache\": 0", "\"OpenCache\": 10000000000", "open-cache 10 s"),
            ("\"NegEntryTimeout\": 0", "\"NegEntryTimeout\": 1500000000", "negative-entry-cache 1.5 s"),
        ] {
            let report = juicefs(&DEFAULT.replace(from, to));
            let refusal = report.refusal().unwrap();
            assert!(refusal.contains(said) && refusal.contains("\n  fix: mount it with"), "{refusal}");
            assert_eq!(report.refusals.len(), 1, "{to}");
        }
    }

    #[test]
    fn settings_that_only_delay_are_warned_of() {
        let late = DEFAULT
            .replace("\"ReaddirCache\": false", "\"ReaddirCache\": true")
            .replace("\"AttrTimeout\": 1", "\"AttrTimeout\": 60");
        let report = juicefs(&late);
        assert_eq!((report.refusals.len(), report.warnings.len()), (0, 2));
        assert!(report.warnings[1].what.contains("60 s"), "{:?}", report.warnings);
        let report = juicefs("no json");
        assert_eq!((report.refusals.len(), report.warnings.len()), (0, 1));
        assert!(report.warnings[0].what.contains("cannot be read"));
    }

    #[test]
    fn mounts_that_remember_missing_names_are_refused_and_memory_is_warned_of() {
        let report = judge(Some(mount_at("/nfs")), None);
        assert!(report.refusal().unwrap().contains("lookupcache"));
        let info = String::from_utf8(INFO.to_vec()).unwrap().replace("vers=4.2", "lookupcache=pos");
        let mount = mount_of(Path::new("/nfs"), &mounts(info.as_bytes()));
        assert_eq!(judge(mount, None).refusal(), None);
        assert_eq!(judge(Some(mount_at("/data")), None).warnings.len(), 1);
    }

    #[test]
    fn files_are_mapped_only_on_mounts_that_are_known_to_be_of_this_host_alone() {
        let on = |kind: &str| {
            refuses_maps_on(&Mount { point: "/data".into(), kind: kind.into(), source: "x".into(), options: vec![] })
        };
        for kind in ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs"] {
            assert_eq!(on(kind), None, "{kind}");
        }
        for kind in
            ["fuse.juicefs", "nfs", "nfs4", "ceph", "lustre", "fuse.sshfs", "9p", "cifs", "ramfs", "something-new"]
        {
            let why = on(kind).unwrap();
            assert_eq!(why, format!("/data is {kind}, where another host can cut a file short"));
        }
        assert!(refuses_maps(Path::new("/no/such/folder")).is_some());
    }

    #[test]
    fn locks_are_trusted_only_on_mounts_that_are_known_to_share_them() {
        let mount = |kind: &str, options: &[&str]| Mount {
            point: "/m".into(),
            kind: kind.into(),
            source: "s".into(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        for (kind, options) in
            [("ext4", &[][..]), ("fuse.juicefs", &[]), ("nfs4", &["local_lock=none"]), ("lustre", &["flock"])]
        {
            assert!(shares_locks(&mount(kind, options)), "{kind}");
        }
        for (kind, options) in
            [("fuse.sshfs", &[][..]), ("9p", &[]), ("nfs4", &["local_lock=all"]), ("lustre", &["localflock"])]
        {
            assert!(!shares_locks(&mount(kind, options)), "{kind}");
        }
    }

    #[test]
    fn the_self_test_passes_on_a_local_folder_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let seen = self_test(folder.path()).unwrap();
        assert_eq!((seen.fresh_handle, seen.old_handle, seen.exclusive), (true, true, true));
        assert_eq!(seen.refusal(), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(probe(folder.path()).unwrap().mount.is_some());
        assert!(self_test(&folder.path().join("missing")).is_err());
    }
}
