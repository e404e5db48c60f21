use super::Report;
use super::cases::{cumulative, fused};
use super::harness::{Harness, differing};
use crate::ops::*;
use crate::{Backend, DType, PAGE, Result, Stream, Tensor};

const S: Stream = Stream::COMPUTE;

/// Rows alone must have the bits of rows in company.
pub(super) fn all(be: &dyn Backend, dtype: DType, report: &mut Report) -> Result<()> {
    let h = Harness::new(be, dtype);
    gemm_rows(&h, report)?;
    gemm_columns(&h, report)?;
    norm_rows(&h, report)?;
    logprob_rows(&h, report)?;
    attention_sequences(&h, report)?;
    paged_steps(&h, report)
}

fn product(h: &Harness, a: &Tensor, ta: bool, b: &Tensor, tb: bool) -> Result<Vec<f64>> {
    let m = if ta { a.dim(1) } else { a.dim(0) };
    let n = if tb { b.dim(0) } else { b.dim(1) };
    let d = h.out(&[m, n])?;
    h.be.gemm(S, &Gemm { a, ta, b, tb, d: &d, alpha: 1.0, beta: 0.0 })?;
    h.read(&d)
}

fn gemm_rows(h: &Harness, report: &mut Report) -> Result<()> {
    for (n, k) in [(47, 64), (130, 64), (65, 300), (16, 513), (300, 1024)] {
        let m = 200;
        for tb in [true, false] {
            let (a, b) = (h.normal(&[m, k])?, h.normal(&if tb { [n, k] } else { [k, n] })?);
            let whole = product(h, &a, false, &b, tb)?;
            let mut bad = 0.0;
            for (at, rows) in [
                (0, 1),
                (7, 1),
                (199, 1),
                (3, 2),
                (50, 3),
                (8, 4),
                (9, 5),
                (1, 7),
                (11, 8),
                (64, 9),
                (30, 16),
                (99, 31),
                (5, 64),
                (70, 130),
            ] {
                let part = product(h, &a.narrow(0, at, rows)?, false, &b, tb)?;
                bad += differing(&part, &whole[at * n..(at + rows) * n]);
            }
            report.push(format!("gemm {n}x{k} tb {tb}: rows in any number"), bad, 0.0);
        }
    }
    Ok(())
}

/// What a tensor-parallel rank computes: some columns of the weight.
fn gemm_columns(h: &Harness, report: &mut Report) -> Result<()> {
    for (m, n, k) in [(1, 96, 64), (13, 130, 300)] {
        let (a, b) = (h.normal(&[m, k])?, h.normal(&[n, k])?);
        let whole = product(h, &a, false, &b, true)?;
        let mut bad = 0.0;
        for (at, cols) in [(0, n / 2), (n / 2, n / 2), (1, 1), (5, 17)] {
            let part = product(h, &a, false, &b.narrow(0, at, cols)?, true)?;
            let want: Vec<f64> = whole.chunks_exact(n).flat_map(|r| r[at..at + cols].to_vec()).collect();
            bad += differing(&part, &want);
        }
        report.push(format!("gemm {m}x{n}x{k}: columns in any number"), bad, 0.0);
    }
    Ok(())
}

fn norm_rows(h: &Harness, report: &mut Report) -> Result<()> {
    let (t, w) = (150, 77);
    let (x, gamma) = (h.normal(&[t, w])?, h.normal(&[w])?);
    let norm = |x: &Tensor| {
        let (y, rstd) = (h.out(x.dims())?, h.out_stat(&[x.dim(0)])?);
        h.be.rmsnorm_fwd(S, &RmsNormFwd { x, residual: None, gamma: &gamma, eps: 1e-6, y: &y, h: None, rstd: &rstd })?;
        h.read(&y)
    };
    let whole = norm(&x)?;
    let mut bad = 0.0;
    for (at, rows) in [(0, 1), (149, 1), (63, 2), (10, 70)] {
        bad += differing(&norm(&x.narrow(0, at, rows)?)?, &whole[at * w..(at + rows) * w]);
    }
    report.push("rmsnorm: rows in any number", bad, 0.0);
    Ok(())
}

