//! Attention over packed sequences and over pages, by one tile routine.
//!
//! A query walks the keys of its sequence in tiles of [`PAGE`] from position 0. Inside a tile every score is one
//! sequential dot product (lanes are keys), every output element one sequential sum over keys, and the softmax sum
//! goes over fixed lanes; so nothing depends on which queries run together, where the sequence lies in a pack or how
//! it was cut into cached steps. Keys are read transposed: pages store them so, packed tiles are transposed first.

use super::simd::{dot, exp, simd_fn};
use super::threads::Threads;
use crate::ops::*;
use crate::reference::attention::{check_lengths, sequences};
use crate::reference::{checked, get_index};
use crate::{PAGE, Result, Tensor};

/// Lanes of one block of keys.
const W: usize = 8;
/// Query heads whose key and value gradients are added together.
const QB: usize = 16;

type Tile = [f32; PAGE];

/// `out[j] = sum over e of x[e] * t[e][j]` for `j < n` rounded up to whole blocks.
#[inline(always)]
fn scores(x: &[f32], t: &[f32], n: usize, out: &mut Tile) {
    let mut b = 0;
    while b + 4 * W <= n.next_multiple_of(W) {
        let mut acc = [[0.0f32; W]; 4];
        for (x, row) in x.iter().zip(t.chunks_exact(PAGE)) {
            for (c, acc) in acc.iter_mut().enumerate() {
                for l in 0..W {
                    acc[l] = x.mul_add(row[b + c * W + l], acc[l]);
                }
            }
        }
        for (c, acc) in acc.iter().enumerate() {
            out[b + c * W..b + (c + 1) * W].copy_from_slice(acc);
        }
        b += 4 * W;
    }
    while b < n {
        let mut acc = [0.0f32; W];
        for (x, row) in x.iter().zip(t.chunks_exact(PAGE)) {
            for l in 0..W {
                acc[l] = x.mul_add(row[b + l], acc[l]);
            }
        }
        out[b..b + W].copy_from_slice(&acc);
        b += W;
    }
}

/// `out[e] = out[e] * c + sum over j < n of p[j] * rows[j * stride + e]`, j in order.
#[inline(always)]
fn weighted(p: &Tile, rows: &[f32], stride: usize, n: usize, c: f32, out: &mut [f32]) {
    let d = out.len();
    let mut e = 0;
    while e + 4 * W <= d {
        let mut acc = [[0.0f32; W]; 4];
        for (k, acc) in acc.iter_mut().enumerate() {
            for l in 0..W {
                acc[l] = out[e + k * W + l] * c;
            }
        }
        for (j, p) in p[..n].iter().enumerate() {
            let row = &rows[j * stride + e..j * stride + e + 4 * W];
            for (k, acc) in acc.iter_mut().enumerate() {
                for l in 0..W {
                    acc[l] = p.mul_add(row[k * W + l], acc[l]);
                }
            }
        }
        for (k, acc) in acc.iter().enumerate() {
            out[e + k * W..e + (k + 1) * W].copy_from_slice(acc);
        }
        e += 4 * W;
    }
    while e + W <= d {
        let mut acc = [0.0f32; W];
        for l in 0..W {
            acc[l] = out[e + l] * c;
        }
        for (j, p) in p[..n].iter().enumerate() {
            let row = &rows[j * stride + e..j * stride + e + W];
            for l in 0..W {
                acc[l] = p.mul_add(row[l], acc[l]);
            }
        }
        out[e..e + W].copy_from_slice(&acc);
        e += W;
    }
    while e < d {
        let mut acc = out[e] * c;
        for (j, p) in p[..n].iter().enumerate() {
            acc = p.mul_add(rows[j * stride + e], acc);
        }
        out[e] = acc;
        e += 1;
    }
}

/// The running softmax of one query head: the largest score so far, the sum of `exp(score - max)`.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
}

const START: Running = Running { max: f32::NEG_INFINITY, sum: 0.0 };

