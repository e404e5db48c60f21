//! Vocab-parallel token embedding: each rank looks up the rows it holds, zeros elsewhere; the sum over ranks is the
//! lookup, exactly.

use tensor::Tensor;
use tensor::ops::{EmbedBwd, EmbedFwd};

use crate::{Cx, ParamId, Result};

#[derive(Debug)]
pub struct Embedding {
    /// `[V, H]`, vocabulary cut
    pub weight: ParamId,
}

impl Embedding {
    fn first(&self, cx: &Cx) -> usize {
        cx.params.layout().entries[self.weight.0].rect.offset[0]
    }

    /// `ids [T]` i32 to `[T, H]` (`[T / tp, H]` under sequence parallelism).
    pub fn forward(&self, cx: &Cx, ids: &Tensor) -> Result<Tensor> {
        let table = cx.param(self.weight);
        let out = cx.act(&[ids.numel(), table.dim(1)])?;
        cx.be.embed_fwd(cx.stream, &EmbedFwd { ids, table, first: self.first(cx), out: &out })?;
        cx.reduce_tokens(out)
    }

    /// Adds the gradient of the rows that `ids` name.
    pub fn backward_weight(&self, cx: &Cx, ids: &Tensor, dy: Tensor) -> Result<()> {
        let dout = cx.gather_tokens(dy)?;
        let dtable = cx.grad(self.weight)?;
        Ok(cx.be.embed_bwd(cx.stream, &EmbedBwd { ids, dout: &dout, first: self.first(cx), dtable })?)
    }
}
