use tensor::{Backend, Comm, DType, Stream, Tag, Tensor};

use crate::{GradStore, KvView, ParamId, ParamStore, Result, RopeTable, SeqLayout};

/// Where the tokens of a pass come from.
#[derive(Clone, Copy, Debug)]
pub enum Layout<'a> {
    /// Whole sequences, packed.
    Packed(&'a SeqLayout),
    /// New tokens of sequences whose past is in pages.
    Cached(KvView<'a>),
}

/// What a layer may touch: the device, the tensor-parallel group, the parameters, the gradients, the layout.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    pub be: &'a dyn Backend,
    pub stream: Stream,
    /// the tensor-parallel group
    pub tp: &'a dyn Comm,
    /// Between linear layers each rank holds `T / tp` of the tokens (Korthikanti et al., 2022) instead of all of them.
    pub sequence_parallel: bool,
    pub params: &'a ParamStore,
    /// `None` for inference
    pub grads: Option<&'a GradStore>,
    pub layout: Layout<'a>,
    pub rope: &'a RopeTable,
}

impl Cx<'_> {
    pub fn dtype(&self) -> DType {
        self.params.dtype()
    }

    /// Type of statistics.
    pub fn acc(&self) -> DType {
        self.dtype().accumulator()
    }

    pub fn param(&self, id: ParamId) -> &Tensor {
        self.params.get(id)
    }

    pub fn grad(&self, id: ParamId) -> Result<&Tensor> {
        self.grads.map(|g| g.get(id)).ok_or(crate::Error::NoGrads)
    }

    /// An activation in the compute type, contents undefined.
    pub fn act(&self, dims: &[usize]) -> Result<Tensor> {
        Ok(Tensor::empty(self.be, self.dtype(), dims, Tag::Act)?)
    }

    /// A statistic in the accumulator type, contents undefined.
    pub fn stat(&self, dims: &[usize]) -> Result<Tensor> {
        Ok(Tensor::empty(self.be, self.acc(), dims, Tag::Act)?)
    }

    pub fn positions(&self) -> &Tensor {
        match &self.layout {
            Layout::Packed(seq) => seq.positions(),
            Layout::Cached(kv) => &kv.batch.positions,
        }
    }

    /// Whether tokens are sharded between the linear layers.
    pub fn shards_tokens(&self) -> bool {
        self.sequence_parallel && self.tp.size() > 1
    }

    /// Rows `[T / tp, N]` of every rank to `[T, N]`; all of them already without sequence parallelism.
    pub fn gather_tokens(&self, x: Tensor) -> Result<Tensor> {
        if !self.shards_tokens() {
            return Ok(x);
        }
        let full = self.act(&[x.dim(0) * self.tp.size(), x.dim(1)])?;
        self.tp.all_gather(self.stream, &x, &full)?;
        Ok(full)
    }

    /// Sum of the ranks' partial `[T, N]`: this rank's rows of it under sequence parallelism, else all.
    pub fn reduce_tokens(&self, partial: Tensor) -> Result<Tensor> {
        if self.tp.size() == 1 {
            return Ok(partial);
        }
        if self.sequence_parallel {
            let n = self.tp.size();
            if !partial.dim(0).is_multiple_of(n) {
                return Err(crate::Error::Layout(format!(
                    "{} tokens do not divide over tp {n}: pad the layout",
                    partial.dim(0)
                )));
            }
            let mine = self.act(&[partial.dim(0) / n, partial.dim(1)])?;
            self.tp.reduce_scatter(self.be, self.stream, &partial, &mine)?;
            return Ok(mine);
        }
        self.tp.all_reduce(self.be, self.stream, &partial)?;
        Ok(partial)
    }
}
