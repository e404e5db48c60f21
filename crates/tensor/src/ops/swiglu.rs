use super::check;
use crate::{Error, Result, Tensor};

/// `y = silu(gate) * up` (Shazeer, "GLU variants improve Transformer", 2020).
#[derive(Debug)]
pub struct SwigluFwd<'a> {
    /// `[T, 2, F]`: gate, up
    pub gate_up: &'a Tensor,
    /// `[T, F]`
    pub y: &'a Tensor,
}

/// Backward of [`SwigluFwd`].
#[derive(Debug)]
pub struct SwigluBwd<'a> {
    /// `[T, 2, F]`
    pub gate_up: &'a Tensor,
    /// `[T, F]`
    pub dy: &'a Tensor,
    /// `[T, 2, F]`
    pub dgate_up: &'a Tensor,
    /// `[T, F]`: the forward output once more, for the weight gradient behind it
    pub y: Option<&'a Tensor>,
}

fn gate_up(op: &'static str, x: &Tensor) -> Result<(usize, usize)> {
    check::float(op, "gate_up", x)?;
    check::rank(op, "gate_up", x, 3)?;
    if x.dim(1) != 2 {
        return Err(Error::shape(op, format!("gate_up is {:?}, expected [T, 2, F]", x.dims())));
    }
    check::contiguous(op, "gate_up", x)?;
    Ok((x.dim(0), x.dim(2)))
}

impl SwigluFwd<'_> {
    /// `(T, F)`
    pub fn validate(&self) -> Result<(usize, usize)> {
        let (t, f) = gate_up("swiglu_fwd", self.gate_up)?;
        check::dense("swiglu_fwd", "y", self.y, self.gate_up.dtype(), &[t, f])?;
        Ok((t, f))
    }
}

impl SwigluBwd<'_> {
    /// `(T, F)`
    pub fn validate(&self) -> Result<(usize, usize)> {
        const OP: &str = "swiglu_bwd";
        let (t, f) = gate_up(OP, self.gate_up)?;
        let ty = self.gate_up.dtype();
        check::dense(OP, "dy", self.dy, ty, &[t, f])?;
        check::dense(OP, "dgate_up", self.dgate_up, ty, &[t, 2, f])?;
        if let Some(y) = self.y {
            check::dense(OP, "y", y, ty, &[t, f])?;
        }
        Ok((t, f))
    }
}
