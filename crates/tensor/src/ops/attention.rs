use super::check;
use crate::{DType, Error, PAGE, Result, Tensor};

/// Causal attention over packed sequences (variable length, grouped queries), online softmax over key tiles of
/// [`PAGE`] tokens counted from position 0 of each sequence (Dao, FlashAttention-2, 2023).
/// `q`, `k`, `v` may be strided views of one fused tensor.
#[derive(Debug)]
pub struct AttnFwd<'a> {
    /// `[T, G, R, D]`
    pub q: &'a Tensor,
    /// `[T, G, D]`
    pub k: &'a Tensor,
    /// `[T, G, D]`
    pub v: &'a Tensor,
    /// `[S + 1]` i32: sequence s is the tokens `cu_seqlens[s]..cu_seqlens[s + 1]`
    pub cu_seqlens: &'a Tensor,
    /// of the longest sequence
    pub max_seqlen: usize,
    pub scale: f64,
    /// `[T, G, R, D]`
    pub o: &'a Tensor,
    /// `[T, G, R]` accumulator type: log-sum-exp of the scaled scores, nats
    pub lse: &'a Tensor,
}

/// Backward of [`AttnFwd`].
#[derive(Debug)]
pub struct AttnBwd<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub v: &'a Tensor,
    /// `[T, G, R, D]`
    pub o: &'a Tensor,
    /// `[T, G, R, D]`
    pub d_o: &'a Tensor,
    pub lse: &'a Tensor,
    pub cu_seqlens: &'a Tensor,
    pub max_seqlen: usize,
    pub scale: f64,
    /// `[T, G, R + 2, D]`: gradients of the queries, the key, the value of each group
    pub dqkv: &'a Tensor,
}

/// Write keys and values into the pages of one layer. Row t goes to token slot `slots[t] % PAGE` of page
/// `slots[t] / PAGE`.
#[derive(Debug)]
pub struct KvWrite<'a> {
    /// `[T, G, D]`
    pub k: &'a Tensor,
    /// `[T, G, D]`
    pub v: &'a Tensor,
    /// [`k_page_dims`]
    pub k_pages: &'a Tensor,
    /// [`v_page_dims`]
    pub v_pages: &'a Tensor,
    /// `[T]` i32
    pub slots: &'a Tensor,
}

/// Attention of new tokens over pages that already hold their keys and values. The new tokens of sequence s are rows
/// `cu_q[s]..cu_q[s + 1]`, its last ones; their bits equal those of [`AttnFwd`] over the whole sequence, however the
/// sequence was cut into steps.
#[derive(Debug)]
pub struct AttnPaged<'a> {
    /// `[T, G, R, D]`
    pub q: &'a Tensor,
    pub k_pages: &'a Tensor,
    pub v_pages: &'a Tensor,
    /// `[S + 1]` i32
    pub cu_q: &'a Tensor,
    /// `[S]` i32: tokens of the sequence in its pages, the new ones included
    pub kv_len: &'a Tensor,
    /// `[S, B]` i32: page of tokens `b * PAGE..`
    pub block_table: &'a Tensor,
    pub scale: f64,
    /// `[T, G, R, D]`
    pub o: &'a Tensor,
}

