//! What a crash makes of that which was not synced.

use std::collections::BTreeMap;

use super::inode::{Inode, Pending, put};
use super::random::Random;
use super::{Change, Names};

const SECTOR: usize = 512;

/// How a power loss treats what was pending, so that the extremes are met often.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mood {
    KeepsNothing,
    KeepsAll,
    Mixed,
}

impl Mood {
    pub(super) fn of(random: &Random) -> Self {
        match random.below(8) {
            0 => Mood::KeepsNothing,
            1 => Mood::KeepsAll,
            _ => Mood::Mixed,
        }
    }

    fn keeps(self, random: &Random) -> bool {
        match self {
            Mood::KeepsNothing => false,
            Mood::KeepsAll => true,
            Mood::Mixed => random.below(2) == 1,
        }
    }
}

impl Names {
    /// Applies an arbitrary subset of the pending changes, as far as they make sense without the others.
    pub(super) fn lose(&mut self, mood: Mood, random: &Random) {
        for change in std::mem::take(&mut self.pending) {
            if mood.keeps(random) {
                change.apply(&mut self.durable);
            }
        }
        self.visible = self.durable.clone();
    }
}

impl Change {
    pub(super) fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Change::Create { name, inode } => {
                names.entry(name.clone()).or_insert(*inode);
            }
            Change::Rename { from, to, inode } => {
                // A rename carries the file to its new name, whether or not the old name had become durable.
                if names.get(from) == Some(inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), *inode);
            }
            Change::Remove { name, inode } => {
                if names.get(name) == Some(inode) {
                    names.remove(name);
                }
            }
        }
    }
}

impl Inode {
    /// Decides about everything that is pending.
    pub(super) fn lose(&mut self, mood: Mood, random: &Random) {
        for write in std::mem::take(&mut self.pending) {
            self.lose_one(&write, mood, random);
        }
        self.views.clear();
    }

    /// Decides about what one host had pending; the others' stays so.
    pub(super) fn lose_of(&mut self, host: u32, mood: Mood, random: &Random) {
        let (lost, kept) = std::mem::take(&mut self.pending).into_iter().partition(|w| w.host == host);
        self.pending = kept;
        for write in lost {
            self.lose_one(&write, mood, random);
        }
        self.views.remove(&host);
    }

    fn lose_one(&mut self, write: &Pending, mood: Mood, random: &Random) {
        if write.doomed {
            return;
        }
        let tears = mood == Mood::Mixed && random.below(2) == 0;
        if tears {
            tear(&mut self.durable, write.offset, &write.bytes, random);
        } else if mood.keeps(random) {
            put(&mut self.durable, write.offset, &write.bytes);
        }
    }
}

/// Keeps a part of a write.
fn tear(file: &mut Vec<u8>, offset: usize, bytes: &[u8], random: &Random) {
    let grown = file.len().max(offset + bytes.len());
    match random.below(4) {
        0 => put(file, offset, bytes.get(..random.below(bytes.len() as u64 + 1) as usize).unwrap_or_default()),
        1 => file.resize(grown, 0), // the size reached the disk, the bytes did not
        2 => {
            file.resize(grown, 0);
            let from = random.below(bytes.len() as u64 + 1) as usize;
            put(file, offset + from, bytes.get(from..).unwrap_or_default());
        }
        _ => {
            file.resize(grown, 0);
            let first = SECTOR - offset % SECTOR;
            let (head, rest) = bytes.split_at(first.min(bytes.len()));
            let mut at = offset;
            for sector in std::iter::once(head).chain(rest.chunks(SECTOR)) {
                if random.below(2) == 0 {
                    put(file, at, sector);
                }
                at += sector.len();
            }
        }
    }
}
