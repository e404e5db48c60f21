use super::check;
use crate::{Error, Result, Tensor};

/// Rows that share one partial sum of a per-column gradient. Fixed, so that neither threads nor devices change the
/// order of the sum.
pub const ROW_BLOCK: usize = 64;

/// Partial sums that `rows` rows leave.
pub const fn row_blocks(rows: usize) -> usize {
    rows.div_ceil(ROW_BLOCK)
}

/// RMSNorm (Zhang and Sennrich, 2019), with the residual add in front:
/// `h = x + residual`, `rstd = 1 / sqrt(mean(h^2) + eps)`, `y = (h * rstd) * gamma`.
#[derive(Debug)]
pub struct RmsNormFwd<'a> {
    /// `[T, H]`
    pub x: &'a Tensor,
    /// `[T, H]`; with it `h` must be given too
    pub residual: Option<&'a Tensor>,
    /// `[H]`
    pub gamma: &'a Tensor,
    pub eps: f64,
    /// `[T, H]`
    pub y: &'a Tensor,
    /// `[T, H]`, `x + residual`
    pub h: Option<&'a Tensor>,
    /// `[T]` accumulator type
    pub rstd: &'a Tensor,
}

/// Backward of [`RmsNormFwd`]. `dx` is the gradient of `h`, so of `x` and of `residual` alike.
#[derive(Debug)]
pub struct RmsNormBwd<'a> {
    /// `[T, H]`
    pub dy: &'a Tensor,
    /// `[T, H]`, what was normed
    pub h: &'a Tensor,
    /// `[T]`
    pub rstd: &'a Tensor,
    /// `[H]`
    pub gamma: &'a Tensor,
    /// `[T, H]`, gradient that reached `h` by another way; added to `dx`
    pub dh: Option<&'a Tensor>,
    /// `[T, H]`
    pub dx: &'a Tensor,
    /// `[row_blocks(T), H]` accumulator type: first stage of dgamma; `reduce_rows` is the second
    pub dgamma_partial: &'a Tensor,
}

impl RmsNormFwd<'_> {
    /// `(T, H)`
    pub fn validate(&self) -> Result<(usize, usize)> {
        const OP: &str = "rmsnorm_fwd";
        check::float(OP, "x", self.x)?;
        check::rank(OP, "x", self.x, 2)?;
        let (ty, t, h) = (self.x.dtype(), self.x.dim(0), self.x.dim(1));
        check::contiguous(OP, "x", self.x)?;
        if self.residual.is_some() != self.h.is_some() {
            return Err(Error::shape(OP, "residual and h go together"));
        }
        for (name, o) in [("residual", self.residual), ("h", self.h), ("y", Some(self.y))] {
            if let Some(o) = o {
                check::dense(OP, name, o, ty, &[t, h])?;
            }
        }
        check::dense(OP, "gamma", self.gamma, ty, &[h])?;
        check::dense(OP, "rstd", self.rstd, ty.accumulator(), &[t])?;
        Ok((t, h))
    }
}

impl RmsNormBwd<'_> {
    /// `(T, H)`
    pub fn validate(&self) -> Result<(usize, usize)> {
        const OP: &str = "rmsnorm_bwd";
        check::float(OP, "dy", self.dy)?;
        check::rank(OP, "dy", self.dy, 2)?;
        let (ty, t, h) = (self.dy.dtype(), self.dy.dim(0), self.dy.dim(1));
        check::contiguous(OP, "dy", self.dy)?;
        for (name, o) in [("h", Some(self.h)), ("dh", self.dh), ("dx", Some(self.dx))] {
            if let Some(o) = o {
                check::dense(OP, name, o, ty, &[t, h])?;
            }
        }
        check::dense(OP, "gamma", self.gamma, ty, &[h])?;
        check::dense(OP, "rstd", self.rstd, ty.accumulator(), &[t])?;
        check::dense(OP, "dgamma_partial", self.dgamma_partial, ty.accumulator(), &[row_blocks(t), h])?;
        Ok((t, h))
    }
}
