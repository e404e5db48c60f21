use std::cell::Cell;

use crate::{Backend, DType, Philox, Result, Stream, Tag, Tensor};

/// Makes the inputs and outputs of a case on one backend. Inputs are the same numbers on every backend: they are
/// rounded to f32 (or to the type under test, if it is narrower by way of bf16 inputs) before use.
pub struct Harness<'a> {
    pub be: &'a dyn Backend,
    pub dtype: DType,
    made: Cell<u64>,
}

/// Outputs of a case by name, as f64.
pub type Outputs = Vec<(&'static str, Vec<f64>)>;

impl<'a> Harness<'a> {
    pub fn new(be: &'a dyn Backend, dtype: DType) -> Self {
        Harness { be, dtype, made: Cell::new(0) }
    }

    pub fn acc(&self) -> DType {
        self.dtype.accumulator()
    }

    fn rng(&self) -> Philox {
        self.made.set(self.made.get() + 1);
        Philox::new(2024, self.made.get())
    }

    /// Normals that every float type under test can hold exactly.
    pub fn data(&self, n: usize) -> Vec<f64> {
        let rng = self.rng();
        (0..n as u64).map(|i| half::bf16::from_f64(rng.normal(i)).to_f64()).collect()
    }

    pub fn from(&self, dtype: DType, data: &[f64], dims: &[usize]) -> Result<Tensor> {
        Tensor::from_f64(self.be, dtype, data, dims, Tag::Work)
    }

    /// Standard normals in the type under test.
    pub fn normal(&self, dims: &[usize]) -> Result<Tensor> {
        self.from(self.dtype, &self.data(dims.iter().product()), dims)
    }

    /// `shift + scale * normal`, in the accumulator type.
    pub fn stat(&self, dims: &[usize], shift: f64, scale: f64) -> Result<Tensor> {
        let x: Vec<f64> = self.data(dims.iter().product()).iter().map(|x| shift + scale * x).collect();
        self.from(self.acc(), &x, dims)
    }

    /// Integers below `n`.
    pub fn ids(&self, dims: &[usize], n: usize) -> Result<Tensor> {
        let rng = self.rng();
        let x: Vec<i32> =
            (0..dims.iter().product::<usize>() as u64).map(|i| (rng.uniform(i) * n as f64) as i32).collect();
        self.ints(&x, dims)
    }

    pub fn ints(&self, x: &[i32], dims: &[usize]) -> Result<Tensor> {
        Tensor::from_slice(self.be, x, dims, Tag::Work)
    }

    /// An output full of NaN: an operation that reads it, or leaves a part of it, shows.
    pub fn poison(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let t = Tensor::empty(self.be, dtype, dims, Tag::Work)?;
        self.be.fill(Stream::COMPUTE, &t, f64::NAN)?;
        Ok(t)
    }

    pub fn out(&self, dims: &[usize]) -> Result<Tensor> {
        self.poison(self.dtype, dims)
    }

    pub fn out_stat(&self, dims: &[usize]) -> Result<Tensor> {
        self.poison(self.acc(), dims)
    }

    pub fn read(&self, t: &Tensor) -> Result<Vec<f64>> {
        t.to_f64(self.be)
    }
}

/// `|a - b| / |b|`; infinite when the lengths differ.
pub(super) fn relative(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    // Equal infinities (the target of a shard that does not hold it) are no difference.
    let d: f64 = a.iter().zip(b).map(|(x, y)| if x == y { 0.0 } else { (x - y) * (x - y) }).sum();
    let n: f64 = b.iter().filter(|x| x.is_finite()).map(|x| x * x).sum();
    d.sqrt() / n.sqrt().max(1e-30)
}

/// How many values differ in their bits (as f64, which every type fits in).
pub(super) fn differing(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    a.iter().zip(b).filter(|(x, y)| x.to_bits() != y.to_bits()).count() as f64
}