/// Take the first `n` keys of one tile into account. `o` holds the unnormalised output.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn tile(q: &[f32], kt: &[f32], v: &[f32], v_stride: usize, n: usize, scale: f32, run: &mut Running, o: &mut [f32]) {
    let mut s: Tile = [f32::NEG_INFINITY; PAGE];
    scores(q, kt, n, &mut s);
    let blocks = n.div_ceil(W) * W;
    let mut m = [f32::NEG_INFINITY; W];
    // What lies beyond `n` in the last block is another sequence's, or nothing at all.
    for (b, s) in s[..blocks].chunks_exact_mut(W).enumerate() {
        for l in 0..W {
            s[l] = if b * W + l < n { s[l] * scale } else { f32::NEG_INFINITY };
            m[l] = if s[l] > m[l] { s[l] } else { m[l] };
        }
    }
    let mut max = run.max;
    for m in m {
        max = if m > max { m } else { max };
    }
    let mut sum = [0.0f32; W];
    for s in s[..blocks].chunks_exact_mut(W) {
        for l in 0..W {
            s[l] = exp(s[l] - max);
            sum[l] += s[l];
        }
    }
    let c = exp(run.max - max);
    let folded = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
    run.sum = run.sum.mul_add(c, folded);
    run.max = max;
    weighted(&s, v, v_stride, n, c, o);
}

#[inline(always)]
fn finish(run: Running, o: &mut [f32]) -> f32 {
    let inv = 1.0 / run.sum;
    o.iter_mut().for_each(|x| *x *= inv);
    run.max + run.sum.ln()
}

/// `out[e][j] = rows[j][e]`.
#[inline(always)]
fn transpose(rows: &[f32], stride: usize, n: usize, d: usize, out: &mut [f32]) {
    for j in 0..n {
        let row = &rows[j * stride..j * stride + d];
        for (e, x) in row.iter().enumerate() {
            out[e * PAGE + j] = *x;
        }
    }
}

/// A `[T, G, ..]` view in a slice.
#[derive(Clone, Copy)]
struct Rows<'a> {
    data: &'a [f32],
    token: usize,
    group: usize,
    head: usize,
}

impl<'a> Rows<'a> {
    fn new(data: &'a [f32], t: &Tensor) -> Rows<'a> {
        Rows { data, token: t.stride(0), group: t.stride(1), head: if t.rank() == 4 { t.stride(2) } else { 0 } }
    }

    #[inline(always)]
    fn from(&self, token: usize, group: usize, head: usize) -> &'a [f32] {
        &self.data[token * self.token + group * self.group + head * self.head..]
    }
}

simd_fn! {
    /// Queries `first..last` (tokens of the pack) of the sequence that starts at token `start`.
    fn query_tile(q: Rows, k: Rows, v: Rows, n: &AttnDims, scale: f32, start: usize, first: usize, last: usize, o: &mut [f32], lse: &mut [f32], kt: &mut [f32], run: &mut [Running]) {
        let (r, d) = (n.r, n.d);
        for g in 0..n.g {
            run.fill(START);
            let mut t = start;
            while t < last {
                let keys = PAGE.min(last - t);
                transpose(k.from(t, g, 0), k.token, keys, d, kt);
                let values = v.from(t, g, 0);
                for i in first.max(t)..last {
                    for c in 0..r {
                        let x = (i - first) * n.g * r + g * r + c;
                        let qi = &q.from(i, g, c)[..d];
                        tile(qi, kt, values, v.token, PAGE.min(i + 1 - t), scale, &mut run[(i - first) * r + c], &mut o[x * d..(x + 1) * d]);
                    }
                }
                t += PAGE;
            }
            for i in 0..last - first {
                for c in 0..r {
                    let x = i * n.g * r + g * r + c;
                    lse[x] = finish(run[i * r + c], &mut o[x * d..(x + 1) * d]);
                }
            }
        }
    }
}

