use super::check;
use super::norm::row_blocks;
use crate::{Error, Result, Tensor};

/// Per-head RMSNorm of queries and keys (Qwen3; left out when the gammas are absent, as in Llama), then the rotary
/// embedding of Su et al. (2021) in the half-split form: `(a, b) -> (a cos - b sin, b cos + a sin)` with `a` the first
/// and `b` the second half of the head.
#[derive(Debug)]
pub struct QkNormRopeFwd<'a> {
    /// `[T, G, R + 2, D]`: per key-value head its R queries, its key, its value
    pub qkv: &'a Tensor,
    /// `[T]` i32
    pub positions: &'a Tensor,
    /// `[P, D / 2]` accumulator type
    pub cos: &'a Tensor,
    /// `[P, D / 2]` accumulator type
    pub sin: &'a Tensor,
    /// `[D]`; both or neither
    pub q_gamma: Option<&'a Tensor>,
    /// `[D]`
    pub k_gamma: Option<&'a Tensor>,
    pub eps: f64,
    /// `[T, G, R + 1, D]`: rotated queries and key
    pub qk: &'a Tensor,
}

/// Backward of [`QkNormRopeFwd`]. `dqkv` comes in as the gradient of the rotated queries and keys (and of the values,
/// which pass) and leaves as the gradient of `qkv`.
#[derive(Debug)]
pub struct QkNormRopeBwd<'a> {
    /// `[T, G, R + 2, D]`, in place
    pub dqkv: &'a Tensor,
    /// `[T, G, R + 2, D]`, as it went in
    pub qkv: &'a Tensor,
    pub positions: &'a Tensor,
    pub cos: &'a Tensor,
    pub sin: &'a Tensor,
    pub q_gamma: Option<&'a Tensor>,
    pub k_gamma: Option<&'a Tensor>,
    pub eps: f64,
    /// `[row_blocks(T), D]` accumulator type: first stage; present when the gammas are
    pub dq_gamma_partial: Option<&'a Tensor>,
    /// `[row_blocks(T), D]` accumulator type
    pub dk_gamma_partial: Option<&'a Tensor>,
}

#[derive(Clone, Copy, Debug)]
pub struct RopeDims {
    pub t: usize,
    pub g: usize,
    pub r: usize,
    pub d: usize,
    /// rows of the table
    pub p: usize,
}

fn common(
    op: &'static str,
    qkv: &Tensor,
    positions: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    q_gamma: Option<&Tensor>,
    k_gamma: Option<&Tensor>,
) -> Result<RopeDims> {
    check::float(op, "qkv", qkv)?;
    check::rank(op, "qkv", qkv, 4)?;
    check::contiguous(op, "qkv", qkv)?;
    let (ty, t, g, d) = (qkv.dtype(), qkv.dim(0), qkv.dim(1), qkv.dim(3));
    if qkv.dim(2) < 3 || !d.is_multiple_of(2) {
        return Err(Error::shape(
            op,
            format!("qkv is {:?}, expected [T, G, R + 2, D] with R >= 1 and D even", qkv.dims()),
        ));
    }
    check::indices(op, "positions", positions, t)?;
    check::dense(op, "cos", cos, ty.accumulator(), &[cos.dim(0), d / 2])?;
    check::dense(op, "sin", sin, ty.accumulator(), &[cos.dim(0), d / 2])?;
    if q_gamma.is_some() != k_gamma.is_some() {
        return Err(Error::shape(op, "q_gamma and k_gamma go together"));
    }
    for (name, o) in [("q_gamma", q_gamma), ("k_gamma", k_gamma)] {
        if let Some(o) = o {
            check::dense(op, name, o, ty, &[d])?;
        }
    }
    Ok(RopeDims { t, g, r: qkv.dim(2) - 2, d, p: cos.dim(0) })
}

impl QkNormRopeFwd<'_> {
    pub fn validate(&self) -> Result<RopeDims> {
        const OP: &str = "qk_norm_rope_fwd";
        let n = common(OP, self.qkv, self.positions, self.cos, self.sin, self.q_gamma, self.k_gamma)?;
        check::dense(OP, "qk", self.qk, self.qkv.dtype(), &[n.t, n.g, n.r + 1, n.d])?;
        Ok(n)
    }
}

impl QkNormRopeBwd<'_> {
    pub fn validate(&self) -> Result<RopeDims> {
        const OP: &str = "qk_norm_rope_bwd";
        let n = common(OP, self.qkv, self.positions, self.cos, self.sin, self.q_gamma, self.k_gamma)?;
        check::dense(OP, "dqkv", self.dqkv, self.qkv.dtype(), &[n.t, n.g, n.r + 2, n.d])?;
        for (name, o) in [("dq_gamma_partial", self.dq_gamma_partial), ("dk_gamma_partial", self.dk_gamma_partial)] {
            if o.is_some() != self.q_gamma.is_some() {
                return Err(Error::shape(OP, format!("{name} goes with the gammas")));
            }
            if let Some(o) = o {
                check::dense(OP, name, o, self.qkv.dtype().accumulator(), &[row_blocks(n.t), n.d])?;
            }
        }
        Ok(n)
    }
}
