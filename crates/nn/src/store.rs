use std::ops::Range;

use tensor::{Backend, DType, Philox, Stream, Tag, Tensor};

use crate::{Init, ParamId, ParamSpec, Rect, Result};

/// Every parameter of a flat buffer starts at a multiple of this many elements.
pub const ALIGN: usize = 64;

/// Where one parameter lies in the flat buffers of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct FlatEntry {
    pub name: String,
    /// the part of the global tensor this rank holds, stored row-major
    pub rect: Rect,
    /// first element
    pub offset: usize,
    pub weight_decay: bool,
}

impl FlatEntry {
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.rect.numel()
    }
}

/// The layout shared by a rank's parameters, gradients, masters and moments, in the order of the stage's specs. Gaps
/// are zero and stay zero.
#[derive(Clone, Debug, PartialEq)]
pub struct FlatLayout {
    pub entries: Vec<FlatEntry>,
    /// elements, a multiple of [`ALIGN`]
    pub len: usize,
}

impl FlatLayout {
    /// # Errors
    /// [`crate::Error::Shard`] when a parameter does not divide over `tp_size`.
    pub fn new(specs: &[ParamSpec], tp_rank: usize, tp_size: usize) -> Result<FlatLayout> {
        let (mut entries, mut len) = (Vec::with_capacity(specs.len()), 0usize);
        for spec in specs {
            let rect = spec.local(tp_rank, tp_size)?;
            let n = rect.numel();
            entries.push(FlatEntry { name: spec.name.clone(), rect, offset: len, weight_decay: spec.weight_decay });
            len = (len + n).next_multiple_of(ALIGN);
        }
        Ok(FlatLayout { entries, len })
    }
}

fn views(flat: &Tensor, layout: &FlatLayout) -> Result<Vec<Tensor>> {
    layout.entries.iter().map(|e| Ok(flat.flat(e.offset, e.rect.numel())?.reshape(&e.rect.shape)?)).collect()
}

/// The weights the layers read: one flat buffer in the compute type, and a view per parameter.
#[derive(Clone, Debug)]
pub struct ParamStore {
    specs: Vec<ParamSpec>,
    layout: FlatLayout,
    flat: Tensor,
    views: Vec<Tensor>,
    tp: (usize, usize),
}

impl ParamStore {
    /// All zeros.
    pub fn new(
        be: &dyn Backend,
        specs: Vec<ParamSpec>,
        dtype: DType,
        tp_rank: usize,
        tp_size: usize,
    ) -> Result<ParamStore> {
        let layout = FlatLayout::new(&specs, tp_rank, tp_size)?;
        let flat = Tensor::zeros(be, dtype, &[layout.len], Tag::Weight)?;
        let views = views(&flat, &layout)?;
        Ok(ParamStore { specs, layout, flat, views, tp: (tp_rank, tp_size) })
    }

    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    pub fn layout(&self) -> &FlatLayout {
        &self.layout
    }

    /// `[layout.len]`, compute type
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    pub fn dtype(&self) -> DType {
        self.flat.dtype()
    }

    /// (rank, size) of the tensor-parallel group this store is a shard for.
    pub fn tp(&self) -> (usize, usize) {
        self.tp
    }

    pub fn get(&self, id: ParamId) -> &Tensor {
        &self.views[id.0]
    }

    pub fn find(&self, name: &str) -> Option<ParamId> {
        self.specs.iter().position(|s| s.name == name).map(ParamId)
    }

    /// Fill with the random initialisation. Each element depends on `seed`, its parameter's name and its global index
    /// alone, so every layout starts from the same model.
    pub fn init_random(&self, be: &dyn Backend, seed: u64) -> Result<()> {
        for (spec, (entry, view)) in self.specs.iter().zip(self.layout.entries.iter().zip(&self.views)) {
            match spec.init {
                Init::Ones => be.fill(Stream::COMPUTE, view, 1.0)?,
                Init::Normal { std } => {
                    let rng = Philox::named(seed, &spec.name);
                    let mut data = vec![0.0; entry.rect.numel()];
                    entry.rect.shared_runs(&Rect::full(&spec.shape), |at, global, n| {
                        for i in 0..n {
                            // Through f32, so that a model in f64 starts from the very weights of one in f32.
                            data[at + i] = f64::from((std * rng.normal((global + i) as u64)) as f32);
                        }
                    });
                    let t = Tensor::from_f64(be, self.dtype(), &data, &entry.rect.shape, Tag::Work)?;
                    be.copy(Stream::COMPUTE, view, &t)?;
                }
            }
        }
        Ok(())
    }
}

/// Main gradients: one flat buffer in the accumulator type with the layout of the parameters.
#[derive(Clone, Debug)]
pub struct GradStore {
    layout: FlatLayout,
    flat: Tensor,
    views: Vec<Tensor>,
}

impl GradStore {
    /// Zeros, in the layout of `params`.
    pub fn new(be: &dyn Backend, params: &ParamStore) -> Result<GradStore> {
        let layout = params.layout.clone();
        let flat = Tensor::zeros(be, params.dtype().accumulator(), &[layout.len], Tag::Grad)?;
        let views = views(&flat, &layout)?;
        Ok(GradStore { layout, flat, views })
    }

    pub fn layout(&self) -> &FlatLayout {
        &self.layout
    }

    /// `[layout.len]`, accumulator type
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    pub fn get(&self, id: ParamId) -> &Tensor {
        &self.views[id.0]
    }

    pub fn zero(&self, be: &dyn Backend, s: Stream) -> Result<()> {
        Ok(be.fill(s, &self.flat, 0.0)?)
    }
}
