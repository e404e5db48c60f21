//! Tasks that nobody holds, in order of leasing, by lane.

use std::collections::{BTreeMap, BTreeSet, btree_set};
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::task::{Class, Rank, TaskId};

/// The upper bits of a task's id: tasks of one kind share a lane, and can be leased apart from the others. Lane 0 is that of
/// small ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lane(pub u16);

/// Bits of an id below its lane. Ids of lanes 0 and 1 are exact as JSON numbers.
pub const LANE_SHIFT: u32 = 52;

impl Lane {
    /// The last lane.
    pub const MAX: Lane = Lane(u16::MAX >> 4);

    /// The ids of a lane.
    pub fn ids(self) -> RangeInclusive<TaskId> {
        let first = u64::from(self.0) << LANE_SHIFT;
        TaskId(first)..=TaskId(first | ((1 << LANE_SHIFT) - 1))
    }
}

/// Which tasks are asked for. A task that is to be had only by asking for it, such as one that keeps a drain going while
/// production is full, has a lane of its own, which the others do not ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Of these lanes.
    pub lanes: RangeInclusive<Lane>,
    /// Of these classes.
    pub classes: RangeInclusive<Class>,
}

impl Default for Wanted {
    /// Any.
    fn default() -> Self {
        Wanted { lanes: Lane(0)..=Lane::MAX, classes: Class::Ready..=Class::Fresh }
    }
}

impl Wanted {
    /// Tasks of these lanes.
    pub fn lanes(lanes: RangeInclusive<Lane>) -> Self {
        Wanted { lanes, ..Wanted::default() }
    }

    /// Tasks of these classes.
    pub fn classes(classes: RangeInclusive<Class>) -> Self {
        Wanted { classes, ..Wanted::default() }
    }
}

/// Built when it is first asked for, and kept up to date from then on: a replay never asks.
#[derive(Clone, Debug, Default)]
pub(super) struct Order(OnceLock<Lanes>);

/// No lane is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<Lane, BTreeSet<(Rank, TaskId)>>,
    len: usize,
}

impl Order {
    pub(super) fn insert(&mut self, rank: Rank, id: TaskId) {
        if let Some(lanes) = self.0.get_mut() {
            lanes.insert(rank, id);
        }
    }

    pub(super) fn remove(&mut self, rank: Rank, id: TaskId) {
        if let Some(lanes) = self.0.get_mut() {
            lanes.remove(rank, id);
        }
    }

    pub(super) fn get_or_build(&self, build: impl FnOnce() -> Lanes) -> &Lanes {
        self.0.get_or_init(build)
    }

    pub(super) fn len_if_built(&self) -> Option<usize> {
        self.0.get().map(|lanes| lanes.len)
    }
}

impl Lanes {
    fn insert(&mut self, rank: Rank, id: TaskId) {
        self.len += usize::from(self.lanes.entry(id.lane()).or_default().insert((rank, id)));
    }

    fn remove(&mut self, rank: Rank, id: TaskId) {
        let Some(lane) = self.lanes.get_mut(&id.lane()) else { return };
        self.len -= usize::from(lane.remove(&(rank, id)));
        if lane.is_empty() {
            self.lanes.remove(&id.lane());
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn has(&self, rank: Rank, id: TaskId) -> bool {
        self.lanes.get(&id.lane()).is_some_and(|lane| lane.contains(&(rank, id)))
    }

    /// Those that are wanted, in order. Each costs as much as there are lanes in use, and what is not wanted costs nothing.
    pub(super) fn iter(&self, wanted: &Wanted) -> impl Iterator<Item = TaskId> + use<'_> {
        let none = wanted.lanes.is_empty() || wanted.classes.is_empty();
        let lanes = if none { Lane(0)..=Lane(0) } else { wanted.lanes.clone() };
        let first = (Rank::first_of(*wanted.classes.start()), TaskId(0));
        let last = (Rank::last_of(*wanted.classes.end()), TaskId(u64::MAX));
        let heads = if none {
            Vec::new()
        } else {
            self.lanes.range(lanes).map(|(_, lane)| Head::of(lane.range(first..=last))).collect()
        };
        merged(heads)
    }
}

/// The next task of a lane, and the ones behind it.
struct Head<'a> {
    next: Option<(Rank, TaskId)>,
    rest: btree_set::Range<'a, (Rank, TaskId)>,
}

impl<'a> Head<'a> {
    fn of(mut rest: btree_set::Range<'a, (Rank, TaskId)>) -> Self {
        Head { next: rest.next().copied(), rest }
    }
}

fn merged(mut heads: Vec<Head<'_>>) -> impl Iterator<Item = TaskId> {
    std::iter::from_fn(move || {
        let best = heads.iter_mut().filter(|head| head.next.is_some()).min_by_key(|head| head.next)?;
        let (_, id) = std::mem::replace(&mut best.next, best.rest.next().copied())?;
        Some(id)
    })
}

impl FromIterator<(Rank, TaskId)> for Lanes {
    fn from_iter<I: IntoIterator<Item = (Rank, TaskId)>>(items: I) -> Self {
        let mut by_lane: BTreeMap<Lane, Vec<(Rank, TaskId)>> = BTreeMap::new();
        items.into_iter().for_each(|(rank, id)| by_lane.entry(id.lane()).or_default().push((rank, id)));
        let lanes: BTreeMap<_, BTreeSet<_>> =
            by_lane.into_iter().map(|(lane, all)| (lane, all.into_iter().collect())).collect();
        let len = lanes.values().map(BTreeSet::len).sum();
        Lanes { lanes, len }
    }
}
