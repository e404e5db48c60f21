use super::{checked, get, get_index, put};
use crate::ops::*;
use crate::{Error, PAGE, Result};

/// `cu` must rise from 0 to `t`.
pub(crate) fn sequences(op: &'static str, cu: &[i64], t: usize) -> Result<Vec<(usize, usize)>> {
    let rising = cu.windows(2).all(|w| w[0] <= w[1]);
    if cu.first() != Some(&0) || cu.last() != Some(&(t as i64)) || !rising {
        return Err(Error::shape(op, format!("cumulative lengths must rise from 0 to {t}, got {cu:?}")));
    }
    Ok(cu.windows(2).map(|w| (w[0] as usize, w[1] as usize)).collect())
}

/// Softmax weights of one query over the given scores, with their log-sum-exp.
fn softmax(scores: &[f64]) -> (Vec<f64>, f64) {
    let m = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let p: Vec<f64> = scores.iter().map(|s| (s - m).exp()).collect();
    let z: f64 = p.iter().sum();
    (p.iter().map(|x| x / z).collect(), m + z.ln())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

pub(crate) fn attn_fwd(a: &AttnFwd) -> Result<()> {
    let AttnDims { t, g, r, d, .. } = a.validate()?;
    let (q, k, v) = (get(a.q)?, get(a.k)?, get(a.v)?);
    let (mut o, mut lse) = (vec![0.0; t * g * r * d], vec![0.0; t * g * r]);
    let kv = |x: &'_ [f64], j: usize, gi: usize| ((j * g + gi) * d, x.len());
    for (lo, hi) in sequences("attn_fwd", &get_index(a.cu_seqlens)?, t)? {
        for i in lo..hi {
            for h in 0..g * r {
                let gi = h / r;
                let qi = &q[(i * g * r + h) * d..][..d];
                let scores: Vec<f64> = (lo..=i).map(|j| a.scale * dot(qi, &k[kv(&k, j, gi).0..][..d])).collect();
                let (p, l) = softmax(&scores);
                lse[i * g * r + h] = l;
                for (j, w) in (lo..=i).zip(p) {
                    for e in 0..d {
                        o[(i * g * r + h) * d + e] += w * v[(j * g + gi) * d + e];
                    }
                }
            }
        }
    }
    put(a.o, &o)?;
    put(a.lse, &lse)
}

pub(crate) fn attn_bwd(a: &AttnBwd) -> Result<()> {
    let AttnDims { t, g, r, d, .. } = a.validate()?;
    let (q, k, v, o, d_o, lse) = (get(a.q)?, get(a.k)?, get(a.v)?, get(a.o)?, get(a.d_o)?, get(a.lse)?);
    let mut out = vec![0.0; t * g * (r + 2) * d];
    let at = |i: usize, gi: usize, c: usize| ((i * g + gi) * (r + 2) + c) * d;
    for (lo, hi) in sequences("attn_bwd", &get_index(a.cu_seqlens)?, t)? {
        for i in lo..hi {
            for h in 0..g * r {
                let (gi, c) = (h / r, h % r);
                let x = (i * g * r + h) * d;
                let (qi, doi) = (&q[x..x + d], &d_o[x..x + d]);
                let delta = dot(doi, &o[x..x + d]);
                for j in lo..=i {
                    let y = (j * g + gi) * d;
                    let p = (a.scale * dot(qi, &k[y..y + d]) - lse[i * g * r + h]).exp();
                    let ds = p * (dot(doi, &v[y..y + d]) - delta) * a.scale;
                    for e in 0..d {
                        out[at(i, gi, c) + e] += ds * k[y + e];
                        out[at(j, gi, r) + e] += ds * qi[e];
                        out[at(j, gi, r + 1) + e] += p * doi[e];
                    }
                }
            }
        }
    }
    put(a.dqkv, &out)
}

/// Key `e` of slot `s` in a transposed key page.
fn k_at(page: usize, g: usize, gi: usize, d: usize, e: usize, s: usize) -> usize {
    ((page * g + gi) * d + e) * PAGE + s
}

fn v_at(page: usize, g: usize, gi: usize, d: usize, e: usize, s: usize) -> usize {
    ((page * g + gi) * PAGE + s) * d + e
}

pub(crate) fn kv_write(a: &KvWrite) -> Result<()> {
    let (t, g, d, pages) = a.validate()?;
    let (k, v, slots) = (get(a.k)?, get(a.v)?, get_index(a.slots)?);
    let (mut kp, mut vp) = (get(a.k_pages)?, get(a.v_pages)?);
    for i in 0..t {
        let slot = checked("kv_write", slots[i], pages * PAGE)?;
        for gi in 0..g {
            for e in 0..d {
                kp[k_at(slot / PAGE, g, gi, d, e, slot % PAGE)] = k[(i * g + gi) * d + e];
                vp[v_at(slot / PAGE, g, gi, d, e, slot % PAGE)] = v[(i * g + gi) * d + e];
            }
        }
    }
    put(a.k_pages, &kp)?;
    put(a.v_pages, &vp)
}

/// New tokens cannot outnumber those in the pages, nor those the block table can name.
pub(crate) fn check_lengths(new: usize, kv_len: i64, blocks: usize) -> Result<usize> {
    let len = checked("attn_paged", kv_len, blocks * PAGE + 1)?;
    if new > len {
        return Err(Error::shape("attn_paged", format!("{new} new tokens in a sequence of {len}")));
    }
    Ok(len)
}

pub(crate) fn attn_paged(a: &AttnPaged) -> Result<()> {
    let PagedDims { t, g, r, d, pages, blocks, .. } = a.validate()?;
    let (q, kp, vp) = (get(a.q)?, get(a.k_pages)?, get(a.v_pages)?);
    let (kv_len, table) = (get_index(a.kv_len)?, get_index(a.block_table)?);
    let mut o = vec![0.0; t * g * r * d];
    for (s, (lo, hi)) in sequences("attn_paged", &get_index(a.cu_q)?, t)?.into_iter().enumerate() {
        let len = check_lengths(hi - lo, kv_len[s], blocks)?;
        for i in lo..hi {
            let visible = len - (hi - 1 - i);
            for h in 0..g * r {
                let gi = h / r;
                let qi = &q[(i * g * r + h) * d..][..d];
                let mut scores = Vec::with_capacity(visible);
                for j in 0..visible {
                    let page = checked("attn_paged", table[s * blocks + j / PAGE], pages)?;
                    scores.push(a.scale * (0..d).map(|e| qi[e] * kp[k_at(page, g, gi, d, e, j % PAGE)]).sum::<f64>());
                }
                let (p, _) = softmax(&scores);
                for (j, w) in p.into_iter().enumerate() {
                    let page = table[s * blocks + j / PAGE] as usize;
                    for e in 0..d {
                        o[(i * g * r + h) * d + e] += w * vp[v_at(page, g, gi, d, e, j % PAGE)];
                    }
                }
            }
        }
    }
    put(a.o, &o)
}
