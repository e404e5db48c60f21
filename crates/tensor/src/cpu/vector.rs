use super::simd::simd_fn;
use crate::ops::*;
use crate::reference::checked;
use crate::{DType, Result, reference};

simd_fn! {
    fn add_all(a: &[f32], b: &[f32], out: &mut [f32]) {
        for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
            *o = a + b;
        }
    }
}

pub(super) fn add(a: &Add) -> Result<()> {
    a.validate()?;
    add_all(&a.a.read::<f32>()?, &a.b.read::<f32>()?, &mut a.out.write::<f32>()?);
    Ok(())
}

pub(super) fn add_bias(a: &AddBias) -> Result<()> {
    let (_, n) = a.validate()?;
    let (mut x, b) = (a.x.write::<f32>()?, a.bias.read::<f32>()?);
    for row in x.chunks_exact_mut(n.max(1)) {
        for (x, b) in row.iter_mut().zip(b.iter()) {
            *x += b;
        }
    }
    Ok(())
}

simd_fn! {
    fn axpy_all(alpha: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = alpha.mul_add(*x, *y);
        }
    }
}

pub(super) fn axpy(a: &Axpy) -> Result<()> {
    a.validate()?;
    axpy_all(a.alpha as f32, &a.x.read::<f32>()?, &mut a.y.write::<f32>()?);
    Ok(())
}

pub(super) fn scale(a: &Scale) -> Result<()> {
    a.validate()?;
    let alpha = a.alpha as f32;
    a.x.write::<f32>()?.iter_mut().for_each(|x| *x *= alpha);
    Ok(())
}

pub(super) fn cast(a: &Cast) -> Result<()> {
    a.validate()?;
    match (a.src.dtype(), a.dst.dtype()) {
        (DType::F32, DType::BF16) => {
            for (d, s) in a.dst.write::<half::bf16>()?.iter_mut().zip(a.src.read::<f32>()?.iter()) {
                *d = half::bf16::from_f32(*s);
            }
            Ok(())
        }
        (DType::BF16, DType::F32) => {
            for (d, s) in a.dst.write::<f32>()?.iter_mut().zip(a.src.read::<half::bf16>()?.iter()) {
                *d = s.to_f32();
            }
            Ok(())
        }
        (s, d) if s == d => reference::copy(a.dst, a.src),
        _ => reference::vector::cast(a),
    }
}

pub(super) fn gather_rows(a: &GatherRows) -> Result<()> {
    let (rows, _, h) = a.validate()?;
    let size = a.src.dtype().size() * h;
    let (src, index, mut dst) = (a.src.read_bytes()?, a.index.read::<i32>()?, a.dst.write_bytes()?);
    for (i, d) in index.iter().zip(dst.chunks_exact_mut(size.max(1))) {
        let i = checked("gather_rows", i64::from(*i), rows)?;
        d.copy_from_slice(&src[i * size..(i + 1) * size]);
    }
    Ok(())
}

pub(super) fn scatter_rows(a: &ScatterRows) -> Result<()> {
    let (rows, _, h) = a.validate()?;
    let size = a.src.dtype().size() * h;
    let (src, index, mut dst) = (a.src.read_bytes()?, a.index.read::<i32>()?, a.dst.write_bytes()?);
    for (i, s) in index.iter().zip(src.chunks_exact(size.max(1))) {
        let i = checked("scatter_rows", i64::from(*i), rows)?;
        dst[i * size..(i + 1) * size].copy_from_slice(s);
    }
    Ok(())
}

simd_fn! {
    fn add_to(x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

pub(super) fn reduce_rows(a: &ReduceRows) -> Result<()> {
    let (_, n) = a.validate()?;
    let (src, mut dst) = (a.src.read::<f32>()?, a.dst.write::<f32>()?);
    if a.beta == 0.0 {
        dst.fill(0.0);
    } else if a.beta != 1.0 {
        let beta = a.beta as f32;
        dst.iter_mut().for_each(|x| *x *= beta);
    }
    // Columns in cache-sized strips; within a column, rows in order.
    const STRIP: usize = 4096;
    for at in (0..n).step_by(STRIP) {
        let end = n.min(at + STRIP);
        for row in src.chunks_exact(n) {
            add_to(&row[at..end], &mut dst[at..end]);
        }
    }
    Ok(())
}

simd_fn! {
    fn block_sum_sq(x: &[f32]) -> f64 {
        let mut lanes = [0.0f64; 8];
        let chunks = x.chunks_exact(8);
        let rest = chunks.remainder();
        for c in chunks {
            for l in 0..8 {
                let v = f64::from(c[l]);
                lanes[l] = v.mul_add(v, lanes[l]);
            }
        }
        for (l, x) in rest.iter().enumerate() {
            lanes[l] = f64::from(*x).mul_add(f64::from(*x), lanes[l]);
        }
        ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
    }
}

pub(super) fn sum_sq(a: &SumSq) -> Result<()> {
    a.validate()?;
    let total = a.x.read::<f32>()?.chunks(SumSq::BLOCK).fold(0.0, |s, b| s + block_sum_sq(b));
    a.out.write::<f64>()?[0] = total;
    Ok(())
}

simd_fn! {
    fn count_nonfinite(x: &[f32]) -> i32 {
        x.iter().map(|x| i32::from(!x.is_finite())).sum()
    }
}

pub(super) fn nonfinite(a: &Nonfinite) -> Result<()> {
    a.validate()?;
    let n = count_nonfinite(&a.x.read::<f32>()?);
    a.out.write::<i32>()?[0] = n;
    Ok(())
}

struct Coefficients {
    decay: f32,
    grad_scale: f32,
    b1: f32,
    b2: f32,
    step: f32,
    inv_c2: f32,
    eps: f32,
}

simd_fn! {
    fn adamw_all(w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], c: &Coefficients) {
        let n = w.len();
        let (m, v, g) = (&mut m[..n], &mut v[..n], &g[..n]);
        for i in 0..n {
            let gi = g[i] * c.grad_scale;
            m[i] = (1.0 - c.b1).mul_add(gi - m[i], m[i]);
            v[i] = (1.0 - c.b2).mul_add(gi * gi, v[i] * c.b2);
            w[i] = (-c.step).mul_add(m[i] / (v[i].sqrt() * c.inv_c2 + c.eps), w[i] * c.decay);
        }
    }
}

pub(super) fn adamw(a: &AdamW) -> Result<()> {
    a.validate()?;
    let c1 = 1.0 - a.beta1.powf(a.step as f64);
    let c2 = (1.0 - a.beta2.powf(a.step as f64)).sqrt();
    let c = Coefficients {
        decay: (1.0 - a.lr * a.weight_decay) as f32,
        grad_scale: a.grad_scale as f32,
        b1: a.beta1 as f32,
        b2: a.beta2 as f32,
        step: (a.lr / c1) as f32,
        inv_c2: (1.0 / c2) as f32,
        eps: a.eps as f32,
    };
    let mut w = a.master.write::<f32>()?;
    adamw_all(&mut w, &mut a.m.write::<f32>()?, &mut a.v.write::<f32>()?, &a.grad.read::<f32>()?, &c);
    match a.param {
        Some(p) if p.dtype() == DType::F32 => p.write::<f32>()?.copy_from_slice(&w),
        Some(p) if p.dtype() == DType::BF16 => {
            for (d, s) in p.write::<half::bf16>()?.iter_mut().zip(w.iter()) {
                *d = half::bf16::from_f32(*s);
            }
        }
        Some(p) => {
            drop(w);
            return reference::vector::cast(&Cast { src: a.master, dst: p });
        }
        None => {}
    }
    Ok(())
}
