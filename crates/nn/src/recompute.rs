use tensor::Tensor;

use crate::{Cx, Layer, Result, Saved};

/// Keeps only the input of a layer and runs its forward again in the backward pass (Chen et al., 2016). The second
/// forward gives the same bits, so gradients are those of the layer itself.
#[derive(Debug)]
pub struct Recompute<L>(pub L);

const X: usize = 0;

impl<L: Layer> Layer for Recompute<L> {
    fn forward(&self, cx: &Cx, x: Tensor, sv: &mut Saved) -> Result<Tensor> {
        sv.put(X, &x);
        self.0.forward(cx, x, &mut Saved::forget())
    }

    fn backward_input(&self, cx: &Cx, dy: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let x = sv.take(X, "Recompute", "its input")?;
        let mut inner = Saved::keep();
        self.0.forward(cx, x, &mut inner)?;
        let dx = self.0.backward_input(cx, dy, &mut inner)?;
        sv.set_child(0, inner);
        Ok(dx)
    }

    fn backward_weight(&self, cx: &Cx, mut sv: Saved) -> Result<()> {
        self.0.backward_weight(cx, sv.take_child(0))
    }
}
