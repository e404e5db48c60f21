//! Which rank stands where, and who forms a group with whom. Pure arithmetic.
//!
//! The order is Megatron-LM's `tp-cp-ep-dp-pp`, innermost first, kept as two grids over the same ranks that share the
//! pipeline axis: dense parameters live in `(tp, cp, dp, pp)`, experts in `(etp, ep, edp, pp)`, with
//! `tp * cp * dp = etp * ep * edp`:
//!
//! `rank = tp + TP (cp + CP (dp + DP pp)) = etp + ETP (ep + EP (edp + EDP pp))`

use crate::error::{Error, Result};
use crate::layout::Layout;

/// A set of ranks that vary along some dimensions of the grid and agree in all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// Slices of one matrix.
    Tp,
    /// Parts of one sequence.
    Cp,
    /// Replicas of one slice of the model, with different data.
    Dp,
    /// Data and context together: everyone whose gradients of a dense parameter are summed.
    DpCp,
    /// The stages of one pipeline.
    Pp,
    /// Slices of one expert.
    Etp,
    /// The experts of one layer.
    Ep,
    /// Replicas of one expert slice: everyone whose gradients of an expert parameter are summed.
    Edp,
    /// Everything that shares one pipeline stage.
    Stage,
}

impl Axis {
    /// Every axis.
    pub const ALL: [Axis; 9] =
        [Axis::Tp, Axis::Cp, Axis::Dp, Axis::DpCp, Axis::Pp, Axis::Etp, Axis::Ep, Axis::Edp, Axis::Stage];

    /// The short name, used for communicator groups.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tp => "tp",
            Axis::Cp => "cp",
            Axis::Dp => "dp",
            Axis::DpCp => "dp-cp",
            Axis::Pp => "pp",
            Axis::Etp => "etp",
            Axis::Ep => "ep",
            Axis::Edp => "edp",
            Axis::Stage => "stage",
        }
    }
}

/// A rank's place in both grids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Coord {
    pub tp: usize,
    pub cp: usize,
    pub dp: usize,
    pub pp: usize,
    pub etp: usize,
    pub ep: usize,
    pub edp: usize,
}

/// A valid layout, and the arithmetic of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    layout: Layout,
    edp: usize,
}

impl Grid {
    /// # Errors
    /// [`Error::Layout`] if a size is 0, or the experts' grid does not cover the same ranks as the dense one.
    pub fn new(layout: Layout) -> Result<Grid> {
        let refuse = |what: String| Error::Layout { layout: layout.to_string(), what };
        let Layout { tp, cp, ep, dp, pp, etp } = layout;
        if [tp, cp, ep, dp, pp, etp].contains(&0) {
            return Err(refuse("every size must be at least 1".into()));
        }
        let dense = tp * cp * dp;
        if !dense.is_multiple_of(etp * ep) {
            let what =
                format!("etp * ep = {} does not divide tp * cp * dp = {dense}; choose ep so that it does", etp * ep);
            return Err(refuse(what));
        }
        Ok(Grid { layout, edp: dense / (etp * ep) })
    }

