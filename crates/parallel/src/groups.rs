//! The communicators of one rank, split from the world as the grid says.

use std::sync::Arc;

use comm::Group;
use tensor::Comm;

use crate::error::{Error, Result};
use crate::grid::{Axis, Coord, Grid};

/// What a rank needs to talk to the others.
#[derive(Debug, Clone)]
pub struct Groups {
    /// All ranks.
    pub world: Arc<dyn Comm>,
    /// The ranks that share this rank's data and hold the other slices of the model.
    pub tp: Arc<dyn Comm>,
    /// The ranks that hold the same slice and see other data.
    pub dp: Arc<dyn Comm>,
    /// This rank's place.
    pub coord: Coord,
    /// The arithmetic behind it.
    pub grid: Grid,
}

impl Groups {
    /// Splits the world. Nobody waits.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an axis this build cannot run; [`Error::Layout`] if the world has another size.
    pub fn new(world: Group, grid: Grid) -> Result<Groups> {
        grid.layout().supported()?;
        if world.size() != grid.world_size() {
            let what = format!("needs {} ranks, the world has {}", grid.world_size(), world.size());
            return Err(Error::Layout { layout: grid.layout().to_string(), what });
        }
        let rank = world.rank();
        let split = |axis: Axis| -> Result<Arc<dyn Comm>> {
            Ok(Arc::new(world.split(axis.name(), &grid.group_of(axis, rank)?)?))
        };
        let (tp, dp) = (split(Axis::Tp)?, split(Axis::Dp)?);
        Ok(Groups { tp, dp, coord: grid.coord(rank)?, grid, world: Arc::new(world) })
    }
}