#[derive(Clone, Copy, Debug)]
pub struct AttnDims {
    pub t: usize,
    pub g: usize,
    pub r: usize,
    pub d: usize,
    pub seqs: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct PagedDims {
    pub t: usize,
    pub g: usize,
    pub r: usize,
    pub d: usize,
    pub seqs: usize,
    pub pages: usize,
    /// columns of the block table
    pub blocks: usize,
}

/// Dimensions of the key pages of one layer. Inside a page a backend lays keys out as it likes (the CPU keeps them
/// transposed); a page may be copied whole, and nothing else.
pub fn k_page_dims(pages: usize, g: usize, d: usize) -> [usize; 4] {
    [pages, g, d, PAGE]
}

/// Dimensions of the value pages of one layer.
pub fn v_page_dims(pages: usize, g: usize, d: usize) -> [usize; 4] {
    [pages, g, PAGE, d]
}

fn qkv(op: &'static str, q: &Tensor, k: &Tensor, v: &Tensor, cu_seqlens: &Tensor) -> Result<AttnDims> {
    check::float(op, "q", q)?;
    check::rank(op, "q", q, 4)?;
    check::inner_unit(op, "q", q)?;
    let (t, g, r, d) = (q.dim(0), q.dim(1), q.dim(2), q.dim(3));
    for (name, x) in [("k", k), ("v", v)] {
        check::dtype(op, name, x, q.dtype())?;
        check::dims(op, name, x, &[t, g, d])?;
        check::inner_unit(op, name, x)?;
    }
    if cu_seqlens.numel() == 0 {
        return Err(Error::shape(op, "cu_seqlens is empty; no sequence at all is [0]"));
    }
    check::indices(op, "cu_seqlens", cu_seqlens, cu_seqlens.numel())?;
    Ok(AttnDims { t, g, r, d, seqs: cu_seqlens.numel() - 1 })
}

impl AttnFwd<'_> {
    pub fn validate(&self) -> Result<AttnDims> {
        const OP: &str = "attn_fwd";
        let n = qkv(OP, self.q, self.k, self.v, self.cu_seqlens)?;
        check::dense(OP, "o", self.o, self.q.dtype(), &[n.t, n.g, n.r, n.d])?;
        check::dense(OP, "lse", self.lse, self.q.dtype().accumulator(), &[n.t, n.g, n.r])?;
        Ok(n)
    }
}

impl AttnBwd<'_> {
    pub fn validate(&self) -> Result<AttnDims> {
        const OP: &str = "attn_bwd";
        let n = qkv(OP, self.q, self.k, self.v, self.cu_seqlens)?;
        check::dense(OP, "o", self.o, self.q.dtype(), &[n.t, n.g, n.r, n.d])?;
        check::dense(OP, "d_o", self.d_o, self.q.dtype(), &[n.t, n.g, n.r, n.d])?;
        check::dense(OP, "lse", self.lse, self.q.dtype().accumulator(), &[n.t, n.g, n.r])?;
        check::dense(OP, "dqkv", self.dqkv, self.q.dtype(), &[n.t, n.g, n.r + 2, n.d])?;
        Ok(n)
    }
}

fn pages(op: &'static str, ty: DType, k_pages: &Tensor, v_pages: &Tensor, g: usize, d: usize) -> Result<usize> {
    let p = k_pages.dim(0);
    check::dense(op, "k_pages", k_pages, ty, &k_page_dims(p, g, d))?;
    check::dense(op, "v_pages", v_pages, ty, &v_page_dims(p, g, d))?;
    Ok(p)
}

impl KvWrite<'_> {
    /// `(T, G, D, pages)`
    pub fn validate(&self) -> Result<(usize, usize, usize, usize)> {
        const OP: &str = "kv_write";
        check::float(OP, "k", self.k)?;
        check::rank(OP, "k", self.k, 3)?;
        let (t, g, d) = (self.k.dim(0), self.k.dim(1), self.k.dim(2));
        check::inner_unit(OP, "k", self.k)?;
        check::dtype(OP, "v", self.v, self.k.dtype())?;
        check::dims(OP, "v", self.v, &[t, g, d])?;
        check::inner_unit(OP, "v", self.v)?;
        check::indices(OP, "slots", self.slots, t)?;
        let p = pages(OP, self.k.dtype(), self.k_pages, self.v_pages, g, d)?;
        Ok((t, g, d, p))
    }
}

impl AttnPaged<'_> {
    pub fn validate(&self) -> Result<PagedDims> {
        const OP: &str = "attn_paged";
        check::float(OP, "q", self.q)?;
        check::rank(OP, "q", self.q, 4)?;
        check::inner_unit(OP, "q", self.q)?;
        let (t, g, r, d) = (self.q.dim(0), self.q.dim(1), self.q.dim(2), self.q.dim(3));
        check::dense(OP, "o", self.o, self.q.dtype(), &[t, g, r, d])?;
        let pages = pages(OP, self.q.dtype(), self.k_pages, self.v_pages, g, d)?;
        check::rank(OP, "block_table", self.block_table, 2)?;
        let (seqs, blocks) = (self.block_table.dim(0), self.block_table.dim(1));
        check::dense(OP, "block_table", self.block_table, DType::I32, &[seqs, blocks])?;
        check::indices(OP, "kv_len", self.kv_len, seqs)?;
        check::indices(OP, "cu_q", self.cu_q, seqs + 1)?;
        Ok(PagedDims { t, g, r, d, seqs, pages, blocks })
    }
}
