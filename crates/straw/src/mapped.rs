//! Reads of sealed packs without a copy.
//!
//! A tensor that lies whole in a sealed pack is given as a view of the mapped file: nothing is copied, and each block is checked
//! once, when it is first asked for, for as long as the pack stays mapped. What is damaged on the disk after that check is not
//! noticed. Everything else is read as the store reads it: packs that are still written, blocks that are compressed or shared, and
//! all of it where the mount is one that another host may change files on ([`Mapped::refusal`]).
//!
//! Of `read_mapped` of the bench, by turns in one run of 9 rounds: 4.6x, 2.2x and 7.5x as fast as reading for records of 4 KiB, 256 KiB
//! and 4 MiB that were checked before, when each cache line of them is looked at.
//!
//! It is not the default: a file that is cut short under a mapping, or a disk that fails, ends the process with a signal (SIGBUS)
//! instead of giving an error.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::front::{Front, Places, usize_range};
use crate::fs::Mapping;
use crate::head::HeadTensor;
use crate::record::{NamedTensor, Record};
use crate::store::{Store, row_bytes};
use crate::tensor::Tensor;
use crate::{Error, Ref, Result, pack};

/// Packs that stay mapped; the one that was used longest ago goes first.
const PACKS_KEPT: usize = 64;
/// Records of one pack of which it is known what was checked.
const RECORDS_KEPT: usize = 65_536;

/// A store that maps sealed packs; see the module. Cloning shares the mappings.
#[derive(Clone, Debug)]
pub struct Mapped {
    store: Store,
    refusal: Option<Arc<str>>,
    packs: Arc<Mutex<Packs>>,
}

#[derive(Debug, Default)]
struct Packs {
    open: HashMap<String, (Arc<Pack>, u64)>,
    tick: u64,
}

/// A mapped pack.
struct Pack {
    bytes: Mapping,
    records: Mutex<HashMap<Ref, Arc<Checked>>>,
}

impl fmt::Debug for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pack({} bytes)", (*self.bytes).as_ref().len())
    }
}

/// A record, and which of its blocks were checked.
struct Checked {
    front: Front,
    /// A bit for each block of all tensors, in order, and one for the meta.
    blocks: Vec<AtomicU64>,
}

impl Checked {
    fn is_set(&self, bit: usize) -> bool {
        self.blocks.get(bit / 64).is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (bit % 64)) != 0)
    }

    fn set(&self, bit: usize) {
        if let Some(word) = self.blocks.get(bit / 64) {
            word.fetch_or(1 << (bit % 64), Ordering::Relaxed);
        }
    }
}

impl Store {
    /// The same store, with sealed packs mapped where that is safe. Where it is not, [`Mapped::refusal`] says why, and all is read as
    /// the store reads it.
    pub fn mapped(&self) -> Mapped {
        Mapped { store: self.clone(), refusal: self.refuses_maps(), packs: Arc::default() }
    }
}

impl Mapped {
    /// Why nothing is mapped here; `None` when it is.
    pub fn refusal(&self) -> Option<Error> {
        let why = self.refusal.as_ref()?;
        Some(Error::NotMappable { path: self.store.dir_name(), why: why.to_string() })
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// As [`Store::read`]. Tensors keep the pack mapped for as long as they live, also when its file is removed.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub fn read(&self, reference: &Ref) -> Result<Record> {
        let Some((pack, checked, range)) = self.record(reference)? else { return self.store.read(reference) };
        let mut record = Record::default();
        let mut bit = 0;
        for (tensor, places) in checked.front.tensors() {
            let all = 0..tensor.crcs.len();
            let read = match places {
                Places::Whole(at) => {
                    pack.check(&checked, reference, (tensor, at), bit, all)?;
                    Tensor::mapped(tensor.dtype, &tensor.shape, &pack.bytes, shifted(at, range.start))?
                }
                Places::Blocks(_) => {
                    let bytes = self.assemble(&pack, &checked, reference, (tensor, places), all)?;
                    Tensor::from_bytes(tensor.dtype, &tensor.shape, bytes)?
                }
            };
            bit += tensor.crcs.len();
            record.tensors.push(NamedTensor { name: tensor.name.clone(), tensor: read });
        }
        let meta = pack.get(shifted(&checked.front.meta(), range.start));
        if !checked.is_set(bit) {
            checked.front.check_meta(reference, meta)?;
            checked.set(bit);
        }
        record.meta = meta.to_vec();
        Ok(record)
    }

    /// As [`Store::read_rows`]: of a tensor that lies whole no byte but the rows is touched once their blocks were checked.
    ///
    /// # Errors
    /// As [`Store::read_rows`].
    pub fn read_rows(&self, reference: &Ref, name: &str, rows: Range<u64>) -> Result<Tensor> {
        let Some((pack, checked, range)) = self.record(reference)? else {
            return self.store.read_rows(reference, name, rows);
        };
        let (tensor, places) = checked.front.tensor(name)?;
        let Places::Whole(at) = places else { return self.store.read_rows(reference, name, rows) };
        let before = checked.front.tensors().take_while(|(t, _)| t.name != name);
        let bit = before.map(|(t, _)| t.crcs.len()).sum();
        let (shape, wanted) = row_bytes(tensor, &rows)?;
        pack.check(&checked, reference, (tensor, at), bit, checked.front.blocks_around(&wanted))?;
        let bytes = at.start + wanted.start..at.start + wanted.end;
        Tensor::mapped(tensor.dtype, &shape, &pack.bytes, shifted(&bytes, range.start))
    }