pub(super) fn attn_fwd(threads: &Threads, a: &AttnFwd) -> Result<()> {
    let n = a.validate()?;
    let seqs = sequences("attn_fwd", &get_index(a.cu_seqlens)?, n.t)?;
    if n.t * n.g * n.r * n.d == 0 {
        return Ok(());
    }
    let (q, k, v) = (a.q.read::<f32>()?, a.k.read::<f32>()?, a.v.read::<f32>()?);
    let (q, k, v) = (Rows::new(&q, a.q), Rows::new(&k, a.k), Rows::new(&v, a.v));
    let (mut o, mut lse) = (a.o.write::<f32>()?, a.lse.write::<f32>()?);
    let heads = n.g * n.r;
    // Jobs are query tiles, whole rows of the output each, in order.
    let (mut o_rest, mut lse_rest) = (&mut o[..], &mut lse[..]);
    let jobs = seqs
        .iter()
        .flat_map(|&(lo, hi)| (lo..hi).step_by(PAGE).map(move |first| (lo, first, hi.min(first + PAGE))))
        .map(|(lo, first, last)| {
            let rows = last - first;
            let (o, rest) = std::mem::take(&mut o_rest).split_at_mut(rows * heads * n.d);
            o_rest = rest;
            let (lse, rest) = std::mem::take(&mut lse_rest).split_at_mut(rows * heads);
            lse_rest = rest;
            (lo, first, last, o, lse)
        });
    let many = threads.count() > 1;
    let scratch = || (vec![0.0; n.d * PAGE], vec![START; PAGE * n.r]);
    let mut own = scratch();
    let work = |(lo, first, last, o, lse): (usize, usize, usize, &mut [f32], &mut [f32]),
                (kt, run): &mut (Vec<f32>, Vec<Running>)| {
        o.fill(0.0);
        query_tile(q, k, v, &n, a.scale as f32, lo, first, last, o, lse, kt, run);
    };
    if many {
        threads.for_each(jobs, |j| work(j, &mut scratch()));
    } else {
        jobs.for_each(|j| work(j, &mut own));
    }
    Ok(())
}

simd_fn! {
    /// All gradients of one sequence. `dqkv` are its rows, zeroed.
    fn sequence_bwd(q: Rows, k: Rows, v: Rows, o: &[f32], d_o: &[f32], lse: &[f32], n: &AttnDims, scale: f32, start: usize, len: usize, dqkv: &mut [f32], scratch: &mut Scratch) {
        let (r, d, heads) = (n.r, n.d, n.g * n.r);
        let wide = n.g * (r + 2) * d;
        let Scratch { kt, vt, delta, p, ds } = scratch;
        delta.clear();
        for x in start * heads..(start + len) * heads {
            delta.push(dot(&o[x * d..(x + 1) * d], &d_o[x * d..(x + 1) * d]));
        }
        for g in 0..n.g {
            let at = |i: usize, c: usize| i * wide + (g * (r + 2) + c) * d;
            for t in (0..len).step_by(PAGE) {
                let keys = PAGE.min(len - t);
                let (k_rows, v_rows) = (k.from(start + t, g, 0), v.from(start + t, g, 0));
                transpose(k_rows, k.token, keys, d, kt);
                transpose(v_rows, v.token, keys, d, vt);
                // Query heads from the tile's first token on, in blocks.
                let queries = (len - t) * r;
                for block in (0..queries).step_by(QB) {
                    let size = QB.min(queries - block);
                    for b in 0..size {
                        let (i, c) = (t + (block + b) / r, (block + b) % r);
                        let x = (start + i) * heads + g * r + c;
                        let count = PAGE.min(i + 1 - t);
                        let (p, ds) = (&mut p[b], &mut ds[b]);
                        scores(&q.from(start + i, g, c)[..d], kt, count, p);
                        scores(&d_o[x * d..(x + 1) * d], vt, count, ds);
                        let (l, dl) = (lse[x], delta[i * heads + g * r + c]);
                        let blocks = count.next_multiple_of(W);
                        p[blocks..].fill(0.0);
                        ds[blocks..].fill(0.0);
                        for j in 0..blocks {
                            // Beyond `count` there is no key for this query.
                            let w = exp(p[j].mul_add(scale, -l));
                            let w = if j < count { w } else { 0.0 };
                            let g = if j < count { ds[j] - dl } else { 0.0 };
                            p[j] = w;
                            ds[j] = w * g * scale;
                        }
                        let dq = at(i, c);
                        weighted(ds, k_rows, k.token, count, 1.0, &mut dqkv[dq..dq + d]);
                    }
                    // The last query of the block sees the most keys.
                    let seen = PAGE.min((block + size - 1) / r + 1).min(keys);
                    let q_at = |b: usize| q.from(start + t + (block + b) / r, g, (block + b) % r);
                    let do_at = |b: usize| &d_o[((start + t + (block + b) / r) * heads + g * r + (block + b) % r) * d..];
                    for j in 0..seen {
                        let dk = at(t + j, r);
                        outer(ds, j, size, q_at, &mut dqkv[dk..dk + d]);
                        let dv = at(t + j, r + 1);
                        outer(p, j, size, do_at, &mut dqkv[dv..dv + d]);
                    }
                }
            }
        }
    }
}

