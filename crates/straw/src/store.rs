//! The store: a folder of packs, and reads by reference.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ScopedJoinHandle;

use crate::compression::Compression;
use crate::dtype::DType;
use crate::durability::Durability;
use crate::frame::Bad;
use crate::front::{Fetch, Front, Places, usize_range};
use crate::fs::{Dir, File, Fs};
use crate::head::HeadTensor;
use crate::limits::{OWNER_BYTES_MAX, RECORD_BYTES_MAX, at_most, name as check_name};
use crate::pack::{self, file_name};
use crate::record::Record;
use crate::scan;
use crate::tensor::Tensor;
use crate::writer::Writer;
use crate::{Error, Ref, Result};

/// Records of one read are at most this far apart, and this long together, bytes.
const RUN_GAP_MAX: u64 = 64 << 10;
const RUN_BYTES_MAX: u64 = 8 << 20;
/// Threads do not share out less than this: a read of a mount is at most 128 KiB anyway.
const RUN_BYTES_MIN: u64 = 128 << 10;
/// Open files, and what was decoded of records, kept for the next read: so many records with so many blocks in all.
const FILES_KEPT: usize = 256;
const FRONTS_KEPT: usize = 4096;
const BLOCKS_KEPT: usize = 4 << 20;

/// How a store writes.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What a published record survives.
    pub durability: Durability,
    /// A writer goes on to a new pack before its pack would pass this length, bytes. One publish is never split, so a
    /// larger one makes a larger pack.
    pub pack_bytes_target: u64,
    /// How tensors are stored of records that say nothing of it ([`Record::compressed`]).
    pub compression: Compression,
}

impl Default for Options {
    fn default() -> Self {
        // 256 MiB: a pack is freed whole, so smaller ones are freed sooner; still few names for a day's run.
        Options { durability: Durability::Machine, pack_bytes_target: 256 << 20, compression: Compression::None }
    }
}

/// A folder of packs. Cloning shares the open files.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) dir: Arc<dyn Dir>,
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    /// Why its packs are not to be mapped; asked once.
    refuses_maps: OnceLock<Option<Arc<str>>>,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    files: HashMap<String, (Arc<dyn File>, u64)>,
    fronts: HashMap<Ref, Arc<Front>>,
    /// Blocks of all of them.
    blocks: usize,
    tick: u64,
}

/// A tensor of a record, without its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// The tensor's name.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<u64>,
}

impl Store {
    /// Opens the store in the folder `root`, which is created when missing.
    pub fn open(fs: Arc<dyn Fs>, root: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(fs, root, Options::default())
    }

    /// Opens the store with other options than the default ones.
    pub fn open_with(fs: Arc<dyn Fs>, root: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = root.as_ref().to_path_buf();
        let dir = fs.create_dir(&path).map_err(|e| Error::io("create", path.display().to_string(), e))?;
        Ok(Store {
            inner: Arc::new(Inner { fs, dir, path, options, refuses_maps: OnceLock::new(), cache: Mutex::default() }),
        })
    }

    /// A writer with packs of its own. `owner` (`[a-z0-9._-]`) names who writes, a pod's name for instance; any number of
    /// writers may have the same owner, since each pack's name is unique.
    pub fn writer(&self, owner: &str) -> Result<Writer> {
        check_name("owner", owner, OWNER_BYTES_MAX)?;
        Ok(Writer::new(self.clone(), owner))
    }

    /// Reads a record: one `pread`, every byte checked once. Tensors share the buffer that was read. Of a record that shares blocks
    /// of others one more for each stretch of them.
    pub fn read(&self, reference: &Ref) -> Result<Record> {
        let (front, bytes) = self.read_checked(reference, reference.len)?;
        front.open(reference, &Arc::new(bytes), 0, &self.fetch(reference))
    }

    /// Reads many records, in the order asked for. Records that lie close together in a pack are read by one `pread`; their
    /// tensors then share its buffer.
    ///
    /// # Errors
    /// As [`Store::read`], for the first of the records that cannot be read.
    pub fn read_many(&self, references: &[Ref]) -> Result<Vec<Record>> {
        self.read_many_at_once(references, 1)
    }

