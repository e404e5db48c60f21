use super::check;
use crate::{Error, Result, Tensor};

/// AdamW (Loshchilov and Hutter, 2019) on a flat range, in PyTorch's order of operations:
/// `w *= 1 - lr wd`, `g = grad * grad_scale`, `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
/// `w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)`.
#[derive(Debug)]
pub struct AdamW<'a> {
    /// `[n]` accumulator type
    pub master: &'a Tensor,
    pub m: &'a Tensor,
    pub v: &'a Tensor,
    pub grad: &'a Tensor,
    /// `[n]` compute type: receives the new weights; `None` when the master is what the layers read
    pub param: Option<&'a Tensor>,
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// of this update, from 1
    pub step: u64,
    /// clipping and loss normalisation, folded into one factor
    pub grad_scale: f64,
}

impl AdamW<'_> {
    pub fn validate(&self) -> Result<usize> {
        const OP: &str = "adamw";
        let (n, ty) = (self.master.numel(), self.master.dtype());
        check::float(OP, "master", self.master)?;
        if ty != ty.accumulator() {
            return Err(Error::DType { op: OP, operand: "master", got: ty, expected: "f32 or f64" });
        }
        for (name, t) in [("master", self.master), ("m", self.m), ("v", self.v), ("grad", self.grad)] {
            check::dense(OP, name, t, ty, &[n])?;
        }
        if let Some(p) = self.param {
            check::float(OP, "param", p)?;
            check::dense(OP, "param", p, p.dtype(), &[n])?;
        }
        if self.step == 0 {
            return Err(Error::shape(OP, "step counts from 1"));
        }
        Ok(n)
    }
}
