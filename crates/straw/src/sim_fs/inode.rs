//! A simulated file: what is durable, what is not yet, and what each host sees of it.

use std::collections::BTreeMap;

/// A write that no sync has covered.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) host: u32,
    pub(super) offset: usize,
    pub(super) bytes: Vec<u8>,
    /// A sync of it failed: its host still sees it, and it never reaches the disk.
    pub(super) doomed: bool,
}

/// A file. Others see a host's bytes once they are synced, the host itself at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub(super) durable: Vec<u8>,
    pub(super) pending: Vec<Pending>,
    /// What a host sees that has unsynced bytes; every other sees `durable`.
    pub(super) views: BTreeMap<u32, Vec<u8>>,
    /// Syncs that failed on each host: every file that was open then is told once.
    pub(super) failures: BTreeMap<u32, u64>,
}

impl Inode {
    pub(super) fn seen_by(&self, host: u32) -> &[u8] {
        self.views.get(&host).unwrap_or(&self.durable)
    }

    /// The longest that any host sees it.
    pub(super) fn len_max(&self) -> usize {
        self.views.values().map(Vec::len).fold(self.durable.len(), usize::max)
    }

    pub(super) fn write(&mut self, host: u32, offset: usize, bytes: &[u8]) {
        let Inode { durable, views, .. } = self;
        put(views.entry(host).or_insert_with(|| durable.clone()), offset, bytes);
        self.pending.push(Pending { host, offset, bytes: bytes.to_vec(), doomed: false });
    }

    pub(super) fn sync(&mut self, host: u32) {
        let (due, kept) = std::mem::take(&mut self.pending).into_iter().partition(|w| w.host == host && !w.doomed);
        self.pending = kept;
        for write in due {
            let Pending { offset, bytes, .. } = write;
            self.arrive(host, offset, &bytes);
        }
        if !self.pending.iter().any(|w| w.host == host) {
            self.views.remove(&host);
        }
    }

    /// The sync failed: the pages are marked clean although they never reached the disk.
    pub(super) fn doom(&mut self, host: u32) {
        *self.failures.entry(host).or_default() += 1;
        self.pending.iter_mut().filter(|w| w.host == host).for_each(|w| w.doomed = true);
    }

    pub(super) fn failures(&self, host: u32) -> u64 {
        self.failures.get(&host).copied().unwrap_or(0)
    }

    /// The system writes one pending write back on its own, in whatever order.
    pub(super) fn write_back(&mut self, pick: usize) {
        let at = pick.checked_rem(self.pending.len()).unwrap_or(0);
        if self.pending.get(at).is_some_and(|w| !w.doomed) {
            let Pending { host, offset, bytes, .. } = self.pending.remove(at);
            self.arrive(host, offset, &bytes);
            if !self.pending.iter().any(|w| w.host == host) {
                self.views.remove(&host);
            }
        }
    }

    fn arrive(&mut self, host: u32, offset: usize, bytes: &[u8]) {
        put(&mut self.durable, offset, bytes);
        self.views.iter_mut().filter(|(h, _)| **h != host).for_each(|(_, view)| put(view, offset, bytes));
    }

    /// Changes the bytes everywhere, as bit rot does.
    pub(super) fn everywhere(&mut self, change: impl Fn(&mut Vec<u8>)) {
        change(&mut self.durable);
        self.views.values_mut().for_each(change);
    }
}

pub(super) fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    if let Some(place) = file.get_mut(offset..end) {
        place.copy_from_slice(bytes);
    }
}
