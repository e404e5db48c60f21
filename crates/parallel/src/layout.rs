//! How many ranks share what: the numbers of `spec.trainer.parallelism`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

fn one() -> usize {
    1
}

/// Sizes of the parallel dimensions, in Megatron-LM's names. `etp` is the tensor parallelism inside experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Layout {
    /// Tensor parallel (with sequence parallel): each rank holds a slice of every large matrix.
    #[serde(default = "one")]
    pub tp: usize,
    /// Context parallel: each rank holds a part of every sequence.
    #[serde(default = "one")]
    pub cp: usize,
    /// Expert parallel: each rank holds some experts of every layer.
    #[serde(default = "one")]
    pub ep: usize,
    /// Data parallel: each rank sees other sequences; the optimizer state is divided among them.
    #[serde(default = "one")]
    pub dp: usize,
    /// Pipeline parallel: each rank holds some layers.
    #[serde(default = "one")]
    pub pp: usize,
    /// Tensor parallel inside an expert.
    #[serde(default = "one")]
    pub etp: usize,
}

impl Default for Layout {
    fn default() -> Self {
        Layout { tp: 1, cp: 1, ep: 1, dp: 1, pp: 1, etp: 1 }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { tp, cp, ep, dp, pp, etp } = self;
        write!(f, "tp{tp} cp{cp} ep{ep} dp{dp} pp{pp}")?;
        if *etp != 1 {
            write!(f, " etp{etp}")?;
        }
        Ok(())
    }
}

impl Layout {
    /// Data and tensor parallel only.
    pub fn dp_tp(dp: usize, tp: usize) -> Layout {
        Layout { dp, tp, ..Layout::default() }
    }

    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        self.tp * self.cp * self.dp * self.pp
    }

    /// Refuses what this build cannot run.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names the first axis.
    pub fn supported(&self) -> Result<()> {
        let axes = [("cp", self.cp), ("ep", self.ep), ("pp", self.pp), ("etp", self.etp)];
        match axes.into_iter().find(|(_, size)| *size != 1) {
            Some((axis, _)) => Err(Error::Unsupported { layout: self.to_string(), axis }),
            None => Ok(()),
        }
    }
}
