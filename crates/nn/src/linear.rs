//! Linear layers without bias, `y = x W^T` with `W [N, K]`, in the two tensor-parallel forms of Megatron-LM (Shoeybi
//! et al., 2019). A column layer cuts N and takes whole tokens; a row layer cuts K and sums its outputs over the ranks.

use tensor::Tensor;
use tensor::ops::{Axpy, Gemm};

use crate::{Cx, Layer, ParamId, Result, Saved, blocks};

const X: usize = 0;
const DY: usize = 1;
/// Shortest block of a row layer's inputs: a shorter product is all overhead.
const BLOCK: usize = 32;

/// `W` as a matrix: a fused parameter may have more dimensions, of which the last is K.
fn matrix(w: &Tensor) -> Result<Tensor> {
    let k = w.dim(w.rank() - 1);
    Ok(w.reshape(&[w.numel() / k, k])?)
}

fn gemm(cx: &Cx, a: &Tensor, ta: bool, b: &Tensor, tb: bool, d: &Tensor, beta: f64) -> Result<()> {
    Ok(cx.be.gemm(cx.stream, &Gemm { a, ta, b, tb, d, alpha: 1.0, beta })?)
}

/// `x W^T`
pub(crate) fn forward(cx: &Cx, x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let w = matrix(w)?;
    let y = cx.act(&[x.dim(0), w.dim(0)])?;
    gemm(cx, x, false, &w, true, &y, 0.0)?;
    Ok(y)
}

/// `x W^T` where x and W are this rank's part of K, summed block by block.
fn forward_in_blocks(cx: &Cx, x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let ranks = cx.tp.size();
    let w = matrix(w)?;
    let k = w.dim(1);
    let count = blocks::on_each_rank(k * ranks, ranks, BLOCK);
    let width = k / count;
    let mut block = |i: usize| {
        let y = cx.act(&[x.dim(0), w.dim(0)])?;
        gemm(cx, &x.narrow(1, i * width, width)?, false, &w.narrow(1, i * width, width)?, true, &y, 0.0)?;
        Ok(y)
    };
    blocks::in_pairs(0..count, &mut block, &|a, b| {
        cx.be.axpy(cx.stream, &Axpy { alpha: 1.0, x: &b, y: &a })?;
        Ok(a)
    })
}

/// `dy W`
pub(crate) fn grad_input(cx: &Cx, dy: &Tensor, w: &Tensor) -> Result<Tensor> {
    let w = matrix(w)?;
    let dx = cx.act(&[dy.dim(0), w.dim(1)])?;
    gemm(cx, dy, false, &w, false, &dx, 0.0)?;
    Ok(dx)
}

/// `dW += dy^T x`
pub(crate) fn grad_weight(cx: &Cx, dy: &Tensor, x: &Tensor, id: ParamId) -> Result<()> {
    let dw = matrix(cx.grad(id)?)?;
    gemm(cx, dy, true, x, false, &dw, 1.0)
}

/// Output features cut over the ranks: `[T / tp, K]` in (all tokens are gathered), `[T, N / tp]` out.
#[derive(Debug)]
pub struct ColumnLinear {
    pub weight: ParamId,
}

impl Layer for ColumnLinear {
    fn forward(&self, cx: &Cx, x: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let x = cx.gather_tokens(x)?;
        sv.put(X, &x);
        forward(cx, &x, cx.param(self.weight))
    }

    fn backward_input(&self, cx: &Cx, dy: Tensor, sv: &mut Saved) -> Result<Tensor> {
        sv.put(DY, &dy);
        cx.reduce_tokens(grad_input(cx, &dy, cx.param(self.weight))?)
    }

    fn backward_weight(&self, cx: &Cx, mut sv: Saved) -> Result<()> {
        let (x, dy) = (sv.take(X, "ColumnLinear", "x")?, sv.take(DY, "ColumnLinear", "dy")?);
        grad_weight(cx, &dy, &x, self.weight)
    }
}

/// Input features cut over the ranks: `[T, K / tp]` in, `[T / tp, N]` out, summed over the ranks.
#[derive(Debug)]
pub struct RowLinear {
    pub weight: ParamId,
}

impl RowLinear {
    /// Leave the input out of `sv`, to be given back by `restore_input`: for an input that is cheap to compute again.
    pub(crate) fn release_input(sv: &mut Saved) {
        sv.release(X);
    }

    pub(crate) fn restore_input(sv: &mut Saved, x: &Tensor) {
        sv.put(X, x);
    }
}

impl Layer for RowLinear {
    fn forward(&self, cx: &Cx, x: Tensor, sv: &mut Saved) -> Result<Tensor> {
        sv.put(X, &x);
        cx.reduce_tokens(forward_in_blocks(cx, &x, cx.param(self.weight))?)
    }

    fn backward_input(&self, cx: &Cx, dy: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let dy = cx.gather_tokens(dy)?;
        sv.put(DY, &dy);
        grad_input(cx, &dy, cx.param(self.weight))
    }

    fn backward_weight(&self, cx: &Cx, mut sv: Saved) -> Result<()> {
        let (x, dy) = (sv.take(X, "RowLinear", "x")?, sv.take(DY, "RowLinear", "dy")?);
        grad_weight(cx, &dy, &x, self.weight)
    }
}
