use tensor::ops::Add;
use tensor::{Backend, Comm, DType, Stream, Tag, Tensor};

use crate::{GradStore, KvView, ParamId, ParamStore, Result, RopeTable, SeqLayout, blocks};

/// Fewer elements than this are summed on every rank, after one exchange, instead of a piece on each, after two.
const SMALL: usize = 4096;

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

    /// Sum of the ranks' partial `[T, N]`, in pairs: this rank's rows of it under sequence parallelism, else all.
    pub fn reduce_tokens(&self, partial: Tensor) -> Result<Tensor> {
        let n = self.tp.size();
        if n == 1 {
            return Ok(partial);
        }
        let (rows, width) = (partial.dim(0), partial.dim(1));
        let divides = rows.is_multiple_of(n);
        if self.sequence_parallel && !divides {
            return Err(crate::Error::Layout(format!("{rows} tokens do not divide over tp {n}: pad the layout")));
        }
        if !self.sequence_parallel && (!divides || partial.numel() < SMALL) {
            let all = self.act(&[n, rows, width])?;
            self.tp.all_gather(self.stream, &partial, &all)?;
            return self.sum(&all);
        }
        let pieces = self.act(&[n, rows / n, width])?;
        self.tp.all_to_all(self.stream, &partial, &pieces)?;
        let mine = self.sum(&pieces)?;
        if self.sequence_parallel {
            return Ok(mine);
        }
        self.tp.all_gather(self.stream, &mine, &partial)?;
        Ok(partial)
    }

    /// The sum over the first dimension.
    fn sum(&self, pieces: &Tensor) -> Result<Tensor> {
        blocks::in_pairs(0..pieces.dim(0), &mut |i| Ok(pieces.select(0, i)?), &|a, b| {
            let out = self.act(a.dims())?;
            self.be.add(self.stream, &Add { a: &a, b: &b, out: &out })?;
            Ok(out)
        })
    }
}