    /// Lets go of a pack; tensors that were given keep it mapped. What is read of it next is checked again.
    pub fn forget(&self, pack: &str) {
        self.packs().open.remove(pack);
    }

    /// The mapped pack of a record, what was decoded of it, and where it lies; `None` when the store is to read it.
    #[expect(clippy::type_complexity, reason = "three things that belong together here alone")]
    fn record(&self, reference: &Ref) -> Result<Option<(Arc<Pack>, Arc<Checked>, Range<usize>)>> {
        let Some(pack) = self.pack(&reference.pack)? else { return Ok(None) };
        let end = reference.offset.saturating_add(reference.len);
        let range = usize_range(&(reference.offset..end));
        let Some(bytes) = (*pack.bytes).as_ref().get(range.clone()) else { return Ok(None) };
        let known = pack.records().get(reference).cloned();
        let checked = match known {
            Some(checked) => checked,
            None => {
                // Whatever is wrong with it, the store has the precise error.
                let Ok(front) = Front::decode(reference, bytes) else { return Ok(None) };
                let blocks: usize = front.head.tensors.iter().map(|t| t.crcs.len()).sum();
                let blocks = (0..blocks / 64 + 1).map(|_| AtomicU64::new(0)).collect();
                let checked = Arc::new(Checked { front, blocks });
                let mut records = pack.records();
                if records.len() >= RECORDS_KEPT {
                    records.clear();
                }
                records.entry(reference.clone()).or_insert(checked).clone()
            }
        };
        Ok(Some((pack, checked, range)))
    }

    fn pack(&self, name: &str) -> Result<Option<Arc<Pack>>> {
        if self.refusal.is_some() {
            return Ok(None);
        }
        {
            let mut packs = self.packs();
            packs.tick += 1;
            let tick = packs.tick;
            if let Some((pack, used)) = packs.open.get_mut(name) {
                *used = tick;
                return Ok(Some(pack.clone()));
            }
        }
        let file = self.store.file(name)?;
        if pack::read_footer(name, &*file)?.is_none() {
            return Ok(None); // it is still written
        }
        let io = |e| Error::io("map", pack::file_name(name), e);
        let bytes = file.map(file.len().map_err(io)?).map_err(io)?;
        let pack = Arc::new(Pack { bytes, records: Mutex::default() });
        let mut packs = self.packs();
        if packs.open.len() >= PACKS_KEPT {
            let oldest = packs.open.iter().min_by_key(|(_, (_, used))| *used).map(|(name, _)| name.clone());
            oldest.map(|name| packs.open.remove(&name));
        }
        let tick = packs.tick;
        Ok(Some(packs.open.entry(name.to_owned()).or_insert((pack, tick)).0.clone()))
    }

    fn assemble(
        &self,
        pack: &Pack,
        checked: &Checked,
        reference: &Ref,
        tensor: (&HeadTensor, &Places),
        blocks: Range<usize>,
    ) -> Result<Vec<u8>> {
        let base = usize::try_from(reference.offset).unwrap_or(usize::MAX);
        let shared = self.store.fetch(reference);
        let fetch = |share: Option<u32>, range: Range<u64>| match share {
            None => Ok(Cow::Borrowed(pack.get(shifted(&range, base)))),
            Some(_) => shared(share, range),
        };
        checked.front.assemble(reference, tensor, blocks, &fetch)
    }

    fn packs(&self) -> MutexGuard<'_, Packs> {
        self.packs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pack {
    fn get(&self, range: Range<usize>) -> &[u8] {
        (*self.bytes).as_ref().get(range).unwrap_or_default()
    }

    /// Checks blocks of a tensor that were not checked before; `bit` is that of its first.
    fn check(
        &self,
        checked: &Checked,
        reference: &Ref,
        (tensor, at): (&HeadTensor, &Range<u64>),
        bit: usize,
        blocks: Range<usize>,
    ) -> Result<()> {
        let base = usize::try_from(reference.offset).unwrap_or(usize::MAX);
        let size = checked.front.head.block;
        for n in blocks.filter(|n| !checked.is_set(bit + n)) {
            let start = at.start + size * n as u64;
            let block = self.get(shifted(&(start..start + tensor.block_len(size, n)), base));
            checked.front.check_whole(reference, tensor, start, n, block)?;
            checked.set(bit + n);
        }
        Ok(())
    }

    fn records(&self) -> MutexGuard<'_, HashMap<Ref, Arc<Checked>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shifted(range: &Range<u64>, base: usize) -> Range<usize> {
    let Range { start, end } = usize_range(range);
    base.saturating_add(start)..base.saturating_add(end)
}
