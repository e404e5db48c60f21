use super::check;
use crate::{Error, Result, Tensor};

/// `D = alpha * op(A) * op(B) + beta * D`, where `op` transposes when its flag is set. Operands are matrices with unit
/// inner stride and any leading dimension. `D` may have a wider float type than `A` and `B` (f32 main-grad from bf16).
///
/// K is summed in one fixed order, so the bits of a row of `D` do not depend on M, on N or on the number of threads.
/// With `beta == 0`, `D` is not read.
#[derive(Debug)]
pub struct Gemm<'a> {
    /// `[M, K]`, or `[K, M]` when `ta`
    pub a: &'a Tensor,
    pub ta: bool,
    /// `[K, N]`, or `[N, K]` when `tb`
    pub b: &'a Tensor,
    pub tb: bool,
    /// `[M, N]`
    pub d: &'a Tensor,
    pub alpha: f64,
    pub beta: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmDims {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl Gemm<'_> {
    pub fn validate(&self) -> Result<GemmDims> {
        const OP: &str = "gemm";
        for (name, t) in [("a", self.a), ("b", self.b), ("d", self.d)] {
            check::float(OP, name, t)?;
            check::rank(OP, name, t, 2)?;
            check::inner_unit(OP, name, t)?;
        }
        check::dtype(OP, "b", self.b, self.a.dtype())?;
        if self.d.dtype() != self.a.dtype() {
            check::dtype(OP, "d", self.d, self.a.dtype().accumulator())?;
        }
        let (m, k) = if self.ta { (self.a.dim(1), self.a.dim(0)) } else { (self.a.dim(0), self.a.dim(1)) };
        let (kb, n) = if self.tb { (self.b.dim(1), self.b.dim(0)) } else { (self.b.dim(0), self.b.dim(1)) };
        if k != kb {
            return Err(Error::shape(
                OP,
                format!("K of a is {k} and of b {kb}: a {:?} ta {}, b {:?} tb {}", self.a, self.ta, self.b, self.tb),
            ));
        }
        check::dims(OP, "d", self.d, &[m, n])?;
        Ok(GemmDims { m, n, k })
    }
}