    /// As [`Store::read_many`], by up to `threads` threads at once: for a micro-batch from a mount where each read waits for a
    /// network, or whose checksums one core does not keep up with. The threads end with the call.
    ///
    /// # Errors
    /// As [`Store::read`], for one of the records that cannot be read.
    pub fn read_many_at_once(&self, references: &[Ref], threads: usize) -> Result<Vec<Record>> {
        let mut order: Vec<usize> = (0..references.len()).collect();
        order.sort_by_key(|i| references.get(*i));
        // Each thread has something to read, even when all lies together.
        let share = references.iter().map(|r| r.len).sum::<u64>() / threads.max(1) as u64;
        let run_bytes_max = if threads > 1 { share.clamp(RUN_BYTES_MIN, RUN_BYTES_MAX) } else { RUN_BYTES_MAX };
        let mut runs = Vec::new();
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            let (run, later) = rest.split_at(run_length(references, rest, run_bytes_max));
            runs.push(run);
            rest = later;
        }
        let next = AtomicUsize::new(0);
        let work = || {
            let mut read = Vec::new();
            while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.read_run(references, run) {
                    Ok(some) => read.extend(some),
                    Err(error) => {
                        next.store(runs.len(), Ordering::Relaxed); // nobody begins another
                        return Err(error);
                    }
                }
            }
            Ok(read)
        };
        let parts: Vec<Result<Vec<(usize, Record)>>> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.min(runs.len())).map(|_| scope.spawn(work)).collect();
            let own = work();
            let join = |other: ScopedJoinHandle<'_, _>| other.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            std::iter::once(own).chain(others.into_iter().map(join)).collect()
        });
        let mut records: Vec<Option<Record>> = vec![None; references.len()];
        for part in parts {
            for (i, record) in part? {
                if let Some(place) = records.get_mut(i) {
                    *place = Some(record);
                }
            }
        }
        let all: Option<Vec<Record>> = records.into_iter().collect();
        Ok(all.unwrap_or_else(|| unreachable!("each record is in one run")))
    }

    /// Reads the records `run` of `references`, neighbours in one pack.
    fn read_run(&self, references: &[Ref], run: &[usize]) -> Result<Vec<(usize, Record)>> {
        let members = || run.iter().filter_map(|i| references.get(*i).map(|r| (*i, r)));
        let Some((_, first)) = members().next() else { return Ok(Vec::new()) };
        let end = members().map(|(_, r)| r.offset + r.len).max().unwrap_or(first.offset);
        let whole = if run.len() > 1 {
            self.read_exact(&first.pack, first.offset, end - first.offset).ok().map(Arc::new)
        } else {
            None
        };
        let mut records = Vec::with_capacity(run.len());
        for (i, r) in members() {
            let base = usize::try_from(r.offset - first.offset).unwrap_or(usize::MAX);
            let shared = whole.as_ref().and_then(|bytes| {
                let front = Front::decode(r, bytes.get(base..).unwrap_or_default()).ok()?;
                front.open(r, bytes, base, &self.fetch(r)).ok()
            });
            // Whatever is wrong with one of them, the single read has the retry and the precise error.
            records.push((i, shared.map_or_else(|| self.read(r), Ok)?));
        }
        Ok(records)
    }

    /// Reads the rows `rows` (along the first dimension) of one tensor of a record, and checks the blocks they lie in.
    /// The result has the shape `[rows.len(), ...]`. The first read of a record also reads its head.
    pub fn read_rows(&self, reference: &Ref, name: &str, rows: Range<u64>) -> Result<Tensor> {
        let front = self.front(reference)?;
        let (tensor, places) = front.tensor(name)?;
        let (shape, wanted) = row_bytes(tensor, &rows)?;
        let blocks = front.blocks_around(&wanted);
        let from = blocks.start as u64 * front.head.block;
        let bytes = match places {
            Places::Whole(range) => {
                let end = (blocks.end as u64).saturating_mul(front.head.block).min(tensor.len());
                let at = range.start + from;
                let bytes = self.read_exact(&reference.pack, reference.offset + at, end.saturating_sub(from))?;
                front.check_whole(reference, tensor, at, blocks.start, &bytes)?;
                bytes
            }
            Places::Blocks(_) => front.assemble(reference, (tensor, places), blocks, &self.fetch(reference))?,
        };
        let inside = usize_range(&(wanted.start.saturating_sub(from)..wanted.end.saturating_sub(from)));
        Tensor::view(tensor.dtype, &shape, Arc::new(bytes), inside)
    }

    /// Reads the meta of a record alone.
    pub fn read_meta(&self, reference: &Ref) -> Result<Vec<u8>> {
        let front = self.front(reference)?;
        let meta = front.meta();
        let bytes = self.read_exact(&reference.pack, reference.offset + meta.start, meta.end - meta.start)?;
        front.check_meta(reference, &bytes)?;
        Ok(bytes)
    }

    /// Names, types and shapes of a record's tensors; reads the head alone.
    pub fn tensors(&self, reference: &Ref) -> Result<Vec<TensorInfo>> {
        let front = self.front(reference)?;
        let info = |t: &HeadTensor| TensorInfo { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() };
        Ok(front.head.tensors.iter().map(info).collect())
    }

    /// Receipts of an owner: for each submission that is whole on disk, its references. A process that died between a
    /// publish and the use of its result finds it here. What is returned is durable, also when the writer died before its
    /// own sync.
    pub fn receipts(&self, owner: &str) -> Result<BTreeMap<String, Vec<Ref>>> {
        let mut receipts = BTreeMap::new();
        for entry in self.list()? {
            let Some(name) = pack::of_file(&entry.name).filter(|n| pack::owner_of(n) == Some(owner)) else { continue };
            let file = match self.inner.dir.open_rw(&entry.name) {
                Ok(file) => file,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue, // collected since
                Err(e) => return Err(Error::io("open", entry.name, e)),
            };
            let found = scan::scan(name, &*file, false)?;
            if !found.sealed {
                found.make_durable(name, &*file)?;
            }
            receipts.extend(found.extents.into_iter().map(|e| (e.submission, e.refs)));
        }
        Ok(receipts) // a pack's name is durable before its first extent is written
    }

    /// The receipt of one submission; see [`Store::receipts`].
    pub fn receipt(&self, owner: &str, submission: &str) -> Result<Option<Vec<Ref>>> {
        Ok(self.receipts(owner)?.remove(submission))
    }

    pub(crate) fn list(&self) -> Result<Vec<crate::fs::Entry>> {
        self.inner.dir.list().map_err(|e| Error::io("list", self.dir_name(), e))
    }

    /// True on a mount that is known to be of this host alone (a local disk, not a share): a read there waits for no network, and no other
    /// host changes a file under a reader.
    pub fn is_of_one_host(&self) -> bool {
        self.refuses_maps().is_none()
    }

    pub(crate) fn refuses_maps(&self) -> Option<Arc<str>> {
        let asked = || self.inner.dir.refuses_maps().map(Arc::from);
        self.inner.refuses_maps.get_or_init(asked).clone()
    }

    pub(crate) fn is_same_folder(&self, other: &Store) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) || self.inner.path == other.inner.path
    }

    pub(crate) fn dir_name(&self) -> String {
        self.inner.path.display().to_string()
    }

    /// What is in front of a record.
    pub(crate) fn front(&self, reference: &Ref) -> Result<Arc<Front>> {
        if let Some(front) = self.cache().fronts.get(reference) {
            return Ok(front.clone());
        }
        let (front, _) = self.read_checked(reference, Front::len(reference))?;
        let blocks: usize = front.head.tensors.iter().map(|t| t.crcs.len()).sum();
        let mut cache = self.cache();
        if cache.fronts.len() >= FRONTS_KEPT || cache.blocks + blocks > BLOCKS_KEPT {
            cache.fronts.clear(); // rare, and cheaper than to keep an order
            cache.blocks = 0;
        }
        if cache.fronts.insert(reference.clone(), front.clone()).is_none() {
            cache.blocks += blocks;
        }
        Ok(front)
    }

    /// Reads what a front asks for of its record and of others.
    pub(crate) fn fetch<'a>(&'a self, reference: &'a Ref) -> Box<Fetch<'a>> {
        Box::new(move |share, range| {
            let len = range.end - range.start;
            let bytes = match share.and_then(|share| reference.shares.get(share as usize)) {
                Some(share) => self.read_exact(&share.pack, range.start, len),
                None => self.read_exact(&reference.pack, reference.offset + range.start, len),
            };
            bytes.map(Cow::Owned)
        })
    }

    /// Reads the beginning of a record and checks its front. Bytes that look *not yet visible* (short, or zeros) are read
    /// once more from a file opened anew; a wrong checksum is corruption at once.
    fn read_checked(&self, reference: &Ref, len: u64) -> Result<(Arc<Front>, Vec<u8>)> {
        at_most("bytes of a record", reference.len, RECORD_BYTES_MAX)?;
        let mut bytes = self.read_exact(&reference.pack, reference.offset, len)?;
        let mut front = Front::decode(reference, &bytes);
        if matches!(front, Err(Bad::Zero)) {
            self.forget(&reference.pack);
            bytes = self.read_exact(&reference.pack, reference.offset, len)?;
            front = Front::decode(reference, &bytes);
        }
        match front {
            Ok(front) => Ok((Arc::new(front), bytes)),
            Err(Bad::Zero) => Err(self.not_visible(&reference.pack, reference.offset)),
            Err(bad) => Err(Error::corrupt(
                file_name(&reference.pack),
                reference.offset,
                format!("record head: {}", bad.text()),
            )),
        }
    }

    /// Reads `len` bytes at `at` of a pack.
    pub(crate) fn read_exact(&self, pack: &str, at: u64, len: u64) -> Result<Vec<u8>> {
        let count = usize::try_from(len).unwrap_or(usize::MAX);
        for last in [false, true] {
            let file = self.file(pack)?;
            let bytes = file.read_at(at, count).map_err(|e| {
                // Its mount may have died, and the file with it: the next call opens it anew.
                self.forget(pack);
                Error::io("read", file_name(pack), e)
            })?;
            if bytes.len() == count {
                return Ok(bytes);
            }
            self.forget(pack);
            if last {
                break;
            }
        }
        Err(self.not_visible(pack, at))
    }

    fn not_visible(&self, pack: &str, offset: u64) -> Error {
        Error::NotVisible { path: file_name(pack), offset }
    }

    pub(crate) fn file(&self, name: &str) -> Result<Arc<dyn File>> {
        {
            let mut cache = self.cache();
            cache.tick += 1;
            let tick = cache.tick;
            if let Some((file, used)) = cache.files.get_mut(name) {
                *used = tick;
                return Ok(file.clone());
            }
        }
        let file = self.open_pack(name)?;
        let mut cache = self.cache();
        if cache.files.len() >= FILES_KEPT {
            let oldest = cache.files.iter().min_by_key(|(_, (_, used))| *used).map(|(name, _)| name.clone());
            oldest.map(|name| cache.files.remove(&name));
        }
        let tick = cache.tick;
        cache.files.insert(name.to_owned(), (file.clone(), tick));
        Ok(file)
    }

    fn open_pack(&self, name: &str) -> Result<Arc<dyn File>> {
        let missing = || Error::PackMissing { pack: name.to_owned(), dir: self.dir_name() };
        if pack::owner_of(name).is_none_or(|owner| check_name("owner", owner, OWNER_BYTES_MAX).is_err()) {
            return Err(missing());
        }
        let file_name = file_name(name);
        match self.inner.dir.open(&file_name) {
            Ok(file) => return Ok(file),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("open", file_name, e)),
        }
        // A shared mount may remember that a name was missing until its folder is read again.
        self.list()?;
        match self.inner.dir.open(&file_name) {
            Ok(file) => Ok(file),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(missing()),
            Err(e) => Err(Error::io("open", file_name, e)),
        }
    }

    /// Drops what is cached of a pack.
    pub(crate) fn forget(&self, name: &str) {
        let mut cache = self.cache();
        cache.files.remove(name);
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.inner.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shape of some rows of a tensor, and their bytes in it.
pub(crate) fn row_bytes(tensor: &HeadTensor, rows: &Range<u64>) -> Result<(Vec<u64>, Range<u64>)> {
    let mut shape = tensor.shape.clone();
    let count = shape.first().copied().unwrap_or(0);
    if rows.start > rows.end || rows.end > count {
        let what = format!("rows {rows:?} are outside its {count} rows");
        return Err(Error::Tensor { name: tensor.name.clone(), what });
    }
    if let Some(first) = shape.first_mut() {
        *first = rows.end - rows.start;
    }
    let one = tensor.len().checked_div(count).unwrap_or(0);
    Ok((shape, rows.start * one..rows.end * one))
}

/// How many of the first records of `order` (sorted by place) are read together.
fn run_length(references: &[Ref], order: &[usize], bytes_max: u64) -> usize {
    let mut members = order.iter().filter_map(|i| references.get(*i));
    let Some(first) = members.next() else { return 0 };
    let mut end = first.offset.saturating_add(first.len);
    let mut count = 1;
    for r in members {
        let near = r.pack == first.pack && r.offset <= end.saturating_add(RUN_GAP_MAX);
        end = end.max(r.offset.saturating_add(r.len));
        if !near || end - first.offset > bytes_max {
            break;
        }
        count += 1;
    }
    count
}
