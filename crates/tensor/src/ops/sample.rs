use super::check;
use crate::{Error, Result, Tensor};

/// How to draw one token. `seed` and `position` are the whole state of the draw, so neither batching nor scheduling
/// can change it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleParams {
    /// 0 is greedy (ties go to the lower id)
    pub temperature: f32,
    /// 0 keeps all
    pub top_k: u32,
    /// 1 keeps all
    pub top_p: f32,
    /// 0 keeps all
    pub min_p: f32,
    pub seed: u64,
    pub position: u64,
}

/// Draw one token per row: `x = logit / temperature`, keep the `top_k` largest, then the smallest set whose
/// probability reaches `top_p`, then those with at least `min_p` of the largest probability; invert the cumulative
/// distribution of what is left at a Philox uniform.
#[derive(Debug)]
pub struct Sample<'a> {
    /// `[n, V]`, the whole vocabulary
    pub logits: &'a Tensor,
    /// one per row
    pub params: &'a [SampleParams],
    /// `[n]` i32
    pub tokens: &'a Tensor,
}

impl Sample<'_> {
    /// `(n, V)`
    pub fn validate(&self) -> Result<(usize, usize)> {
        const OP: &str = "sample";
        check::float(OP, "logits", self.logits)?;
        check::rank(OP, "logits", self.logits, 2)?;
        check::contiguous(OP, "logits", self.logits)?;
        let (n, v) = (self.logits.dim(0), self.logits.dim(1));
        check::indices(OP, "tokens", self.tokens, n)?;
        if self.params.len() != n {
            return Err(Error::shape(OP, format!("{} parameters for {n} rows", self.params.len())));
        }
        if v == 0 && n > 0 {
            return Err(Error::shape(OP, "no vocabulary"));
        }
        Ok((n, v))
    }
}
