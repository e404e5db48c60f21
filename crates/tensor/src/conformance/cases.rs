use super::harness::{Harness, Outputs};
use crate::ops::*;
use crate::{DType, PAGE, Result, Stream, Tensor};

pub(super) type Case = fn(&Harness) -> Result<Outputs>;

pub(super) const ALL: &[(&str, Case)] = &[
    ("gemm", gemm),
    ("gemm with strides", gemm_strided),
    ("embed", embed),
    ("rmsnorm", rmsnorm),
    ("qk_norm_rope", qk_norm_rope),
    ("attention", attention),
    ("long attention", attention_long),
    ("paged attention", paged),
    ("swiglu", swiglu),
    ("logprob", logprob),
    ("logprob of masked and huge logits", logprob_extreme),
    ("logprob over shards", logprob_shards),
    ("vectors", vectors),
    ("rows", rows),
    ("reductions", reductions),
    ("adamw", adamw),
    ("sample", sample),
    ("copies", copies),
];

const S: Stream = Stream::COMPUTE;

fn gemm(h: &Harness) -> Result<Outputs> {
    let mut out = vec![];
    for (m, n, k) in [
        (1, 1, 1),
        (1, 47, 64),
        (3, 5, 7),
        (33, 17, 64),
        (64, 130, 300),
        (129, 31, 513),
        (0, 4, 3),
        (4, 0, 3),
        (5, 6, 0),
    ] {
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            let a = h.normal(&if ta { [k, m] } else { [m, k] })?;
            let b = h.normal(&if tb { [n, k] } else { [k, n] })?;
            let d = h.out(&[m, n])?;
            h.be.gemm(S, &Gemm { a: &a, ta, b: &b, tb, d: &d, alpha: 1.0, beta: 0.0 })?;
            out.push(("beta 0", h.read(&d)?));
            h.be.gemm(S, &Gemm { a: &a, ta, b: &b, tb, d: &d, alpha: 0.5, beta: 1.0 })?;
            out.push(("beta 1", h.read(&d)?));
        }
    }
    Ok(out)
}

fn gemm_strided(h: &Harness) -> Result<Outputs> {
    let a = h.normal(&[9, 40])?.narrow(1, 3, 20)?;
    let b = h.normal(&[30, 50])?.narrow(1, 7, 20)?.narrow(0, 2, 11)?;
    let whole = h.normal(&[9, 60])?;
    let d = whole.narrow(1, 5, 11)?;
    h.be.gemm(S, &Gemm { a: &a, ta: false, b: &b, tb: true, d: &d, alpha: 1.0, beta: 0.0 })?;
    Ok(vec![("and its surroundings", h.read(&whole)?)])
}

fn embed(h: &Harness) -> Result<Outputs> {
    let (t, v, w, first) = (29, 11, 13, 7);
    let (ids, table, out) = (h.ids(&[t], 30)?, h.normal(&[v, w])?, h.out(&[t, w])?);
    h.be.embed_fwd(S, &EmbedFwd { ids: &ids, table: &table, first, out: &out })?;
    let (dout, dtable) = (h.normal(&[t, w])?, h.stat(&[v, w], 0.0, 1.0)?);
    h.be.embed_bwd(S, &EmbedBwd { ids: &ids, dout: &dout, first, dtable: &dtable })?;
    Ok(vec![("out", h.read(&out)?), ("dtable", h.read(&dtable)?)])
}

