use tensor::Tensor;

use crate::{Cx, Result, Saved};

/// A layer from activations to activations, `[T, H]` both (`[T / tp, H]` under sequence parallelism).
pub trait Layer: Send + Sync + std::fmt::Debug {
    /// `y`, and in `sv` what the backward passes need.
    fn forward(&self, cx: &Cx, x: Tensor, sv: &mut Saved) -> Result<Tensor>;

    /// `dx` from `dy`. Leaves in `sv` only what `backward_weight` needs.
    fn backward_input(&self, cx: &Cx, dy: Tensor, sv: &mut Saved) -> Result<Tensor>;

    /// Adds the parameter gradients to `cx.grads`. May run any time after `backward_input`.
    fn backward_weight(&self, cx: &Cx, sv: Saved) -> Result<()>;
}