    /// The sizes.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Replicas of each expert slice.
    pub fn edp(&self) -> usize {
        self.edp
    }

    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        self.layout.world_size()
    }

    /// Members of every group along `axis`.
    pub fn axis_size(&self, axis: Axis) -> usize {
        let l = &self.layout;
        match axis {
            Axis::Tp => l.tp,
            Axis::Cp => l.cp,
            Axis::Dp => l.dp,
            Axis::DpCp => l.dp * l.cp,
            Axis::Pp => l.pp,
            Axis::Etp => l.etp,
            Axis::Ep => l.ep,
            Axis::Edp => self.edp,
            Axis::Stage => l.tp * l.cp * l.dp,
        }
    }

    /// Where `rank` stands.
    ///
    /// # Errors
    /// [`Error::Layout`] if there is no such rank.
    pub fn coord(&self, rank: usize) -> Result<Coord> {
        if rank >= self.world_size() {
            let what = format!("rank {rank} is not among its {} ranks", self.world_size());
            return Err(Error::Layout { layout: self.layout.to_string(), what });
        }
        let l = &self.layout;
        let stage = l.tp * l.cp * l.dp;
        let within = rank % stage;
        Ok(Coord {
            tp: within % l.tp,
            cp: within / l.tp % l.cp,
            dp: within / (l.tp * l.cp),
            pp: rank / stage,
            etp: within % l.etp,
            ep: within / l.etp % l.ep,
            edp: within / (l.etp * l.ep),
        })
    }

    /// The rank at a place of the dense grid; the expert coordinates of `at` are ignored.
    pub fn rank(&self, at: &Coord) -> usize {
        let l = &self.layout;
        at.tp + l.tp * (at.cp + l.cp * (at.dp + l.dp * at.pp))
    }

    /// The members of `rank`'s group along `axis`, ascending, `rank` among them.
    ///
    /// # Errors
    /// [`Error::Layout`] if there is no such rank.
    pub fn group_of(&self, axis: Axis, rank: usize) -> Result<Vec<usize>> {
        let me = self.coord(rank)?;
        let mut members = Vec::with_capacity(self.axis_size(axis));
        for other in 0..self.world_size() {
            let c = self.coord(other)?;
            let together = match axis {
                Axis::Tp => (c.cp, c.dp, c.pp) == (me.cp, me.dp, me.pp),
                Axis::Cp => (c.tp, c.dp, c.pp) == (me.tp, me.dp, me.pp),
                Axis::Dp => (c.tp, c.cp, c.pp) == (me.tp, me.cp, me.pp),
                Axis::DpCp => (c.tp, c.pp) == (me.tp, me.pp),
                Axis::Pp => (c.tp, c.cp, c.dp) == (me.tp, me.cp, me.dp),
                Axis::Etp => (c.ep, c.edp, c.pp) == (me.ep, me.edp, me.pp),
                Axis::Ep => (c.etp, c.edp, c.pp) == (me.etp, me.edp, me.pp),
                Axis::Edp => (c.etp, c.ep, c.pp) == (me.etp, me.ep, me.pp),
                Axis::Stage => c.pp == me.pp,
            };
            if together {
                members.push(other);
            }
        }
        Ok(members)
    }

    /// All groups along `axis`, ordered by their first member. They partition the ranks.
    ///
    /// # Errors
    /// None in practice: the ranks come from the grid itself.
    pub fn groups(&self, axis: Axis) -> Result<Vec<Vec<usize>>> {
        let mut groups = Vec::new();
        for rank in 0..self.world_size() {
            let group = self.group_of(axis, rank)?;
            if group.first() == Some(&rank) {
                groups.push(group);
            }
        }
        Ok(groups)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_order_is_megatron_s() {
        // 16 ranks, tp2 cp2 dp2 pp2 with etp1 ep4 edp2.
        let grid = Grid::new(Layout { tp: 2, cp: 2, ep: 4, dp: 2, pp: 2, etp: 1 }).unwrap();
        let c = grid.coord(13).unwrap();
        assert_eq!((c.tp, c.cp, c.dp, c.pp), (1, 0, 1, 1));
        assert_eq!((c.etp, c.ep, c.edp), (0, 1, 1));
        assert_eq!(grid.edp(), 2);
        assert_eq!(grid.group_of(Axis::Tp, 13).unwrap(), [12, 13]);
        assert_eq!(grid.group_of(Axis::Cp, 13).unwrap(), [13, 15]);
        assert_eq!(grid.group_of(Axis::Dp, 13).unwrap(), [9, 13]);
        assert_eq!(grid.group_of(Axis::Pp, 13).unwrap(), [5, 13]);
        assert_eq!(grid.group_of(Axis::Ep, 13).unwrap(), [12, 13, 14, 15]);
        assert_eq!(grid.group_of(Axis::Edp, 13).unwrap(), [9, 13]);
    }

    #[test]
    fn an_expert_grid_that_does_not_fit_is_refused() {
        let error = Grid::new(Layout { dp: 3, ep: 2, ..Layout::default() }).unwrap_err().to_string();
        assert!(error.contains("etp * ep = 2 does not divide tp * cp * dp = 3"), "{error}");
        assert!(Grid::new(Layout { dp: 0, ..Layout::default() }).is_err());
    }

    #[test]
    fn only_tp_and_dp_may_exceed_one_for_now() {
        assert!(Layout::dp_tp(4, 2).supported().is_ok());
        let error = Layout { pp: 2, ..Layout::default() }.supported().unwrap_err().to_string();
        assert!(error.contains("pp must be 1"), "{error}");
        assert!(Layout { cp: 2, ..Layout::default() }.supported().is_err());
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        let small = || prop_oneof![Just(1usize), Just(2), Just(3), Just(4)];
        (small(), small(), small(), small(), small(), small())
            .prop_map(|(tp, cp, ep, dp, pp, etp)| Layout { tp, cp, ep, dp, pp, etp })
            .prop_filter("experts cover the same ranks", |l| Grid::new(*l).is_ok())
    }

    proptest! {
        #[test]
        fn groups_of_every_axis_partition_the_ranks(layout in layouts()) {
            let grid = Grid::new(layout).unwrap();
            for axis in Axis::ALL {
                let groups = grid.groups(axis).unwrap();
                let mut seen = BTreeSet::new();
                for group in &groups {
                    prop_assert_eq!(group.len(), grid.axis_size(axis), "{:?}", axis);
                    for rank in group {
                        prop_assert!(seen.insert(*rank), "rank {} is in two groups of {:?}", rank, axis);
                        prop_assert_eq!(&grid.group_of(axis, *rank).unwrap(), group);
                    }
                }
                prop_assert_eq!(seen.len(), grid.world_size());
            }
        }

        #[test]
        fn rank_and_coordinates_are_inverse_and_both_grids_agree_on_the_stage(layout in layouts()) {
            let grid = Grid::new(layout).unwrap();
            let mut places = BTreeSet::new();
            let mut expert_places = BTreeSet::new();
            for rank in 0..grid.world_size() {
                let c = grid.coord(rank).unwrap();
                prop_assert_eq!(grid.rank(&c), rank);
                places.insert((c.tp, c.cp, c.dp, c.pp));
                expert_places.insert((c.etp, c.ep, c.edp, c.pp));
                let expert = c.etp + layout.etp * (c.ep + layout.ep * (c.edp + grid.edp() * c.pp));
                prop_assert_eq!(expert, rank);
            }
            prop_assert_eq!(places.len(), grid.world_size());
            prop_assert_eq!(expert_places.len(), grid.world_size());
        }

        #[test]
        fn tensor_parallel_neighbours_are_adjacent_and_stages_are_contiguous(layout in layouts()) {
            let grid = Grid::new(layout).unwrap();
            for group in grid.groups(Axis::Tp).unwrap().iter().chain(&grid.groups(Axis::Stage).unwrap()) {
                prop_assert!(group.windows(2).all(|w| w[1] == w[0] + 1));
            }
        }
    }
}