/// `out += sum over b < size of w[b][j] * row(b)`, b in order.
#[inline(always)]
fn outer<'a>(w: &[Tile; QB], j: usize, size: usize, row: impl Fn(usize) -> &'a [f32], out: &mut [f32]) {
    let d = out.len();
    let mut e = 0;
    while e + 2 * W <= d {
        let mut acc = [0.0f32; 2 * W];
        acc.copy_from_slice(&out[e..e + 2 * W]);
        for (b, w) in w[..size].iter().enumerate() {
            let x = &row(b)[e..e + 2 * W];
            for l in 0..2 * W {
                acc[l] = w[j].mul_add(x[l], acc[l]);
            }
        }
        out[e..e + 2 * W].copy_from_slice(&acc);
        e += 2 * W;
    }
    while e < d {
        let mut acc = out[e];
        for (b, w) in w[..size].iter().enumerate() {
            acc = w[j].mul_add(row(b)[e], acc);
        }
        out[e] = acc;
        e += 1;
    }
}

struct Scratch {
    kt: Vec<f32>,
    vt: Vec<f32>,
    delta: Vec<f32>,
    p: Box<[Tile; QB]>,
    ds: Box<[Tile; QB]>,
}

impl Scratch {
    fn new(d: usize) -> Scratch {
        let tiles = || Box::new([[0.0; PAGE]; QB]);
        Scratch { kt: vec![0.0; d * PAGE], vt: vec![0.0; d * PAGE], delta: Vec::new(), p: tiles(), ds: tiles() }
    }
}

pub(super) fn attn_bwd(threads: &Threads, a: &AttnBwd) -> Result<()> {
    let n = a.validate()?;
    let seqs = sequences("attn_bwd", &get_index(a.cu_seqlens)?, n.t)?;
    if n.t * n.g * n.r * n.d == 0 {
        return Ok(());
    }
    let (q, k, v) = (a.q.read::<f32>()?, a.k.read::<f32>()?, a.v.read::<f32>()?);
    let (q, k, v) = (Rows::new(&q, a.q), Rows::new(&k, a.k), Rows::new(&v, a.v));
    let (o, d_o, lse) = (a.o.read::<f32>()?, a.d_o.read::<f32>()?, a.lse.read::<f32>()?);
    let mut dqkv = a.dqkv.write::<f32>()?;
    dqkv.fill(0.0);
    let wide = n.g * (n.r + 2) * n.d;
    let mut rest = &mut dqkv[..];
    let jobs = seqs.iter().filter(|s| s.1 > s.0).map(|&(lo, hi)| {
        let (rows, tail) = std::mem::take(&mut rest).split_at_mut((hi - lo) * wide);
        rest = tail;
        (lo, hi, rows)
    });
    let work = |(lo, hi, rows): (usize, usize, &mut [f32]), s: &mut Scratch| {
        sequence_bwd(q, k, v, &o, &d_o, &lse, &n, a.scale as f32, lo, hi - lo, rows, s);
    };
    if threads.count() > 1 {
        threads.for_each(jobs, |j| work(j, &mut Scratch::new(n.d)));
    } else {
        let mut scratch = Scratch::new(n.d);
        jobs.for_each(|j| work(j, &mut scratch));
    }
    Ok(())
}

