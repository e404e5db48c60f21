//! Archives: records kept under keys, without a copy of any.
//!
//! An archive is one record, its *index*, written once: sorted keys, each with the reference of the record that it names and a
//! number of the caller's (which sample of a group, for instance). A key may name several records, so a task's key can stand
//! beside those of its samples. The records stay where they are: an owner in the queue ([`Archive::hold`]) keeps them, and the
//! index, from being collected.
//!
//! ```text
//! meta   = { format, entries, packs, the first key of each page and where the page begins }
//! pages  = U8 [bytes]      page = entry { key, pack, offset, len, head, crc, table, shares, part } ...
//! ```
//! The index names places, so records that an archive holds must stay where they are: whoever moves live records asks
//! [`Archive::is_owner`] whom they belong to.
//!
//! A lookup reads the meta once, then one page for each key (two blocks of [`crate::BLOCK_BYTES`] at most, for pages of the
//! usual size), however many keys there are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::limits::{ARCHIVE_KEY_BYTES_MAX, META_BYTES_MAX, OWNER_BYTES_MAX, REFS_MAX, at_most};
use crate::pack::file_name;
use crate::queue::{Op, Queue, Refused};
use crate::reference::Share;
use crate::{Error, Record, Ref, Result, Store, Tensor, Writer};

const FORMAT: u16 = 2;
/// A page ends with the entry that reaches this length, bytes.
const PAGE_BYTES: usize = 16 << 10;
const PAGES: &str = "pages";
/// Owners of archives begin with this.
const OWNERS: &str = "archive/";

/// A record under a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The key; several entries may have the same.
    pub key: Vec<u8>,
    /// The caller's, such as the number of a sample in the record.
    pub part: u32,
    /// The record.
    pub reference: Ref,
}

/// An archive that was opened for reading.
#[derive(Clone, Debug)]
pub struct Archive {
    store: Store,
    index: Ref,
    meta: Meta,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Meta {
    format: u16,
    entries: u64,
    packs: Vec<String>,
    /// First key of each page, and where the page begins.
    fences: Vec<(Vec<u8>, u64)>,
    pages_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Slot<'a> {
    #[serde(borrow)]
    key: &'a [u8],
    pack: u32,
    offset: u64,
    len: u64,
    head: u32,
    crc: u32,
    table: u32,
    /// Number of a pack, and bytes.
    shares: Vec<(u32, u64)>,
    part: u32,
}

impl Archive {
    /// Writes the index of an archive; gives its reference. Nothing keeps it, nor the records, before [`Archive::hold`] is
    /// journaled: until then something else must. `submission` as in [`Writer::publish`]: the same entries give the same
    /// index.
    ///
    /// # Errors
    /// As [`Writer::publish`]; [`Error::Limit`] for a key that is too long, or too many entries for one record's meta.
    pub fn write(writer: &Writer, submission: &str, entries: &[Entry]) -> Result<Ref> {
        let mut sorted: Vec<&Entry> = entries.iter().collect();
        sorted.sort();
        let packs: BTreeSet<&str> = entries.iter().flat_map(|e| e.reference.packs()).collect();
        let numbers: BTreeMap<&str, u32> = packs.iter().copied().zip(0..).collect();
        let mut meta = Meta {
            format: FORMAT,
            entries: entries.len() as u64,
            packs: packs.iter().map(|&pack| pack.to_owned()).collect(),
            ..Meta::default()
        };
        let mut pages: Vec<u8> = Vec::new();
        let mut begun = 0;
        for entry in sorted {
            at_most("bytes of an archive's key", entry.key.len() as u64, ARCHIVE_KEY_BYTES_MAX as u64)?;
            if meta.fences.is_empty() || pages.len() - begun >= PAGE_BYTES {
                begun = pages.len();
                meta.fences.push((entry.key.clone(), begun as u64));
            }
            let Ref { pack, offset, len, head, crc, table, shares } = &entry.reference;
            let number = |pack: &str| numbers.get(pack).copied().unwrap_or_default();
            let slot = Slot {
                key: &entry.key,
                pack: number(pack),
                offset: *offset,
                len: *len,
                head: *head,
                crc: *crc,
                table: *table,
                shares: shares.iter().map(|share| (number(&share.pack), share.bytes)).collect(),
                part: entry.part,
            };
            pages = postcard::to_extend(&slot, pages).unwrap_or_else(|e| unreachable!("memory takes it: {e}"));
        }
        meta.pages_bytes = pages.len() as u64;
        let bytes = postcard::to_stdvec(&meta).unwrap_or_else(|e| unreachable!("memory takes it: {e}"));
        at_most("bytes of an archive's meta", bytes.len() as u64, META_BYTES_MAX)?;
        let record = Record::new(bytes).with(PAGES, Tensor::from_vec(&[pages.len() as u64], pages)?);
        let mut refs = writer.publish(submission, &[record])?;
        refs.pop().ok_or_else(|| Error::corrupt(writer.owner(), 0, "a publish gave no reference"))
    }

    /// The ops that keep an archive: `name` (at most 80 bytes) holds its index and each of its records from then on. Journal them
    /// as one transaction; before it, an archive does not exist.
    ///
    /// # Errors
    /// [`Refused::PackRetired`] when a record was collected meanwhile; [`Refused::Invalid`] for a name that is taken, or is too
    /// long.
    pub fn hold(queue: &Queue, name: &str, index: &Ref, entries: &[Entry]) -> Result<Vec<Op>, Refused> {
        if name.len() + 20 > OWNER_BYTES_MAX {
            return Err(Refused::Invalid("an archive's name is too long"));
        }
        if Self::find(queue, name).is_some() {
            return Err(Refused::Invalid("an archive of this name is held"));
        }
        let records: BTreeSet<&Ref> = entries.iter().map(|e| &e.reference).collect();
        let mut refs: Vec<Ref> = vec![index.clone()];
        refs.extend(records.into_iter().cloned());
        refs.chunks(REFS_MAX).enumerate().map(|(i, some)| queue.retain(&owner(name, i), some)).collect()
    }