fn rmsnorm(h: &Harness) -> Result<Outputs> {
    let mut out = vec![];
    for (t, w) in [(0, 8), (1, 3), (1, 64), (65, 13), (200, 64), (3, 333)] {
        let (x, res, gamma) = (h.normal(&[t, w])?, h.normal(&[t, w])?, h.normal(&[w])?);
        let (y, sum, rstd) = (h.out(&[t, w])?, h.out(&[t, w])?, h.out_stat(&[t])?);
        h.be.rmsnorm_fwd(
            S,
            &RmsNormFwd { x: &x, residual: None, gamma: &gamma, eps: 1e-5, y: &y, h: None, rstd: &rstd },
        )?;
        out.extend([("y", h.read(&y)?), ("rstd", h.read(&rstd)?)]);
        let a = RmsNormFwd { x: &x, residual: Some(&res), gamma: &gamma, eps: 1e-5, y: &y, h: Some(&sum), rstd: &rstd };
        h.be.rmsnorm_fwd(S, &a)?;
        out.extend([("y of the residual sum", h.read(&y)?), ("residual sum", h.read(&sum)?)]);
        let (dy, dh, dx, partial) =
            (h.normal(&[t, w])?, h.normal(&[t, w])?, h.out(&[t, w])?, h.out_stat(&[row_blocks(t), w])?);
        for dh in [None, Some(&dh)] {
            let a = RmsNormBwd { dy: &dy, h: &sum, rstd: &rstd, gamma: &gamma, dh, dx: &dx, dgamma_partial: &partial };
            h.be.rmsnorm_bwd(S, &a)?;
            out.extend([("dx", h.read(&dx)?), ("dgamma", h.read(&partial)?)]);
        }
    }
    Ok(out)
}

fn qk_norm_rope(h: &Harness) -> Result<Outputs> {
    let mut out = vec![];
    for (t, g, r, d) in [(0, 1, 1, 2), (1, 1, 1, 2), (70, 2, 2, 16), (5, 3, 1, 20), (9, 1, 4, 64)] {
        let p = 80;
        let (qkv, positions) = (h.normal(&[t, g, r + 2, d])?, h.ids(&[t], p)?);
        let angle: Vec<f64> =
            (0..p * d / 2).map(|i| (i / (d / 2)) as f64 * 0.9f64.powi((i % (d / 2)) as i32)).collect();
        let cos = h.from(h.acc(), &angle.iter().map(|a| f64::from(a.cos() as f32)).collect::<Vec<_>>(), &[p, d / 2])?;
        let sin = h.from(h.acc(), &angle.iter().map(|a| f64::from(a.sin() as f32)).collect::<Vec<_>>(), &[p, d / 2])?;
        let (qg, kg) = (h.normal(&[d])?, h.normal(&[d])?);
        for norm in [true, false] {
            let (q_gamma, k_gamma) = (norm.then_some(&qg), norm.then_some(&kg));
            let qk = h.out(&[t, g, r + 1, d])?;
            let a = QkNormRopeFwd {
                qkv: &qkv,
                positions: &positions,
                cos: &cos,
                sin: &sin,
                q_gamma,
                k_gamma,
                eps: 1e-6,
                qk: &qk,
            };
            h.be.qk_norm_rope_fwd(S, &a)?;
            out.push(("qk", h.read(&qk)?));
            let dqkv = h.normal(&[t, g, r + 2, d])?;
            let (dq, dk) = (h.out_stat(&[row_blocks(t), d])?, h.out_stat(&[row_blocks(t), d])?);
            h.be.qk_norm_rope_bwd(
                S,
                &QkNormRopeBwd {
                    dqkv: &dqkv,
                    qkv: &qkv,
                    positions: &positions,
                    cos: &cos,
                    sin: &sin,
                    q_gamma,
                    k_gamma,
                    eps: 1e-6,
                    dq_gamma_partial: norm.then_some(&dq),
                    dk_gamma_partial: norm.then_some(&dk),
                },
            )?;
            out.push(("dqkv", h.read(&dqkv)?));
            if norm {
                out.extend([("dq_gamma", h.read(&dq)?), ("dk_gamma", h.read(&dk)?)]);
            }
        }
    }
    Ok(out)
}

/// Queries, keys and values as views of one fused tensor `[T, G, R + 2, D]`.
pub(super) fn fused(x: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let r = x.dim(2) - 2;
    Ok((x.narrow(2, 0, r)?, x.select(2, r)?, x.select(2, r + 1)?))
}

