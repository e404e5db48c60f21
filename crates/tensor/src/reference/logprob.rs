use super::{get, get_index, put};
use crate::ops::*;
use crate::{Philox, Result};

/// Statistics of one row, `x` already divided by the temperature.
fn row_stats(x: &[f64], target: Option<usize>) -> TokenStats<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut sum_exp, mut sum_exp_x) = (0.0, 0.0);
    for &v in x {
        let p = (v - max).exp();
        // A masked logit (-inf) has no mass, and 0 times -inf must not spoil the sum.
        if p > 0.0 {
            sum_exp += p;
            sum_exp_x += p * (v - max);
        }
    }
    TokenStats { max, sum_exp, sum_exp_x, target: target.map_or(f64::NEG_INFINITY, |t| x[t]) }
}

fn local(target: i64, first: usize, v: usize) -> Option<usize> {
    usize::try_from(target - first as i64).ok().filter(|&i| i < v)
}

pub(crate) fn stats(a: &LogprobStats) -> Result<()> {
    let (n, v) = a.validate()?;
    let (logits, targets, temp) = (get(a.logits)?, get_index(a.targets)?, get(a.temperature)?);
    let mut out = Vec::with_capacity(n * 4);
    for i in 0..n {
        let x: Vec<f64> = logits[i * v..(i + 1) * v].iter().map(|l| l / temp[i]).collect();
        out.extend(row_stats(&x, local(targets[i], a.first, v)).row());
    }
    put(a.stats, &out)
}

pub(crate) fn merge(a: &LogprobMerge) -> Result<()> {
    let (count, n) = a.validate()?;
    let parts = get(a.parts)?;
    let row = |r: usize, i: usize| {
        let o = (r * n + i) * 4;
        TokenStats::<f64>::from_row([parts[o], parts[o + 1], parts[o + 2], parts[o + 3]])
    };
    let mut out = Vec::with_capacity(n * 4);
    for i in 0..n {
        out.extend(TokenStats::<f64>::merge_all(0, count, &|r| row(r, i)).row());
    }
    put(a.stats, &out)
}

pub(crate) fn dlogits(a: &LogprobDlogits) -> Result<()> {
    let (n, v) = a.validate()?;
    let (mut x, targets, temp, stats) = (get(a.logits)?, get_index(a.targets)?, get(a.temperature)?, get(a.stats)?);
    let dlogp = get(a.dlogp)?;
    let dentropy = a.dentropy.map(get).transpose()?;
    for i in 0..n {
        let s = TokenStats::<f64>::from_row([stats[i * 4], stats[i * 4 + 1], stats[i * 4 + 2], stats[i * 4 + 3]]);
        let (lse, entropy) = (s.max + s.sum_exp.ln(), s.entropy());
        let de = dentropy.as_ref().map_or(0.0, |d| d[i]);
        let target = local(targets[i], a.first, v);
        for j in 0..v {
            let logp = x[i * v + j] / temp[i] - lse;
            let p = logp.exp();
            let mut d = -dlogp[i] * p;
            if target == Some(j) {
                d += dlogp[i];
            }
            if p > 0.0 {
                d -= de * p * (logp + entropy);
            }
            x[i * v + j] = d / temp[i];
        }
    }
    put(a.logits, &x)
}

/// One draw from one row of logits, in f64. Shared by the host backends: a draw is a decision, not a kernel.
pub(crate) fn sample_row(logits: &mut dyn Iterator<Item = f64>, p: &SampleParams, order: &mut Vec<(f64, u32)>) -> u32 {
    order.clear();
    let greedy = p.temperature <= 0.0 || p.top_k == 1;
    let t = if greedy { 1.0 } else { f64::from(p.temperature) };
    order.extend(logits.zip(0u32..).map(|(l, i)| (l / t, i)));
    let best = order.iter().copied().fold((f64::NEG_INFINITY, 0), |b, x| if x.0 > b.0 { x } else { b });
    if greedy {
        return best.1;
    }
    let u = Philox::new(p.seed, 0x5a17_3e00).uniform(p.position);
    for x in order.iter_mut() {
        x.0 = (x.0 - best.0).exp();
    }
    let filtered = p.top_k > 0 || p.top_p < 1.0 || p.min_p > 0.0;
    if filtered {
        // Largest first, ties by id; the filters then cut prefixes.
        order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        if p.top_k > 0 {
            order.truncate(p.top_k as usize);
        }
        if p.top_p < 1.0 {
            let goal = f64::from(p.top_p) * order.iter().map(|x| x.0).sum::<f64>();
            let mut mass = 0.0;
            let keep = order
                .iter()
                .take_while(|x| {
                    let short = mass < goal;
                    mass += x.0;
                    short
                })
                .count();
            order.truncate(keep.max(1));
        }
        if p.min_p > 0.0 {
            order.retain(|x| x.0 >= f64::from(p.min_p));
        }
    }
    let goal = u * order.iter().map(|x| x.0).sum::<f64>();
    let mut mass = 0.0;
    for x in order.iter() {
        mass += x.0;
        if mass > goal {
            return x.1;
        }
    }
    // Rounding can leave the last bit of mass unclaimed.
    order.iter().rev().find(|x| x.0 > 0.0).map_or(best.1, |x| x.1)
}

pub(crate) fn sample(a: &Sample) -> Result<()> {
    let (n, v) = a.validate()?;
    let logits = get(a.logits)?;
    let mut order = Vec::with_capacity(v);
    let tokens: Vec<f64> = (0..n)
        .map(|i| f64::from(sample_row(&mut logits[i * v..(i + 1) * v].iter().copied(), &a.params[i], &mut order)))
        .collect();
    put(a.tokens, &tokens)
}
