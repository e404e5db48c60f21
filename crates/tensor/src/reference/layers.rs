use super::{checked, get, get_index, put};
use crate::ops::*;
use crate::{Result, Tensor};

pub(crate) fn gemm(a: &Gemm) -> Result<()> {
    let GemmDims { m, n, k } = a.validate()?;
    let (x, y) = (get(a.a)?, get(a.b)?);
    let mut d = if a.beta == 0.0 { vec![0.0; m * n] } else { get(a.d)?.iter().map(|v| v * a.beta).collect() };
    for i in 0..m {
        for j in 0..n {
            let mut sum = 0.0;
            for l in 0..k {
                let xa = if a.ta { x[l * m + i] } else { x[i * k + l] };
                let yb = if a.tb { y[j * k + l] } else { y[l * n + j] };
                sum += xa * yb;
            }
            d[i * n + j] += a.alpha * sum;
        }
    }
    put(a.d, &d)
}

pub(crate) fn embed_fwd(a: &EmbedFwd) -> Result<()> {
    let (t, v, h) = a.validate()?;
    let (ids, table) = (get_index(a.ids)?, get(a.table)?);
    let mut out = vec![0.0; t * h];
    for i in 0..t {
        let row = ids[i] - a.first as i64;
        if (0..v as i64).contains(&row) {
            let row = row as usize;
            out[i * h..(i + 1) * h].copy_from_slice(&table[row * h..(row + 1) * h]);
        }
    }
    put(a.out, &out)
}

pub(crate) fn embed_bwd(a: &EmbedBwd) -> Result<()> {
    let (t, v, h) = a.validate()?;
    let (ids, dout, mut dtable) = (get_index(a.ids)?, get(a.dout)?, get(a.dtable)?);
    for i in 0..t {
        let row = ids[i] - a.first as i64;
        if (0..v as i64).contains(&row) {
            for j in 0..h {
                dtable[row as usize * h + j] += dout[i * h + j];
            }
        }
    }
    put(a.dtable, &dtable)
}

/// `1 / rms` of a row.
fn rstd_of(x: &[f64], eps: f64) -> f64 {
    1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + eps).sqrt()
}

/// Gradient of one normed row; `dgamma += dy * x * rstd`.
fn norm_row_bwd(dy: &[f64], x: &[f64], rstd: f64, gamma: &[f64], dgamma: &mut [f64]) -> Vec<f64> {
    let n = x.len() as f64;
    let dot: f64 = dy.iter().zip(gamma).zip(x).map(|((d, g), x)| d * g * x).sum();
    for ((dg, d), x) in dgamma.iter_mut().zip(dy).zip(x) {
        *dg += d * x * rstd;
    }
    dy.iter().zip(gamma).zip(x).map(|((d, g), x)| rstd * (d * g - x * rstd * rstd * dot / n)).collect()
}

pub(crate) fn rmsnorm_fwd(a: &RmsNormFwd) -> Result<()> {
    let (t, h) = a.validate()?;
    let (mut x, gamma) = (get(a.x)?, get(a.gamma)?);
    if let (Some(res), Some(out)) = (a.residual, a.h) {
        for (x, r) in x.iter_mut().zip(get(res)?) {
            *x += r;
        }
        put(out, &x)?;
    }
    let (mut y, mut rstd) = (vec![0.0; t * h], vec![0.0; t]);
    for i in 0..t {
        let row = &x[i * h..(i + 1) * h];
        rstd[i] = rstd_of(row, a.eps);
        for j in 0..h {
            y[i * h + j] = row[j] * rstd[i] * gamma[j];
        }
    }
    put(a.y, &y)?;
    put(a.rstd, &rstd)
}

pub(crate) fn rmsnorm_bwd(a: &RmsNormBwd) -> Result<()> {
    let (t, h) = a.validate()?;
    let (dy, x, rstd, gamma) = (get(a.dy)?, get(a.h)?, get(a.rstd)?, get(a.gamma)?);
    let extra = a.dh.map(get).transpose()?;
    let (mut dx, mut partial) = (vec![0.0; t * h], vec![0.0; row_blocks(t) * h]);
    for i in 0..t {
        let r = i * h..(i + 1) * h;
        let b = i / ROW_BLOCK * h;
        let row = norm_row_bwd(&dy[r.clone()], &x[r.clone()], rstd[i], &gamma, &mut partial[b..b + h]);
        dx[r.clone()].copy_from_slice(&row);
        if let Some(e) = &extra {
            dx[r.clone()].iter_mut().zip(&e[r]).for_each(|(d, e)| *d += e);
        }
    }
    put(a.dx, &dx)?;
    put(a.dgamma_partial, &partial)
}

