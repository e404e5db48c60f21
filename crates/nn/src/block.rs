//! A pre-norm transformer block: `h = x + mixer(norm1(x))`, `y = h + ffn(norm2(h))`. On the residual stream the
//! gradients add; everywhere else they overwrite.

use tensor::Tensor;
use tensor::ops::Add;

use crate::{Cx, Layer, Result, RmsNorm, Saved};

#[derive(Debug)]
pub struct Block {
    pub norm1: RmsNorm,
    pub mixer: Box<dyn Layer>,
    pub norm2: RmsNorm,
    pub ffn: Box<dyn Layer>,
}

const NORM1: usize = 0;
const MIXER: usize = 1;
const NORM2: usize = 2;
const FFN: usize = 3;

impl Layer for Block {
    fn forward(&self, cx: &Cx, x: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let n1 = self.norm1.forward(cx, x.clone(), sv.child(NORM1))?;
        let a = self.mixer.forward(cx, n1, sv.child(MIXER))?;
        let (n2, h) = self.norm2.forward_residual(cx, &a, &x, sv.child(NORM2))?;
        drop((a, x));
        let m = self.ffn.forward(cx, n2, sv.child(FFN))?;
        let out = cx.act(h.dims())?;
        cx.be.add(cx.stream, &Add { a: &h, b: &m, out: &out })?;
        Ok(out)
    }

    fn backward_input(&self, cx: &Cx, dy: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let dn2 = self.ffn.backward_input(cx, dy.clone(), sv.child(FFN))?;
        let dh = self.norm2.backward_residual(cx, &dn2, Some(&dy), sv.child(NORM2))?;
        drop((dn2, dy));
        let dn1 = self.mixer.backward_input(cx, dh.clone(), sv.child(MIXER))?;
        self.norm1.backward_residual(cx, &dn1, Some(&dh), sv.child(NORM1))
    }

    fn backward_weight(&self, cx: &Cx, mut sv: Saved) -> Result<()> {
        self.ffn.backward_weight(cx, sv.take_child(FFN))?;
        self.norm2.backward_weight(cx, sv.take_child(NORM2))?;
        self.mixer.backward_weight(cx, sv.take_child(MIXER))?;
        self.norm1.backward_weight(cx, sv.take_child(NORM1))
    }
}
