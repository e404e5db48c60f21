//! RMSNorm over the hidden dimension. Saves what was normed and its `rstd`; dgamma in two stages, so that its sum over
//! tokens has one order.

use tensor::Tensor;
use tensor::ops::{ReduceRows, RmsNormBwd, RmsNormFwd, row_blocks};

use crate::{Cx, Layer, ParamId, Result, Saved};

const H: usize = 0;
const RSTD: usize = 1;
const PARTIAL: usize = 2;

#[derive(Debug)]
pub struct RmsNorm {
    pub weight: ParamId,
    pub eps: f64,
}

impl RmsNorm {
    /// `(norm(x + residual), x + residual)`
    pub fn forward_residual(&self, cx: &Cx, x: &Tensor, residual: &Tensor, sv: &mut Saved) -> Result<(Tensor, Tensor)> {
        let (y, h, rstd) = (cx.act(x.dims())?, cx.act(x.dims())?, cx.stat(&[x.dim(0)])?);
        let (gamma, eps) = (cx.param(self.weight), self.eps);
        cx.be.rmsnorm_fwd(
            cx.stream,
            &RmsNormFwd { x, residual: Some(residual), gamma, eps, y: &y, h: Some(&h), rstd: &rstd },
        )?;
        sv.put(H, &h);
        sv.put(RSTD, &rstd);
        Ok((y, h))
    }

    /// Gradient of what was normed: through the norm, plus `dh` that reached it past the norm.
    pub fn backward_residual(&self, cx: &Cx, dy: &Tensor, dh: Option<&Tensor>, sv: &mut Saved) -> Result<Tensor> {
        let (h, rstd) = (sv.take(H, "RmsNorm", "its input")?, sv.take(RSTD, "RmsNorm", "rstd")?);
        let dx = cx.act(dy.dims())?;
        let partial = cx.stat(&[row_blocks(dy.dim(0)), dy.dim(1)])?;
        let gamma = cx.param(self.weight);
        cx.be.rmsnorm_bwd(
            cx.stream,
            &RmsNormBwd { dy, h: &h, rstd: &rstd, gamma, dh, dx: &dx, dgamma_partial: &partial },
        )?;
        sv.put(PARTIAL, &partial);
        Ok(dx)
    }
}

/// The second stage of a per-column gradient.
pub(crate) fn add_partials(cx: &Cx, partial: &Tensor, id: ParamId) -> Result<()> {
    Ok(cx.be.reduce_rows(cx.stream, &ReduceRows { src: partial, dst: cx.grad(id)?, beta: 1.0 })?)
}

impl Layer for RmsNorm {
    fn forward(&self, cx: &Cx, x: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let (y, rstd) = (cx.act(x.dims())?, cx.stat(&[x.dim(0)])?);
        let (gamma, eps) = (cx.param(self.weight), self.eps);
        cx.be.rmsnorm_fwd(cx.stream, &RmsNormFwd { x: &x, residual: None, gamma, eps, y: &y, h: None, rstd: &rstd })?;
        sv.put(H, &x);
        sv.put(RSTD, &rstd);
        Ok(y)
    }

    fn backward_input(&self, cx: &Cx, dy: Tensor, sv: &mut Saved) -> Result<Tensor> {
        self.backward_residual(cx, &dy, None, sv)
    }

    fn backward_weight(&self, cx: &Cx, mut sv: Saved) -> Result<()> {
        add_partials(cx, &sv.take(PARTIAL, "RmsNorm", "dgamma")?, self.weight)
    }
}