pub(super) fn cumulative(lengths: &[usize]) -> Vec<i32> {
    let mut cu = vec![0];
    cu.extend(lengths.iter().scan(0, |at, n| {
        *at += *n as i32;
        Some(*at)
    }));
    cu
}

fn attention_of(h: &Harness, lengths: &[usize], g: usize, r: usize, d: usize) -> Result<Outputs> {
    let t: usize = lengths.iter().sum();
    let qkv = h.normal(&[t, g, r + 2, d])?;
    let (q, k, v) = fused(&qkv)?;
    let cu = h.ints(&cumulative(lengths), &[lengths.len() + 1])?;
    let max_seqlen = lengths.iter().copied().max().unwrap_or(0);
    let (o, lse) = (h.out(&[t, g, r, d])?, h.out_stat(&[t, g, r])?);
    let scale = 1.0 / (d as f64).sqrt();
    h.be.attn_fwd(S, &AttnFwd { q: &q, k: &k, v: &v, cu_seqlens: &cu, max_seqlen, scale, o: &o, lse: &lse })?;
    let (d_o, dqkv) = (h.normal(&[t, g, r, d])?, h.out(&[t, g, r + 2, d])?);
    let a =
        AttnBwd { q: &q, k: &k, v: &v, o: &o, d_o: &d_o, lse: &lse, cu_seqlens: &cu, max_seqlen, scale, dqkv: &dqkv };
    h.be.attn_bwd(S, &a)?;
    Ok(vec![("o", h.read(&o)?), ("lse", h.read(&lse)?), ("dqkv", h.read(&dqkv)?)])
}

fn attention(h: &Harness) -> Result<Outputs> {
    let mut out = vec![];
    for (g, r, d) in [(1, 1, 2), (2, 2, 16), (1, 3, 20), (2, 1, 64)] {
        out.extend(attention_of(h, &[13, 0, 1, 64, 2, 65, 8], g, r, d)?);
    }
    out.extend(attention_of(h, &[], 1, 2, 8)?);
    out.extend(attention_of(h, &[0, 0], 1, 2, 8)?);
    Ok(out)
}

fn attention_long(h: &Harness) -> Result<Outputs> {
    attention_of(h, &[300, 129], 2, 2, 32)
}

fn paged(h: &Harness) -> Result<Outputs> {
    let mut out = vec![];
    for (g, r, d) in [(2, 2, 16), (1, 3, 10)] {
        let (pages, blocks) = (9, 3);
        // (cached, new) of each sequence and its pages, in no order.
        let seqs: [(usize, usize, [i32; 3]); 4] =
            [(0, 70, [4, 1, 0]), (130, 1, [7, 2, 8]), (63, 2, [5, 3, 0]), (0, 1, [6, 0, 0])];
        let (kp, vp) = (h.out(&k_page_dims(pages, g, d))?, h.out(&v_page_dims(pages, g, d))?);
        for new in [false, true] {
            // First what is cached, then the step itself.
            let mut slots = vec![];
            let (mut cu, mut lens) = (vec![0], vec![]);
            for (cached, n, table) in &seqs {
                let range = if new { *cached..cached + n } else { 0..*cached };
                slots.extend(range.map(|p| table[p / PAGE] * PAGE as i32 + (p % PAGE) as i32));
                cu.push(slots.len() as i32);
                lens.push((cached + n) as i32);
            }
            let t = slots.len();
            let qkv = h.normal(&[t, g, r + 2, d])?;
            let (q, k, v) = fused(&qkv)?;
            h.be.kv_write(S, &KvWrite { k: &k, v: &v, k_pages: &kp, v_pages: &vp, slots: &h.ints(&slots, &[t])? })?;
            if new {
                let o = h.out(&[t, g, r, d])?;
                let table: Vec<i32> = seqs.iter().flat_map(|s| s.2).collect();
                let a = AttnPaged {
                    q: &q,
                    k_pages: &kp,
                    v_pages: &vp,
                    cu_q: &h.ints(&cu, &[cu.len()])?,
                    kv_len: &h.ints(&lens, &[lens.len()])?,
                    block_table: &h.ints(&table, &[seqs.len(), blocks])?,
                    scale: 0.3,
                    o: &o,
                };
                h.be.attn_paged(S, &a)?;
                out.push(("o", h.read(&o)?));
            }
        }
    }
    Ok(out)
}