fn logprob_rows(h: &Harness, report: &mut Report) -> Result<()> {
    let (n, v) = (40, 1500);
    let (logits, targets, temperature) = (h.normal(&[n, v])?, h.ids(&[n], v)?, h.from(h.acc(), &vec![0.9; n], &[n])?);
    let stats = |at: usize, rows: usize| {
        let out = h.out_stat(&[rows, 4])?;
        h.be.logprob_stats(
            S,
            &LogprobStats {
                logits: &logits.narrow(0, at, rows)?,
                targets: &targets.narrow(0, at, rows)?,
                first: 0,
                temperature: &temperature.narrow(0, at, rows)?,
                stats: &out,
            },
        )?;
        h.read(&out)
    };
    let whole = stats(0, n)?;
    let mut bad = 0.0;
    for (at, rows) in [(0, 1), (39, 1), (5, 17)] {
        bad += differing(&stats(at, rows)?, &whole[at * 4..(at + rows) * 4]);
    }
    report.push("logprob_stats: rows in any number", bad, 0.0);
    Ok(())
}

/// Outputs of packed attention over some sequences, one vector a sequence.
fn attend(h: &Harness, qkv: &Tensor, lengths: &[usize]) -> Result<Vec<Vec<f64>>> {
    let (q, k, v) = fused(qkv)?;
    let (o, lse) = (h.out(q.dims())?, h.out_stat(&[q.dim(0), q.dim(1), q.dim(2)])?);
    let cu = h.ints(&cumulative(lengths), &[lengths.len() + 1])?;
    let max_seqlen = lengths.iter().copied().max().unwrap_or(0);
    h.be.attn_fwd(S, &AttnFwd { q: &q, k: &k, v: &v, cu_seqlens: &cu, max_seqlen, scale: 0.25, o: &o, lse: &lse })?;
    let o = h.read(&o)?;
    let row: usize = q.dims()[1..].iter().product();
    let mut at = 0;
    Ok(lengths
        .iter()
        .map(|n| {
            at += n * row;
            o[at - n * row..at].to_vec()
        })
        .collect())
}

fn attention_sequences(h: &Harness, report: &mut Report) -> Result<()> {
    let lengths = [5, 64, 1, 129, 70];
    let qkv = h.normal(&[lengths.iter().sum(), 2, 4, 24])?;
    let whole = attend(h, &qkv, &lengths)?;
    let (mut bad, mut at) = (0.0, 0);
    for (n, want) in lengths.iter().zip(&whole) {
        bad += differing(&attend(h, &qkv.narrow(0, at, *n)?, &[*n])?[0], want);
        at += n;
    }
    report.push("attn_fwd: sequences packed in any company", bad, 0.0);
    Ok(())
}

/// A sequence served in steps of any sizes, on any pages, beside another.
fn paged_steps(h: &Harness, report: &mut Report) -> Result<()> {
    let (n, g, r, d, pages) = (200, 2, 2, 24, 6);
    let qkv = h.normal(&[n, g, r + 2, d])?;
    let want = attend(h, &qkv, &[n])?.swap_remove(0);
    for (name, steps) in
        [("token by token", vec![1; n]), ("in chunks", vec![63, 1, 64, 2, 65, 5]), ("at once", vec![n])]
    {
        let (kp, vp) = (h.out(&k_page_dims(pages, g, d))?, h.out(&v_page_dims(pages, g, d))?);
        let table = [3i32, 0, 5, 1];
        let (mut at, mut got) = (0, vec![]);
        for step in steps {
            let part = qkv.narrow(0, at, step)?;
            let (q, k, v) = fused(&part)?;
            let slots: Vec<i32> = (at..at + step).map(|p| table[p / PAGE] * PAGE as i32 + (p % PAGE) as i32).collect();
            h.be.kv_write(S, &KvWrite { k: &k, v: &v, k_pages: &kp, v_pages: &vp, slots: &h.ints(&slots, &[step])? })?;
            at += step;
            let o = h.out(&[step, g, r, d])?;
            h.be.attn_paged(
                S,
                &AttnPaged {
                    q: &q,
                    k_pages: &kp,
                    v_pages: &vp,
                    cu_q: &h.ints(&[0, step as i32], &[2])?,
                    kv_len: &h.ints(&[at as i32], &[1])?,
                    block_table: &h.ints(&table, &[1, 4])?,
                    scale: 0.25,
                    o: &o,
                },
            )?;
            got.extend(h.read(&o)?);
        }
        report.push(format!("attn_paged {name} = attn_fwd"), differing(&got, &want), 0.0);
    }
    Ok(())
}
