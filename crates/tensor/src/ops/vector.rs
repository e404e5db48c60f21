use super::check;
use crate::{DType, Result, Tensor};

/// `out = a + b`, any contiguous shape.
#[derive(Debug)]
pub struct Add<'a> {
    pub a: &'a Tensor,
    pub b: &'a Tensor,
    pub out: &'a Tensor,
}

/// `x[t] += bias`.
#[derive(Debug)]
pub struct AddBias<'a> {
    /// `[T, N]`, in place
    pub x: &'a Tensor,
    /// `[N]`
    pub bias: &'a Tensor,
}

/// `y += alpha x`.
#[derive(Debug)]
pub struct Axpy<'a> {
    pub alpha: f64,
    pub x: &'a Tensor,
    /// may have a wider float type than `x`
    pub y: &'a Tensor,
}

/// `x *= alpha`.
#[derive(Debug)]
pub struct Scale<'a> {
    pub x: &'a Tensor,
    pub alpha: f64,
}

/// Element-wise conversion between float types, round to nearest even.
#[derive(Debug)]
pub struct Cast<'a> {
    pub src: &'a Tensor,
    pub dst: &'a Tensor,
}

/// `dst[i] = src[index[i]]`.
#[derive(Debug)]
pub struct GatherRows<'a> {
    /// `[N, H]`
    pub src: &'a Tensor,
    /// `[n]` i32
    pub index: &'a Tensor,
    /// `[n, H]`
    pub dst: &'a Tensor,
}

/// `dst[index[i]] = src[i]`; rows that no index names keep their contents. Indices are distinct.
#[derive(Debug)]
pub struct ScatterRows<'a> {
    /// `[n, H]`
    pub src: &'a Tensor,
    /// `[n]` i32
    pub index: &'a Tensor,
    /// `[N, H]`
    pub dst: &'a Tensor,
}

/// `dst = beta dst + sum over b of src[b]`, added in order b = 0, 1, .. from the first row. With `beta == 0`, `dst` is
/// not read.
#[derive(Debug)]
pub struct ReduceRows<'a> {
    /// `[B, ...]`, contiguous
    pub src: &'a Tensor,
    /// `[...]`, contiguous; as many elements as one row
    pub dst: &'a Tensor,
    pub beta: f64,
}

/// `out = sum x^2` in f64: blocks of [`SumSq::BLOCK`] elements from the start, each summed in a fixed order, then the
/// blocks in order.
#[derive(Debug)]
pub struct SumSq<'a> {
    pub x: &'a Tensor,
    /// `[1]` f64
    pub out: &'a Tensor,
}

impl SumSq<'_> {
    pub const BLOCK: usize = 4096;
}

/// `out = how many elements are NaN or infinite`.
#[derive(Debug)]
pub struct Nonfinite<'a> {
    pub x: &'a Tensor,
    /// `[1]` i32
    pub out: &'a Tensor,
}

impl Add<'_> {
    pub fn validate(&self) -> Result<usize> {
        const OP: &str = "add";
        check::float(OP, "a", self.a)?;
        check::contiguous(OP, "a", self.a)?;
        check::dense(OP, "b", self.b, self.a.dtype(), self.a.dims())?;
        check::dense(OP, "out", self.out, self.a.dtype(), self.a.dims())?;
        Ok(self.a.numel())
    }
}

impl AddBias<'_> {
    /// `(T, N)`
    pub fn validate(&self) -> Result<(usize, usize)> {
        const OP: &str = "add_bias";
        check::float(OP, "x", self.x)?;
        check::rank(OP, "x", self.x, 2)?;
        check::contiguous(OP, "x", self.x)?;
        check::dense(OP, "bias", self.bias, self.x.dtype(), &[self.x.dim(1)])?;
        Ok((self.x.dim(0), self.x.dim(1)))
    }
}

impl Axpy<'_> {
    pub fn validate(&self) -> Result<usize> {
        const OP: &str = "axpy";
        check::float(OP, "x", self.x)?;
        check::contiguous(OP, "x", self.x)?;
        if self.y.dtype() != self.x.dtype() {
            check::dtype(OP, "y", self.y, self.x.dtype().accumulator())?;
        }
        check::dense(OP, "y", self.y, self.y.dtype(), self.x.dims())?;
        Ok(self.x.numel())
    }
}

impl Scale<'_> {
    pub fn validate(&self) -> Result<usize> {
        check::float("scale", "x", self.x)?;
        check::contiguous("scale", "x", self.x)?;
        Ok(self.x.numel())
    }
}

impl Cast<'_> {
    pub fn validate(&self) -> Result<usize> {
        const OP: &str = "cast";
        check::float(OP, "src", self.src)?;
        check::float(OP, "dst", self.dst)?;
        check::contiguous(OP, "src", self.src)?;
        check::dense(OP, "dst", self.dst, self.dst.dtype(), self.src.dims())?;
        Ok(self.src.numel())
    }
}

fn indexed(op: &'static str, many: &Tensor, index: &Tensor, few: &Tensor) -> Result<(usize, usize, usize)> {
    check::rank(op, "table", many, 2)?;
    check::contiguous(op, "table", many)?;
    let (rows, n, h) = (many.dim(0), index.numel(), many.dim(1));
    check::indices(op, "index", index, n)?;
    check::dense(op, "rows", few, many.dtype(), &[n, h])?;
    Ok((rows, n, h))
}

impl GatherRows<'_> {
    /// `(N, n, H)`
    pub fn validate(&self) -> Result<(usize, usize, usize)> {
        indexed("gather_rows", self.src, self.index, self.dst)
    }
}

impl ScatterRows<'_> {
    /// `(N, n, H)`
    pub fn validate(&self) -> Result<(usize, usize, usize)> {
        indexed("scatter_rows", self.dst, self.index, self.src)
    }
}

impl ReduceRows<'_> {
    /// `(B, N)`
    pub fn validate(&self) -> Result<(usize, usize)> {
        const OP: &str = "reduce_rows";
        check::float(OP, "src", self.src)?;
        check::contiguous(OP, "src", self.src)?;
        check::contiguous(OP, "dst", self.dst)?;
        if self.dst.dtype() != self.src.dtype() {
            check::dtype(OP, "dst", self.dst, self.src.dtype().accumulator())?;
        }
        let (b, n) = (self.src.dim(0), self.dst.numel());
        if self.src.rank() == 0 || b * n != self.src.numel() {
            return Err(crate::Error::shape(
                OP,
                format!("src is {:?}, a row of it is not {:?}", self.src.dims(), self.dst.dims()),
            ));
        }
        Ok((b, n))
    }
}

impl SumSq<'_> {
    pub fn validate(&self) -> Result<usize> {
        check::float("sum_sq", "x", self.x)?;
        check::contiguous("sum_sq", "x", self.x)?;
        check::dense("sum_sq", "out", self.out, DType::F64, &[1])?;
        Ok(self.x.numel())
    }
}

impl Nonfinite<'_> {
    pub fn validate(&self) -> Result<usize> {
        check::float("nonfinite", "x", self.x)?;
        check::contiguous("nonfinite", "x", self.x)?;
        check::indices("nonfinite", "out", self.out, 1)?;
        Ok(self.x.numel())
    }
}