fn swiglu(h: &Harness) -> Result<Outputs> {
    let mut out = vec![];
    for (t, f) in [(0, 4), (1, 1), (67, 19), (5, 128)] {
        let (x, y, dy) = (h.normal(&[t, 2, f])?, h.out(&[t, f])?, h.normal(&[t, f])?);
        h.be.swiglu_fwd(S, &SwigluFwd { gate_up: &x, y: &y })?;
        let (dx, again) = (h.out(&[t, 2, f])?, h.out(&[t, f])?);
        h.be.swiglu_bwd(S, &SwigluBwd { gate_up: &x, dy: &dy, dgate_up: &dx, y: Some(&again) })?;
        out.extend([("y", h.read(&y)?), ("dgate_up", h.read(&dx)?), ("y again", h.read(&again)?)]);
        h.be.swiglu_bwd(S, &SwigluBwd { gate_up: &x, dy: &dy, dgate_up: &dx, y: None })?;
        out.push(("dgate_up alone", h.read(&dx)?));
    }
    // Far from zero the sigmoid saturates and must not overflow.
    let x = h.from(h.dtype, &[-200.0, 100.0, -50.0, 0.0, 2.0, 3.0, 4.0, 5.0], &[1, 2, 4])?;
    let (y, dy, dx) = (h.out(&[1, 4])?, h.normal(&[1, 4])?, h.out(&[1, 2, 4])?);
    h.be.swiglu_fwd(S, &SwigluFwd { gate_up: &x, y: &y })?;
    h.be.swiglu_bwd(S, &SwigluBwd { gate_up: &x, dy: &dy, dgate_up: &dx, y: None })?;
    out.extend([("y saturated", h.read(&y)?), ("dgate_up saturated", h.read(&dx)?)]);
    Ok(out)
}

/// Log-prob and entropy of statistics `[n, 4]`, in f64.
fn finish(stats: &[f64], pick: fn(&TokenStats<f64>) -> f64) -> Vec<f64> {
    stats.chunks_exact(4).map(|r| pick(&TokenStats::<f64>::from_row([r[0], r[1], r[2], r[3]]))).collect()
}

fn logprob_of(h: &Harness, logits: &Tensor, targets: &Tensor, temperature: &Tensor) -> Result<Outputs> {
    let n = logits.dim(0);
    let stats = h.out_stat(&[n, 4])?;
    h.be.logprob_stats(S, &LogprobStats { logits, targets, first: 0, temperature, stats: &stats })?;
    let s = h.read(&stats)?;
    let mut out =
        vec![("logp", finish(&s, TokenStats::<f64>::logp)), ("entropy", finish(&s, TokenStats::<f64>::entropy))];
    let (dlogp, dentropy) = (h.stat(&[n], 0.0, 1.0)?, h.stat(&[n], 0.0, 0.3)?);
    for de in [None, Some(&dentropy)] {
        let x = h.out(logits.dims())?;
        h.be.copy(S, &x, logits)?;
        h.be.logprob_dlogits(
            S,
            &LogprobDlogits { logits: &x, targets, first: 0, temperature, stats: &stats, dlogp: &dlogp, dentropy: de },
        )?;
        out.push((if de.is_some() { "dlogits with entropy" } else { "dlogits" }, h.read(&x)?));
    }
    Ok(out)
}

