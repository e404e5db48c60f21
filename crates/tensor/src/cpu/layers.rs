use super::simd::{dot, exp, simd_fn};
use super::threads::Threads;
use crate::ops::*;
use crate::reference::{checked, get_index};
use crate::{Result, Tensor};

/// Rows of one job.
const ROWS: usize = ROW_BLOCK;

/// Chunks of an optional output, `None` for ever when it is absent.
fn maybe<'a, T>(x: Option<&'a mut [T]>, chunk: usize) -> impl FnMut() -> Option<&'a mut [T]> {
    let mut it = x.map(|x| x.chunks_mut(chunk.max(1)));
    move || it.as_mut().and_then(Iterator::next)
}

pub(super) fn embed_fwd(a: &EmbedFwd) -> Result<()> {
    let (_, v, h) = a.validate()?;
    let (ids, table, mut out) = (a.ids.read::<i32>()?, a.table.read::<f32>()?, a.out.write::<f32>()?);
    for (id, row) in ids.iter().zip(out.chunks_exact_mut(h.max(1))) {
        match local(*id, a.first, v) {
            Some(i) => row.copy_from_slice(&table[i * h..(i + 1) * h]),
            None => row.fill(0.0),
        }
    }
    Ok(())
}

pub(super) fn local(id: i32, first: usize, v: usize) -> Option<usize> {
    usize::try_from(i64::from(id) - first as i64).ok().filter(|&i| i < v)
}