pub(super) fn kv_write(a: &KvWrite) -> Result<()> {
    let (t, g, d, pages) = a.validate()?;
    let slots = a.slots.read::<i32>()?;
    let (k, v) = (a.k.read::<f32>()?, a.v.read::<f32>()?);
    let (k, v) = (Rows::new(&k, a.k), Rows::new(&v, a.v));
    let (mut kp, mut vp) = (a.k_pages.write::<f32>()?, a.v_pages.write::<f32>()?);
    for i in 0..t {
        let slot = checked("kv_write", i64::from(slots[i]), pages * PAGE)?;
        let (page, s) = (slot / PAGE, slot % PAGE);
        for gi in 0..g {
            let base = (page * g + gi) * d * PAGE;
            for (e, x) in k.from(i, gi, 0)[..d].iter().enumerate() {
                kp[base + e * PAGE + s] = *x;
            }
            vp[base + s * d..base + (s + 1) * d].copy_from_slice(&v.from(i, gi, 0)[..d]);
        }
    }
    Ok(())
}

simd_fn! {
    /// One new token: `visible` keys in the pages that `table` names.
    fn paged_query(q: Rows, k_pages: &[f32], v_pages: &[f32], n: &PagedDims, scale: f32, i: usize, visible: usize, table: &[usize], o: &mut [f32]) {
        let (r, d) = (n.r, n.d);
        for g in 0..n.g {
            for c in 0..r {
                let x = g * r + c;
                let o = &mut o[x * d..(x + 1) * d];
                let qi = &q.from(i, g, c)[..d];
                let mut run = START;
                for (b, page) in table[..visible.div_ceil(PAGE)].iter().enumerate() {
                    let base = (page * n.g + g) * d * PAGE;
                    let count = PAGE.min(visible - b * PAGE);
                    tile(qi, &k_pages[base..base + d * PAGE], &v_pages[base..base + d * PAGE], d, count, scale, &mut run, o);
                }
                finish(run, o);
            }
        }
    }
}

pub(super) fn attn_paged(threads: &Threads, a: &AttnPaged) -> Result<()> {
    let n = a.validate()?;
    let seqs = sequences("attn_paged", &get_index(a.cu_q)?, n.t)?;
    let kv_len = a.kv_len.read::<i32>()?;
    let lengths: Vec<usize> = seqs
        .iter()
        .zip(kv_len.iter())
        .map(|(&(lo, hi), &l)| check_lengths(hi - lo, i64::from(l), n.blocks))
        .collect::<Result<_>>()?;
    let mut table = vec![0usize; n.seqs * n.blocks];
    for (s, (row, len)) in a.block_table.read::<i32>()?.chunks(n.blocks.max(1)).zip(&lengths).enumerate() {
        for (b, page) in row[..len.div_ceil(PAGE)].iter().enumerate() {
            table[s * n.blocks + b] = checked("attn_paged", i64::from(*page), n.pages)?;
        }
    }
    if n.t * n.g * n.r * n.d == 0 {
        return Ok(());
    }
    let (q, kp, vp) = (a.q.read::<f32>()?, a.k_pages.read::<f32>()?, a.v_pages.read::<f32>()?);
    let q = Rows::new(&q, a.q);
    let mut o = a.o.write::<f32>()?;
    let row = n.g * n.r * n.d;
    let mut tokens = Vec::with_capacity(n.t);
    for (s, &(lo, hi)) in seqs.iter().enumerate() {
        tokens.extend((lo..hi).map(|i| (s, lengths[s] - (hi - 1 - i))));
    }
    threads.for_each(o.chunks_mut(row * W).enumerate(), |(job, o)| {
        for (x, o) in o.chunks_exact_mut(row).enumerate() {
            let i = job * W + x;
            let (s, visible) = tokens[i];
            o.fill(0.0);
            paged_query(q, &kp, &vp, &n, a.scale as f32, i, visible, &table[s * n.blocks..(s + 1) * n.blocks], o);
        }
    });
    Ok(())
}
