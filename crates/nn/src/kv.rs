use tensor::ops::{k_page_dims, v_page_dims};
use tensor::{Backend, DType, PAGE, Stream, Tag, Tensor};

use crate::{Error, Result};

/// Keys and values of every layer in pages of [`PAGE`] tokens. Who owns which page is the engine's business.
#[derive(Clone, Debug)]
pub struct KvCache {
    layers: Vec<(Tensor, Tensor)>,
    pages: usize,
}

impl KvCache {
    /// `heads` are the key-value heads of this rank.
    pub fn new(
        be: &dyn Backend,
        layers: usize,
        pages: usize,
        heads: usize,
        head_dim: usize,
        dtype: DType,
    ) -> Result<KvCache> {
        let layers = (0..layers)
            .map(|_| {
                let k = Tensor::zeros(be, dtype, &k_page_dims(pages, heads, head_dim), Tag::Kv)?;
                let v = Tensor::zeros(be, dtype, &v_page_dims(pages, heads, head_dim), Tag::Kv)?;
                Ok((k, v))
            })
            .collect::<Result<_>>()?;
        Ok(KvCache { layers, pages })
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Bytes of one page over all layers.
    pub fn page_bytes(&self) -> usize {
        self.layers.iter().map(|(k, v)| (k.numel() + v.numel()) / self.pages.max(1) * k.dtype().size()).sum()
    }

    /// (key pages, value pages) of a layer of this stage.
    pub fn layer(&self, layer: usize) -> &(Tensor, Tensor) {
        &self.layers[layer]
    }

    /// Copy a page in every layer: how a shared page becomes one's own before it is written.
    pub fn copy_page(&self, be: &dyn Backend, s: Stream, from: usize, to: usize) -> Result<()> {
        if from == to {
            return Ok(());
        }
        for t in self.layers.iter().flat_map(|(k, v)| [k, v]) {
            // Through scratch, because the two pages are parts of one buffer.
            let src = t.narrow(0, from, 1)?;
            let tmp = Tensor::empty(be, t.dtype(), src.dims(), Tag::Work)?;
            be.copy(s, &tmp, &src)?;
            be.copy(s, &t.narrow(0, to, 1)?, &tmp)?;
        }
        Ok(())
    }
}

/// One sequence of a cached step.
#[derive(Clone, Copy, Debug)]
pub struct KvSeq<'a> {
    /// tokens already in its pages
    pub cached: usize,
    /// tokens this step adds: 1 for decode, a chunk for prefill
    pub new: usize,
    /// its pages in order; at least `ceil((cached + new) / PAGE)` of them
    pub pages: &'a [u32],
}

/// The layout of one cached step: the new tokens of all its sequences, one after the other.
#[derive(Clone, Debug)]
pub struct KvBatch {
    tokens: usize,
    max_position: usize,
    pub(crate) cu_q: Tensor,
    pub(crate) kv_len: Tensor,
    pub(crate) block_table: Tensor,
    pub(crate) slots: Tensor,
    pub(crate) positions: Tensor,
}

impl KvBatch {
    /// # Errors
    /// [`Error::Layout`] when a sequence has too few pages.
    pub fn new(be: &dyn Backend, seqs: &[KvSeq]) -> Result<KvBatch> {
        let (mut cu, mut len, mut slots, mut positions) = (vec![0i32], vec![], vec![], vec![]);
        let blocks = seqs.iter().map(|s| (s.cached + s.new).div_ceil(PAGE)).max().unwrap_or(0);
        let mut table = vec![0i32; seqs.len() * blocks];
        for (i, s) in seqs.iter().enumerate() {
            let total = s.cached + s.new;
            let need = total.div_ceil(PAGE);
            if s.pages.len() < need {
                return Err(Error::Layout(format!(
                    "sequence {i} of {total} tokens has {} pages, needs {need}",
                    s.pages.len()
                )));
            }
            for p in s.cached..total {
                slots.push((s.pages[p / PAGE] as usize * PAGE + p % PAGE) as i32);
                positions.push(p as i32);
            }
            for (b, page) in s.pages[..need].iter().enumerate() {
                table[i * blocks + b] = *page as i32;
            }
            len.push(total as i32);
            cu.push(slots.len() as i32);
        }
        let n = slots.len();
        Ok(KvBatch {
            tokens: n,
            max_position: positions.iter().copied().max().unwrap_or(0) as usize,
            cu_q: Tensor::from_slice(be, &cu, &[cu.len()], Tag::Act)?,
            kv_len: Tensor::from_slice(be, &len, &[len.len()], Tag::Act)?,
            block_table: Tensor::from_slice(be, &table, &[seqs.len(), blocks], Tag::Act)?,
            slots: Tensor::from_slice(be, &slots, &[n], Tag::Act)?,
            positions: Tensor::from_slice(be, &positions, &[n], Tag::Act)?,
        })
    }

    /// New tokens over all sequences.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn max_position(&self) -> usize {
        self.max_position
    }
}

/// The pages and the step's layout, as attention sees them.
#[derive(Clone, Copy, Debug)]
pub struct KvView<'a> {
    pub cache: &'a KvCache,
    pub batch: &'a KvBatch,
}