fn logprob(h: &Harness) -> Result<Outputs> {
    let mut out = vec![];
    for (n, v) in [(0, 5), (1, 1), (7, 47), (20, 1000), (2, 5000)] {
        let (logits, targets) = (h.normal(&[n, v])?, h.ids(&[n], v)?);
        let temperature = h.from(h.acc(), &(0..n).map(|i| [1.0, 0.5, 1.25][i % 3]).collect::<Vec<_>>(), &[n])?;
        out.extend(logprob_of(h, &logits, &targets, &temperature)?);
    }
    Ok(out)
}

fn logprob_extreme(h: &Harness) -> Result<Outputs> {
    let inf = f64::NEG_INFINITY;
    let rows = [
        [1e4, -1e4, 3.0, 0.0, 1e4, 0.0],
        [inf, 0.0, 1.0, inf, 2.0, inf],
        [-1e6, -1e6, -1e6, -1e6, -1e6, -1e6],
        [inf, inf, inf, 5.0, inf, inf],
    ];
    let logits = h.from(h.dtype, &rows.concat(), &[4, 6])?;
    let temperature = h.from(h.acc(), &[1.0; 4], &[4])?;
    logprob_of(h, &logits, &h.ints(&[0, 2, 5, 3], &[4])?, &temperature)
}

fn logprob_shards(h: &Harness) -> Result<Outputs> {
    let (n, v, ranks) = (9, 47, 3);
    let (logits, targets) = (h.normal(&[n, v])?, h.ids(&[n], v)?);
    let temperature = h.from(h.acc(), &[0.7; 9], &[n])?;
    let parts = h.out_stat(&[ranks, n, 4])?;
    for r in 0..ranks {
        let (first, width) = (16 * r, 16.min(v - 16 * r));
        let (shard, stats) = (h.out(&[n, width])?, h.out_stat(&[n, 4])?);
        h.be.copy(S, &shard, &logits.narrow(1, first, width)?)?;
        h.be.logprob_stats(
            S,
            &LogprobStats { logits: &shard, targets: &targets, first, temperature: &temperature, stats: &stats },
        )?;
        h.be.copy(S, &parts.select(0, r)?, &stats)?;
    }
    let merged = h.out_stat(&[n, 4])?;
    h.be.logprob_merge(S, &LogprobMerge { parts: &parts, stats: &merged })?;
    let s = h.read(&merged)?;
    Ok(vec![("logp", finish(&s, TokenStats::<f64>::logp)), ("entropy", finish(&s, TokenStats::<f64>::entropy))])
}

fn vectors(h: &Harness) -> Result<Outputs> {
    let mut out = vec![];
    for n in [0, 1, 31, 1000] {
        let (a, b, c) = (h.normal(&[n])?, h.normal(&[n])?, h.out(&[n])?);
        h.be.add(S, &Add { a: &a, b: &b, out: &c })?;
        out.push(("add", h.read(&c)?));
        h.be.axpy(S, &Axpy { alpha: -0.3, x: &a, y: &c })?;
        out.push(("axpy", h.read(&c)?));
        h.be.scale(S, &Scale { x: &c, alpha: 1.7 })?;
        out.push(("scale", h.read(&c)?));
        let narrow = h.poison(DType::BF16, &[n])?;
        h.be.cast(S, &Cast { src: &a, dst: &narrow })?;
        h.be.cast(S, &Cast { src: &narrow, dst: &c })?;
        out.push(("cast to bf16 and back", h.read(&c)?));
        h.be.fill(S, &c, -2.5)?;
        out.push(("fill", h.read(&c)?));
    }
    let (x, bias) = (h.normal(&[5, 9])?, h.normal(&[9])?);
    h.be.add_bias(S, &AddBias { x: &x, bias: &bias })?;
    out.push(("add_bias", h.read(&x)?));
    Ok(out)
}