pub(crate) fn qk_norm_rope_fwd(a: &QkNormRopeFwd) -> Result<()> {
    let RopeDims { t, g, r, d, p } = a.validate()?;
    let (qkv, pos, cos, sin) = (get(a.qkv)?, get_index(a.positions)?, get(a.cos)?, get(a.sin)?);
    let gammas = [a.q_gamma.map(get).transpose()?, a.k_gamma.map(get).transpose()?];
    let mut qk = vec![0.0; t * g * (r + 1) * d];
    for i in 0..t {
        let at = checked("qk_norm_rope_fwd", pos[i], p)?;
        for j in 0..g {
            for c in 0..r + 1 {
                let src = ((i * g + j) * (r + 2) + c) * d;
                let mut row = qkv[src..src + d].to_vec();
                if let Some(gamma) = &gammas[usize::from(c == r)] {
                    let s = rstd_of(&row, a.eps);
                    row.iter_mut().zip(gamma).for_each(|(x, w)| *x = *x * s * w);
                }
                let dst = ((i * g + j) * (r + 1) + c) * d;
                for e in 0..d / 2 {
                    let (co, si) = (cos[at * d / 2 + e], sin[at * d / 2 + e]);
                    qk[dst + e] = row[e] * co - row[e + d / 2] * si;
                    qk[dst + e + d / 2] = row[e + d / 2] * co + row[e] * si;
                }
            }
        }
    }
    put(a.qk, &qk)
}

pub(crate) fn qk_norm_rope_bwd(a: &QkNormRopeBwd) -> Result<()> {
    let RopeDims { t, g, r, d, p } = a.validate()?;
    let (mut dqkv, qkv, pos, cos, sin) = (get(a.dqkv)?, get(a.qkv)?, get_index(a.positions)?, get(a.cos)?, get(a.sin)?);
    let gammas = [a.q_gamma.map(get).transpose()?, a.k_gamma.map(get).transpose()?];
    let mut partial = [vec![0.0; row_blocks(t) * d], vec![0.0; row_blocks(t) * d]];
    for i in 0..t {
        let at = checked("qk_norm_rope_bwd", pos[i], p)?;
        for j in 0..g {
            for c in 0..r + 1 {
                let o = ((i * g + j) * (r + 2) + c) * d;
                let mut dn = vec![0.0; d];
                for e in 0..d / 2 {
                    let (co, si) = (cos[at * d / 2 + e], sin[at * d / 2 + e]);
                    let (da, db) = (dqkv[o + e], dqkv[o + e + d / 2]);
                    dn[e] = da * co + db * si;
                    dn[e + d / 2] = db * co - da * si;
                }
                let which = usize::from(c == r);
                if let Some(gamma) = &gammas[which] {
                    let x = &qkv[o..o + d];
                    let b = i / ROW_BLOCK * d;
                    dn = norm_row_bwd(&dn, x, rstd_of(x, a.eps), gamma, &mut partial[which][b..b + d]);
                }
                dqkv[o..o + d].copy_from_slice(&dn);
            }
        }
    }
    put(a.dqkv, &dqkv)?;
    for (t, p) in [a.dq_gamma_partial, a.dk_gamma_partial].into_iter().zip(&partial) {
        if let Some(t) = t {
            put(t, p)?;
        }
    }
    Ok(())
}

fn halves(x: &Tensor, t: usize, f: usize) -> Result<Vec<(f64, f64)>> {
    let x = get(x)?;
    Ok((0..t * f).map(|i| (x[i / f * 2 * f + i % f], x[i / f * 2 * f + f + i % f])).collect())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn swiglu_fwd(a: &SwigluFwd) -> Result<()> {
    let (t, f) = a.validate()?;
    let y: Vec<f64> = halves(a.gate_up, t, f)?.iter().map(|(g, u)| g * sigmoid(*g) * u).collect();
    put(a.y, &y)
}

pub(crate) fn swiglu_bwd(a: &SwigluBwd) -> Result<()> {
    let (t, f) = a.validate()?;
    let (x, dy) = (halves(a.gate_up, t, f)?, get(a.dy)?);
    let mut d = vec![0.0; t * 2 * f];
    for i in 0..t * f {
        let ((g, u), o) = (x[i], i / f * 2 * f + i % f);
        let s = sigmoid(g);
        d[o] = dy[i] * u * s * (1.0 + g * (1.0 - s));
        d[o + f] = dy[i] * g * s;
    }
    put(a.dgate_up, &d)?;
    match a.y {
        Some(y) => put(y, &x.iter().map(|(g, u)| g * sigmoid(*g) * u).collect::<Vec<_>>()),
        None => Ok(()),
    }
}
