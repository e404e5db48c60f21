use super::layers::local;
use super::simd::{LANES, exp, fold, simd_fn};
use super::threads::Threads;
use crate::Result;
use crate::ops::*;
use crate::reference::logprob::sample_row;

/// Columns whose sums are kept in f32 before they go to f64: at 250,000 columns a plain f32 sum would lose digits.
const TILE: usize = 1024;
const ROWS: usize = 16;

/// `f` over lanes of a row tile, and the tile's two sums.
#[inline(always)]
fn tile_sums(x: &[f32], temperature: f32, max: f32) -> (f32, f32) {
    let (mut s, mut w) = ([0.0f32; LANES], [0.0f32; LANES]);
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    let mut one = |l: usize, x: f32| {
        let z = x / temperature - max;
        let p = exp(z);
        s[l] += p;
        // A masked logit (-inf) has no mass, and 0 times -inf must not spoil the sum. NaN is not 0 and stays.
        w[l] += if p == 0.0 { 0.0 } else { p * z };
    };
    for c in chunks {
        for l in 0..LANES {
            one(l, c[l]);
        }
    }
    for (l, x) in rest.iter().enumerate() {
        one(l, *x);
    }
    (fold(s), fold(w))
}

simd_fn! {
    fn stats_row(x: &[f32], temperature: f32, target: Option<usize>) -> [f32; 4] {
        let mut m = [f32::NEG_INFINITY; LANES];
        let chunks = x.chunks_exact(LANES);
        let rest = chunks.remainder();
        for c in chunks {
            for l in 0..LANES {
                m[l] = if c[l] > m[l] { c[l] } else { m[l] };
            }
        }
        let mut max = f32::NEG_INFINITY;
        for &v in m.iter().chain(rest) {
            max = if v > max { v } else { max };
        }
        // Division keeps the order, so the largest logit gives the largest x.
        let max = max / temperature;
        let (mut s, mut w) = (0.0f64, 0.0f64);
        for t in x.chunks(TILE) {
            let (ts, tw) = tile_sums(t, temperature, max);
            s += f64::from(ts);
            w += f64::from(tw);
        }
        [max, s as f32, w as f32, target.map_or(f32::NEG_INFINITY, |t| x[t] / temperature)]
    }
}

pub(super) fn stats(threads: &Threads, a: &LogprobStats) -> Result<()> {
    let (n, v) = a.validate()?;
    if n == 0 {
        return Ok(());
    }
    let (x, targets, temp) = (a.logits.read::<f32>()?, a.targets.read::<i32>()?, a.temperature.read::<f32>()?);
    let (mut out, ld) = (a.stats.write::<f32>()?, a.logits.stride(0));
    threads.for_each(out.chunks_mut(4 * ROWS).enumerate(), |(job, out)| {
        for (r, out) in out.chunks_exact_mut(4).enumerate() {
            let i = job * ROWS + r;
            out.copy_from_slice(&stats_row(&x[i * ld..i * ld + v], temp[i], local(targets[i], a.first, v)));
        }
    });
    Ok(())
}

pub(super) fn merge(a: &LogprobMerge) -> Result<()> {
    let (count, n) = a.validate()?;
    let (parts, mut out) = (a.parts.read::<f32>()?, a.stats.write::<f32>()?);
    let row = |r: usize, i: usize| {
        let o = (r * n + i) * 4;
        TokenStats::<f32>::from_row([parts[o], parts[o + 1], parts[o + 2], parts[o + 3]])
    };
    for (i, out) in out.chunks_exact_mut(4).enumerate() {
        out.copy_from_slice(&TokenStats::<f32>::merge_all(0, count, &|r| row(r, i)).row());
    }
    Ok(())
}

simd_fn! {
    fn dlogits_row(x: &mut [f32], temperature: f32, s: &TokenStats, dlogp: f32, dentropy: f32) {
        let (inv, log_sum, entropy) = (1.0 / temperature, s.sum_exp.ln(), s.entropy());
        // Against the maximum first: the log-sum-exp of huge logits has no digits left for the sum.
        if dentropy == 0.0 {
            let c = -dlogp / s.sum_exp * inv;
            for x in x.iter_mut() {
                *x = c * exp(*x / temperature - s.max);
            }
            return;
        }
        let c = -inv / s.sum_exp;
        for x in x.iter_mut() {
            let z = *x / temperature - s.max;
            let p = exp(z);
            let d = dentropy.mul_add(z - log_sum + entropy, dlogp);
            *x = if p == 0.0 { 0.0 } else { c * p * d };
        }
    }
}

pub(super) fn dlogits(threads: &Threads, a: &LogprobDlogits) -> Result<()> {
    let (n, v) = a.validate()?;
    if n == 0 || v == 0 {
        return Ok(());
    }
    let (targets, temp, stats) = (a.targets.read::<i32>()?, a.temperature.read::<f32>()?, a.stats.read::<f32>()?);
    let dlogp = a.dlogp.read::<f32>()?;
    let dentropy = a.dentropy.map(crate::Tensor::read::<f32>).transpose()?;
    let mut x = a.logits.write::<f32>()?;
    threads.for_each(x.chunks_mut(v * ROWS).enumerate(), |(job, rows)| {
        for (r, x) in rows.chunks_exact_mut(v).enumerate() {
            let i = job * ROWS + r;
            let de = dentropy.as_ref().map_or(0.0, |d| d[i]);
            if dlogp[i] == 0.0 && de == 0.0 {
                // No loss here: no gradient, whatever the logits hold.
                x.fill(0.0);
                continue;
            }
            let s = TokenStats::<f32>::from_row([stats[4 * i], stats[4 * i + 1], stats[4 * i + 2], stats[4 * i + 3]]);
            dlogits_row(x, temp[i], &s, dlogp[i], de);
            if let Some(t) = local(targets[i], a.first, v) {
                x[t] += dlogp[i] / temp[i];
            }
        }
    });
    Ok(())
}

pub(super) fn sample(a: &Sample) -> Result<()> {
    let (_, v) = a.validate()?;
    let (x, mut tokens) = (a.logits.read::<f32>()?, a.tokens.write::<i32>()?);
    let mut order = Vec::with_capacity(v);
    for ((row, p), t) in x.chunks_exact(v.max(1)).zip(a.params).zip(tokens.iter_mut()) {
        *t = sample_row(&mut row.iter().map(|&x| f64::from(x)), p, &mut order) as i32;
    }
    Ok(())
}