fn rows(h: &Harness) -> Result<Outputs> {
    let (src, index) = (h.normal(&[20, 7])?, h.ints(&[19, 0, 3, 3], &[4])?);
    let dst = h.out(&[4, 7])?;
    h.be.gather_rows(S, &GatherRows { src: &src, index: &index, dst: &dst })?;
    let into = h.normal(&[20, 7])?;
    h.be.scatter_rows(S, &ScatterRows { src: &dst, index: &h.ints(&[5, 0, 19, 7], &[4])?, dst: &into })?;
    Ok(vec![("gather", h.read(&dst)?), ("scatter", h.read(&into)?)])
}

fn reductions(h: &Harness) -> Result<Outputs> {
    let mut out = vec![];
    for (b, n) in [(1, 1), (7, 33), (3, 9000), (0, 4)] {
        let (x, y) = (h.normal(&[b, n])?, h.out_stat(&[n])?);
        h.be.reduce_rows(S, &ReduceRows { src: &x, dst: &y, beta: 0.0 })?;
        out.push(("reduce_rows", h.read(&y)?));
        h.be.reduce_rows(S, &ReduceRows { src: &x, dst: &y, beta: 1.0 })?;
        out.push(("reduce_rows, added", h.read(&y)?));
        let sum = h.poison(DType::F64, &[1])?;
        h.be.sum_sq(S, &SumSq { x: &x, out: &sum })?;
        out.push(("sum_sq", h.read(&sum)?));
    }
    let mut bad = vec![1.0; 100];
    (bad[3], bad[50], bad[99]) = (f64::NAN, f64::INFINITY, f64::NEG_INFINITY);
    let count = h.ints(&[-1], &[1])?;
    h.be.nonfinite(S, &Nonfinite { x: &h.from(h.dtype, &bad, &[100])?, out: &count })?;
    out.push(("nonfinite", h.read(&count)?));
    Ok(out)
}

fn adamw(h: &Harness) -> Result<Outputs> {
    let n = 203;
    let (w, m, g) = (h.stat(&[n], 0.0, 1.0)?, h.stat(&[n], 0.0, 0.1)?, h.stat(&[n], 0.0, 1.0)?);
    let v = h.from(h.acc(), &h.data(n).iter().map(|x| x * x * 0.01).collect::<Vec<_>>(), &[n])?;
    let param = h.out(&[n])?;
    for step in [1, 2, 1000] {
        let a = AdamW {
            master: &w,
            m: &m,
            v: &v,
            grad: &g,
            param: Some(&param),
            lr: 1e-2,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            step,
            grad_scale: 0.7,
        };
        h.be.adamw(S, &a)?;
    }
    Ok(vec![("master", h.read(&w)?), ("m", h.read(&m)?), ("v", h.read(&v)?), ("param", h.read(&param)?)])
}

fn sample(h: &Harness) -> Result<Outputs> {
    let (n, v) = (64, 50);
    let logits = h.normal(&[n, v])?;
    let mut out = vec![];
    for (temperature, top_k, top_p, min_p) in [
        (0.0, 0, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.8, 5, 1.0, 0.0),
        (1.3, 0, 0.6, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.0, 8, 0.9, 0.05),
    ] {
        let params: Vec<SampleParams> =
            (0..n as u64).map(|i| SampleParams { temperature, top_k, top_p, min_p, seed: 11, position: i }).collect();
        let tokens = h.ints(&vec![-1; n], &[n])?;
        h.be.sample(S, &Sample { logits: &logits, params: &params, tokens: &tokens })?;
        out.push(("tokens", h.read(&tokens)?));
    }
    Ok(out)
}

fn copies(h: &Harness) -> Result<Outputs> {
    let src = h.normal(&[4, 6, 5])?;
    let dst = h.normal(&[6, 9])?;
    h.be.copy(S, &dst.narrow(1, 2, 5)?, &src.select(0, 2)?)?;
    h.be.copy(S, &dst.narrow(0, 1, 4)?.narrow(1, 7, 1)?, &src.select(1, 3)?.narrow(1, 0, 1)?)?;
    Ok(vec![("strided", h.read(&dst)?)])
}
