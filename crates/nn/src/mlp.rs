//! Gated feed-forward: fused gate and up projection, SwiGLU, down projection. Saves the fused activation; the SwiGLU
//! output is computed again in the backward pass.

use tensor::Tensor;
use tensor::ops::{SwigluBwd, SwigluFwd};

use crate::{ColumnLinear, Cx, Layer, Result, RowLinear, Saved};

#[derive(Debug)]
pub struct Mlp {
    /// weight `[2, F, H]`: gate, up
    pub gate_up: ColumnLinear,
    /// weight `[H, F]`
    pub down: RowLinear,
}

const GATE_UP: usize = 0;
const C_GATE_UP: usize = 0;
const C_DOWN: usize = 1;

impl Layer for Mlp {
    fn forward(&self, cx: &Cx, x: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let gu = self.gate_up.forward(cx, x, sv.child(C_GATE_UP))?;
        let (t, f) = (gu.dim(0), gu.dim(1) / 2);
        let gate_up = gu.reshape(&[t, 2, f])?;
        let y = cx.act(&[t, f])?;
        cx.be.swiglu_fwd(cx.stream, &SwigluFwd { gate_up: &gate_up, y: &y })?;
        sv.put(GATE_UP, &gate_up);
        let out = self.down.forward(cx, y, sv.child(C_DOWN))?;
        RowLinear::release_input(sv.child(C_DOWN));
        Ok(out)
    }

    fn backward_input(&self, cx: &Cx, dy: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let d_act = self.down.backward_input(cx, dy, sv.child(C_DOWN))?;
        let gate_up = sv.take(GATE_UP, "Mlp", "gate_up")?;
        let (t, f) = (gate_up.dim(0), gate_up.dim(2));
        let (dgate_up, y) = (cx.act(&[t, 2, f])?, cx.act(&[t, f])?);
        cx.be.swiglu_bwd(cx.stream, &SwigluBwd { gate_up: &gate_up, dy: &d_act, dgate_up: &dgate_up, y: Some(&y) })?;
        RowLinear::restore_input(sv.child(C_DOWN), &y);
        self.gate_up.backward_input(cx, dgate_up.reshape(&[t, 2 * f])?, sv.child(C_GATE_UP))
    }

    fn backward_weight(&self, cx: &Cx, mut sv: Saved) -> Result<()> {
        self.down.backward_weight(cx, sv.take_child(C_DOWN))?;
        self.gate_up.backward_weight(cx, sv.take_child(C_GATE_UP))
    }
}