pub(super) fn embed_bwd(a: &EmbedBwd) -> Result<()> {
    let (_, v, h) = a.validate()?;
    let (ids, dout, mut dtable) = (a.ids.read::<i32>()?, a.dout.read::<f32>()?, a.dtable.write::<f32>()?);
    for (id, row) in ids.iter().zip(dout.chunks_exact(h.max(1))) {
        if let Some(i) = local(*id, a.first, v) {
            for (d, g) in dtable[i * h..(i + 1) * h].iter_mut().zip(row) {
                *d += g;
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn rstd_of(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

simd_fn! {
    fn norm_rows(x: &[f32], residual: Option<&[f32]>, gamma: &[f32], eps: f32, y: &mut [f32], h: Option<&mut [f32]>, rstd: &mut [f32]) {
        let w = gamma.len();
        // The residual sum is written first and then read: one code path for the norm itself.
        let x: &[f32] = match (residual, h) {
            (Some(res), Some(h)) => {
                for ((h, x), r) in h.iter_mut().zip(x).zip(res) {
                    *h = x + r;
                }
                h
            }
            _ => x,
        };
        for ((x, y), s) in x.chunks_exact(w).zip(y.chunks_exact_mut(w)).zip(rstd) {
            let r = rstd_of(x, eps);
            *s = r;
            for ((y, x), g) in y.iter_mut().zip(x).zip(gamma) {
                *y = x * r * g;
            }
        }
    }
}

pub(super) fn rmsnorm_fwd(threads: &Threads, a: &RmsNormFwd) -> Result<()> {
    let (_, w) = a.validate()?;
    if w == 0 {
        return Ok(());
    }
    let (x, gamma) = (a.x.read::<f32>()?, a.gamma.read::<f32>()?);
    let residual = a.residual.map(Tensor::read::<f32>).transpose()?;
    let (mut y, mut rstd) = (a.y.write::<f32>()?, a.rstd.write::<f32>()?);
    let mut h = a.h.map(Tensor::write::<f32>).transpose()?;
    let mut next_h = maybe(h.as_deref_mut(), ROWS * w);
    let jobs =
        y.chunks_mut(ROWS * w).zip(rstd.chunks_mut(ROWS)).enumerate().map(|(i, (y, rstd))| (i, y, rstd, next_h()));
    threads.for_each(jobs, |(i, y, rstd, h)| {
        let r = i * ROWS * w..i * ROWS * w + y.len();
        norm_rows(&x[r.clone()], residual.as_deref().map(|x| &x[r]), &gamma, a.eps as f32, y, h, rstd);
    });
    Ok(())
}

/// Gradient of one normed row; `dgamma += dy * x * rstd`.
#[inline(always)]
fn norm_row_bwd(dy: &[f32], x: &[f32], r: f32, gamma: &[f32], dx: &mut [f32], dgamma: &mut [f32]) {
    let n = gamma.len();
    let (dy, x, dx, dgamma) = (&dy[..n], &x[..n], &mut dx[..n], &mut dgamma[..n]);
    let c = super::simd::sum(n, |i| dy[i] * gamma[i] * x[i]) * r * r / n as f32;
    for i in 0..n {
        dx[i] = r * (dy[i] * gamma[i] - x[i] * c);
        dgamma[i] = (dy[i] * r).mul_add(x[i], dgamma[i]);
    }
}

simd_fn! {
    fn norm_rows_bwd(dy: &[f32], h: &[f32], rstd: &[f32], gamma: &[f32], dh: Option<&[f32]>, dx: &mut [f32], dgamma: &mut [f32]) {
        let w = gamma.len();
        dgamma.fill(0.0);
        for (i, dx) in dx.chunks_exact_mut(w).enumerate() {
            let row = i * w..(i + 1) * w;
            norm_row_bwd(&dy[row.clone()], &h[row.clone()], rstd[i], gamma, dx, dgamma);
            if let Some(dh) = dh {
                for (d, e) in dx.iter_mut().zip(&dh[row]) {
                    *d += e;
                }
            }
        }
    }
}

pub(super) fn rmsnorm_bwd(threads: &Threads, a: &RmsNormBwd) -> Result<()> {
    let (_, w) = a.validate()?;
    if w == 0 {
        return Ok(());
    }
    let (dy, h, rstd, gamma) = (a.dy.read::<f32>()?, a.h.read::<f32>()?, a.rstd.read::<f32>()?, a.gamma.read::<f32>()?);
    let dh = a.dh.map(Tensor::read::<f32>).transpose()?;
    let (mut dx, mut partial) = (a.dx.write::<f32>()?, a.dgamma_partial.write::<f32>()?);
    let jobs = dx.chunks_mut(ROWS * w).zip(partial.chunks_mut(w)).enumerate();
    threads.for_each(jobs, |(i, (dx, dgamma))| {
        let r = i * ROWS * w..i * ROWS * w + dx.len();
        let rows = i * ROWS..i * ROWS + dx.len() / w;
        norm_rows_bwd(&dy[r.clone()], &h[r.clone()], &rstd[rows], &gamma, dh.as_deref().map(|x| &x[r]), dx, dgamma);
    });
    Ok(())
}

/// `(a, b) -> (a cos - b sin, b cos + a sin)`; with `sin` negated, its transpose.
#[inline(always)]
fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
    let half = cos.len();
    let (a, b) = x.split_at_mut(half);
    let b = &mut b[..half];
    for i in 0..half {
        let s = sign * sin[i];
        let (x, y) = (a[i], b[i]);
        a[i] = x * cos[i] - y * s;
        b[i] = y * cos[i] + x * s;
    }
}

simd_fn! {
    fn rope_rows(qkv: &[f32], at: &[usize], cos: &[f32], sin: &[f32], gammas: Option<(&[f32], &[f32])>, eps: f32, n: &RopeDims, qk: &mut [f32]) {
        let (d, r) = (n.d, n.r);
        let half = d / 2;
        for (i, &p) in at.iter().enumerate() {
            let (cos, sin) = (&cos[p * half..(p + 1) * half], &sin[p * half..(p + 1) * half]);
            for j in i * n.g..(i + 1) * n.g {
                let src = &qkv[j * (r + 2) * d..(j + 1) * (r + 2) * d];
                let dst = &mut qk[j * (r + 1) * d..(j + 1) * (r + 1) * d];
                for (c, (x, y)) in src.chunks_exact(d).zip(dst.chunks_exact_mut(d)).enumerate() {
                    match gammas {
                        Some((q, k)) => {
                            let (gamma, s) = (if c == r { k } else { q }, rstd_of(x, eps));
                            for ((y, x), g) in y.iter_mut().zip(x).zip(gamma) {
                                *y = x * s * g;
                            }
                        }
                        None => y.copy_from_slice(x),
                    }
                    rotate(y, cos, sin, 1.0);
                }
            }
        }
    }
}

/// Rows of the rotary table, checked.
fn table_rows(op: &'static str, positions: &Tensor, p: usize) -> Result<Vec<usize>> {
    get_index(positions)?.into_iter().map(|i| checked(op, i, p)).collect()
}

pub(super) fn qk_norm_rope_fwd(threads: &Threads, a: &QkNormRopeFwd) -> Result<()> {
    let n = a.validate()?;
    let at = table_rows("qk_norm_rope_fwd", a.positions, n.p)?;
    let (qkv, cos, sin) = (a.qkv.read::<f32>()?, a.cos.read::<f32>()?, a.sin.read::<f32>()?);
    let (qg, kg) = (a.q_gamma.map(Tensor::read::<f32>).transpose()?, a.k_gamma.map(Tensor::read::<f32>).transpose()?);
    let gammas = qg.as_deref().zip(kg.as_deref());
    let mut qk = a.qk.write::<f32>()?;
    let (wide, narrow) = (n.g * (n.r + 2) * n.d, n.g * (n.r + 1) * n.d);
    threads.for_each(qk.chunks_mut((ROWS * narrow).max(1)).enumerate(), |(i, qk)| {
        let rows = i * ROWS..i * ROWS + qk.len() / narrow;
        rope_rows(&qkv[rows.start * wide..rows.end * wide], &at[rows], &cos, &sin, gammas, a.eps as f32, &n, qk);
    });
    Ok(())
}

simd_fn! {
    fn rope_rows_bwd(
        dqkv: &mut [f32], qkv: &[f32], at: &[usize], cos: &[f32], sin: &[f32], gammas: Option<(&[f32], &[f32])>, eps: f32, n: &RopeDims,
        dq_gamma: &mut [f32], dk_gamma: &mut [f32], dn: &mut [f32],
    ) {
        let (d, r) = (n.d, n.r);
        let half = d / 2;
        dq_gamma.fill(0.0);
        dk_gamma.fill(0.0);
        for (i, &p) in at.iter().enumerate() {
            let (cos, sin) = (&cos[p * half..(p + 1) * half], &sin[p * half..(p + 1) * half]);
            for j in i * n.g..(i + 1) * n.g {
                let group = j * (r + 2) * d;
                for c in 0..r + 1 {
                    let o = group + c * d..group + (c + 1) * d;
                    let dx = &mut dqkv[o.clone()];
                    rotate(dx, cos, sin, -1.0);
                    if let Some((q, k)) = gammas {
                        let x = &qkv[o];
                        dn.copy_from_slice(dx);
                        let (gamma, dgamma) = if c == r { (k, &mut *dk_gamma) } else { (q, &mut *dq_gamma) };
                        norm_row_bwd(dn, x, rstd_of(x, eps), gamma, dx, dgamma);
                    }
                }
            }
        }
    }
}

pub(super) fn qk_norm_rope_bwd(threads: &Threads, a: &QkNormRopeBwd) -> Result<()> {
    let n = a.validate()?;
    let at = table_rows("qk_norm_rope_bwd", a.positions, n.p)?;
    let (qkv, cos, sin) = (a.qkv.read::<f32>()?, a.cos.read::<f32>()?, a.sin.read::<f32>()?);
    let (qg, kg) = (a.q_gamma.map(Tensor::read::<f32>).transpose()?, a.k_gamma.map(Tensor::read::<f32>).transpose()?);
    let gammas = qg.as_deref().zip(kg.as_deref());
    let mut dqkv = a.dqkv.write::<f32>()?;
    let (mut dq, mut dk) = (
        a.dq_gamma_partial.map(Tensor::write::<f32>).transpose()?,
        a.dk_gamma_partial.map(Tensor::write::<f32>).transpose()?,
    );
    let (mut next_dq, mut next_dk) = (maybe(dq.as_deref_mut(), n.d), maybe(dk.as_deref_mut(), n.d));
    let wide = n.g * (n.r + 2) * n.d;
    let jobs = dqkv.chunks_mut((ROWS * wide).max(1)).enumerate().map(|(i, x)| (i, x, next_dq(), next_dk()));
    threads.for_each(jobs, |(i, dqkv, dq, dk)| {
        let rows = i * ROWS..i * ROWS + dqkv.len() / wide;
        let qkv = &qkv[rows.start * wide..rows.end * wide];
        let mut dn = vec![0.0; n.d];
        let (dq, dk) = (dq.unwrap_or_default(), dk.unwrap_or_default());
        rope_rows_bwd(dqkv, qkv, &at[rows], &cos, &sin, gammas, a.eps as f32, &n, dq, dk, &mut dn);
    });
    Ok(())
}

simd_fn! {
    fn swiglu_rows(gate_up: &[f32], f: usize, y: &mut [f32]) {
        for (x, y) in gate_up.chunks_exact(2 * f).zip(y.chunks_exact_mut(f)) {
            let (g, u) = x.split_at(f);
            for i in 0..f {
                y[i] = g[i] / (1.0 + exp(-g[i])) * u[i];
            }
        }
    }
}

simd_fn! {
    fn swiglu_rows_bwd(gate_up: &[f32], dy: &[f32], f: usize, dgate_up: &mut [f32], y: Option<&mut [f32]>) {
        for (i, dx) in dgate_up.chunks_exact_mut(2 * f).enumerate() {
            let (g, u) = gate_up[i * 2 * f..(i + 1) * 2 * f].split_at(f);
            let (dg, du) = dx.split_at_mut(f);
            let (u, du, dy) = (&u[..f], &mut du[..f], &dy[i * f..(i + 1) * f]);
            for j in 0..f {
                let s = 1.0 / (1.0 + exp(-g[j]));
                let silu = g[j] * s;
                dg[j] = dy[j] * u[j] * (s + silu * (1.0 - s));
                du[j] = dy[j] * silu;
            }
        }
        if let Some(y) = y {
            for (x, y) in gate_up.chunks_exact(2 * f).zip(y.chunks_exact_mut(f)) {
                let (g, u) = x.split_at(f);
                for i in 0..f {
                    y[i] = g[i] / (1.0 + exp(-g[i])) * u[i];
                }
            }
        }
    }
}

pub(super) fn swiglu_fwd(threads: &Threads, a: &SwigluFwd) -> Result<()> {
    let (_, f) = a.validate()?;
    let (x, mut y) = (a.gate_up.read::<f32>()?, a.y.write::<f32>()?);
    threads.for_each(y.chunks_mut((ROWS * f).max(1)).enumerate(), |(i, y)| {
        let at = i * ROWS * 2 * f;
        swiglu_rows(&x[at..at + 2 * y.len()], f, y);
    });
    Ok(())
}

pub(super) fn swiglu_bwd(threads: &Threads, a: &SwigluBwd) -> Result<()> {
    let (_, f) = a.validate()?;
    let (x, dy, mut dx) = (a.gate_up.read::<f32>()?, a.dy.read::<f32>()?, a.dgate_up.write::<f32>()?);
    let mut y = a.y.map(Tensor::write::<f32>).transpose()?;
    let mut next_y = maybe(y.as_deref_mut(), ROWS * f);
    let jobs = dx.chunks_mut((ROWS * 2 * f).max(1)).enumerate().map(|(i, dx)| (i, dx, next_y()));
    threads.for_each(jobs, |(i, dx, y)| {
        let at = i * ROWS * f;
        swiglu_rows_bwd(&x[2 * at..2 * at + dx.len()], &dy[at..at + dx.len() / 2], f, dx, y);
    });
    Ok(())
}
