use super::{checked, get, get_index, put};
use crate::Result;
use crate::ops::*;

pub(crate) fn add(a: &Add) -> Result<()> {
    a.validate()?;
    let (x, y) = (get(a.a)?, get(a.b)?);
    put(a.out, &x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<_>>())
}

pub(crate) fn add_bias(a: &AddBias) -> Result<()> {
    let (_, n) = a.validate()?;
    let (x, b) = (get(a.x)?, get(a.bias)?);
    put(a.x, &x.iter().enumerate().map(|(i, x)| x + b[i % n]).collect::<Vec<_>>())
}

pub(crate) fn axpy(a: &Axpy) -> Result<()> {
    a.validate()?;
    let (x, y) = (get(a.x)?, get(a.y)?);
    put(a.y, &x.iter().zip(&y).map(|(x, y)| y + a.alpha * x).collect::<Vec<_>>())
}

pub(crate) fn scale(a: &Scale) -> Result<()> {
    a.validate()?;
    put(a.x, &get(a.x)?.iter().map(|x| x * a.alpha).collect::<Vec<_>>())
}

pub(crate) fn cast(a: &Cast) -> Result<()> {
    a.validate()?;
    put(a.dst, &get(a.src)?)
}

pub(crate) fn gather_rows(a: &GatherRows) -> Result<()> {
    let (rows, n, h) = a.validate()?;
    let (src, index) = (get(a.src)?, get_index(a.index)?);
    let mut out = Vec::with_capacity(n * h);
    for i in index {
        let i = checked("gather_rows", i, rows)?;
        out.extend_from_slice(&src[i * h..(i + 1) * h]);
    }
    put(a.dst, &out)
}

pub(crate) fn scatter_rows(a: &ScatterRows) -> Result<()> {
    let (rows, _, h) = a.validate()?;
    let (src, index, mut dst) = (get(a.src)?, get_index(a.index)?, get(a.dst)?);
    for (k, i) in index.into_iter().enumerate() {
        let i = checked("scatter_rows", i, rows)?;
        dst[i * h..(i + 1) * h].copy_from_slice(&src[k * h..(k + 1) * h]);
    }
    put(a.dst, &dst)
}

pub(crate) fn reduce_rows(a: &ReduceRows) -> Result<()> {
    let (b, n) = a.validate()?;
    let src = get(a.src)?;
    let mut dst = if a.beta == 0.0 { vec![0.0; n] } else { get(a.dst)?.iter().map(|x| x * a.beta).collect() };
    for i in 0..b {
        for j in 0..n {
            dst[j] += src[i * n + j];
        }
    }
    put(a.dst, &dst)
}

pub(crate) fn sum_sq(a: &SumSq) -> Result<()> {
    a.validate()?;
    let sum: f64 = get(a.x)?.chunks(SumSq::BLOCK).map(|c| c.iter().map(|x| x * x).sum::<f64>()).sum();
    put(a.out, &[sum])
}

pub(crate) fn nonfinite(a: &Nonfinite) -> Result<()> {
    a.validate()?;
    put(a.out, &[get(a.x)?.iter().filter(|x| !x.is_finite()).count() as f64])
}

pub(crate) fn adamw(a: &AdamW) -> Result<()> {
    let n = a.validate()?;
    let (mut w, mut m, mut v, g) = (get(a.master)?, get(a.m)?, get(a.v)?, get(a.grad)?);
    let c1 = 1.0 - a.beta1.powf(a.step as f64);
    let c2 = (1.0 - a.beta2.powf(a.step as f64)).sqrt();
    for i in 0..n {
        let gi = g[i] * a.grad_scale;
        w[i] *= 1.0 - a.lr * a.weight_decay;
        m[i] = a.beta1 * m[i] + (1.0 - a.beta1) * gi;
        v[i] = a.beta2 * v[i] + (1.0 - a.beta2) * gi * gi;
        w[i] -= a.lr / c1 * m[i] / (v[i].sqrt() / c2 + a.eps);
    }
    put(a.master, &w)?;
    put(a.m, &m)?;
    put(a.v, &v)?;
    match a.param {
        Some(p) => put(p, &w),
        None => Ok(()),
    }
}