    /// The ops that let go of an archive; empty when there is none of that name. Journal them as one transaction.
    pub fn release(queue: &Queue, name: &str) -> Vec<Op> {
        (0..).map_while(|i| queue.release_owner(&owner(name, i))).collect()
    }

    /// True for an owner in the queue that is (a part of) an archive.
    pub fn is_owner(owner: &str) -> bool {
        owner.starts_with(OWNERS)
    }

    /// The index of the archive that is held under `name`.
    pub fn find<'a>(queue: &'a Queue, name: &str) -> Option<&'a Ref> {
        queue.owner(&owner(name, 0)).and_then(<[Ref]>::first)
    }

    /// Opens an archive by its index; reads its meta alone.
    ///
    /// # Errors
    /// As [`Store::read_meta`]; [`Error::Corrupt`] when the record is no index.
    pub fn open(store: &Store, index: &Ref) -> Result<Self> {
        let bytes = store.read_meta(index)?;
        let bad = |what: String| Error::corrupt(file_name(&index.pack), index.offset, what);
        let meta: Meta = postcard::from_bytes(&bytes).map_err(|e| bad(format!("not an archive's index: {e}")))?;
        if meta.format != FORMAT {
            return Err(bad(format!("archive format {} is not {FORMAT}", meta.format)));
        }
        Ok(Archive { store: store.clone(), index: index.clone(), meta })
    }

    /// Entries in all.
    pub fn len(&self) -> u64 {
        self.meta.entries
    }

    /// True when it has none.
    pub fn is_empty(&self) -> bool {
        self.meta.entries == 0
    }

    /// The entries of each key, in the order asked for; none for a key that is not there. Each page is read once.
    ///
    /// # Errors
    /// As [`Store::read_rows`].
    pub fn lookup(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Vec<Entry>>> {
        let mut found = vec![Vec::new(); keys.len()];
        let mut wanted: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, key) in keys.iter().enumerate() {
            for page in self.pages_of(key.as_ref()) {
                wanted.entry(page).or_default().push(i);
            }
        }
        for (page, of) in wanted {
            let entries = self.page(page)?;
            for i in of {
                let Some((key, out)) = keys.get(i).zip(found.get_mut(i)) else { continue };
                let from = entries.partition_point(|e| e.key.as_slice() < key.as_ref());
                let same = entries.iter().skip(from).take_while(|e| e.key == key.as_ref());
                out.extend(same.cloned());
            }
        }
        Ok(found)
    }

    /// The entries of each key with their records, in the order asked for. Each record is read once, and those that lie close
    /// together at once.
    ///
    /// # Errors
    /// As [`Archive::lookup`] and [`Store::read_many`].
    pub fn load(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Vec<(Entry, Record)>>> {
        let found = self.lookup(keys)?;
        let refs: BTreeSet<&Ref> = found.iter().flatten().map(|e| &e.reference).collect();
        let refs: Vec<Ref> = refs.into_iter().cloned().collect();
        let records = self.store.read_many(&refs)?;
        let record = |r: &Ref| refs.binary_search(r).ok().and_then(|i| records.get(i)).cloned().unwrap_or_default();
        let with = |e: Entry| (e.clone(), record(&e.reference));
        Ok(found.into_iter().map(|entries| entries.into_iter().map(with).collect()).collect())
    }

    /// All entries, by key; one page is in memory at a time.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry>> {
        (0..self.meta.fences.len()).flat_map(|page| match self.page(page) {
            Ok(entries) => entries.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        })
    }

    /// The pages that may have the key: the last that begins before it, and those that begin with it.
    fn pages_of(&self, key: &[u8]) -> Range<usize> {
        let fences = &self.meta.fences;
        let first = fences.partition_point(|(fence, _)| fence.as_slice() < key);
        let end = fences.partition_point(|(fence, _)| fence.as_slice() <= key);
        first.saturating_sub(1)..end
    }

    fn page(&self, page: usize) -> Result<Vec<Entry>> {
        let start = self.meta.fences.get(page).map_or(0, |(_, at)| *at);
        let end = self.meta.fences.get(page + 1).map_or(self.meta.pages_bytes, |(_, at)| *at);
        let rows = self.store.read_rows(&self.index, PAGES, start..end)?;
        let bad = || Error::corrupt(file_name(&self.index.pack), self.index.offset, "a page of an archive's index");
        let mut rest = rows.bytes();
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (slot, behind) = postcard::take_from_bytes::<Slot<'_>>(rest).map_err(|_| bad())?;
            let Slot { key, pack: own, offset, len, head, crc, table, shares, part } = slot;
            let pack = |number: u32| self.meta.packs.get(number as usize).cloned().ok_or_else(bad);
            let share = |(number, bytes)| Ok(Share { pack: pack(number)?, bytes });
            let shares = shares.into_iter().map(share).collect::<Result<_>>()?;
            let reference = Ref { pack: pack(own)?, offset, len, head, crc, table, shares };
            entries.push(Entry { key: key.to_vec(), part, reference });
            rest = behind;
        }
        Ok(entries)
    }
}

/// The owner of a part of an archive's references.
fn owner(name: &str, part: usize) -> String {
    format!("{OWNERS}{name}/{part}")
}
