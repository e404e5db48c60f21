use super::check;
use crate::{Result, Tensor};

/// `out[t] = table[ids[t] - first]`, zeros where the id is outside of the table's rows: each rank of a vocab-parallel
/// embedding gives its part, and the sum over ranks is the lookup.
#[derive(Debug)]
pub struct EmbedFwd<'a> {
    /// `[T]` i32
    pub ids: &'a Tensor,
    /// `[V, H]` float
    pub table: &'a Tensor,
    /// id of row 0 of the table
    pub first: usize,
    /// `[T, H]` float
    pub out: &'a Tensor,
}

/// `dtable[ids[t] - first] += dout[t]`, tokens added in order.
#[derive(Debug)]
pub struct EmbedBwd<'a> {
    /// `[T]` i32
    pub ids: &'a Tensor,
    /// `[T, H]` float
    pub dout: &'a Tensor,
    pub first: usize,
    /// `[V, H]` accumulator type; added to
    pub dtable: &'a Tensor,
}

impl EmbedFwd<'_> {
    /// `(T, V, H)`
    pub fn validate(&self) -> Result<(usize, usize, usize)> {
        const OP: &str = "embed_fwd";
        check::float(OP, "table", self.table)?;
        check::rank(OP, "table", self.table, 2)?;
        check::contiguous(OP, "table", self.table)?;
        let (t, v, h) = (self.ids.numel(), self.table.dim(0), self.table.dim(1));
        check::indices(OP, "ids", self.ids, t)?;
        check::dense(OP, "out", self.out, self.table.dtype(), &[t, h])?;
        Ok((t, v, h))
    }
}

impl EmbedBwd<'_> {
    /// `(T, V, H)`
    pub fn validate(&self) -> Result<(usize, usize, usize)> {
        const OP: &str = "embed_bwd";
        check::float(OP, "dout", self.dout)?;
        check::rank(OP, "dtable", self.dtable, 2)?;
        let (t, v, h) = (self.ids.numel(), self.dtable.dim(0), self.dtable.dim(1));
        check::indices(OP, "ids", self.ids, t)?;
        check::dense(OP, "dout", self.dout, self.dout.dtype(), &[t, h])?;
        check::dense(OP, "dtable", self.dtable, self.dout.dtype().accumulator(), &[v, h])?;
        Ok((t, v, h))
    }
}
