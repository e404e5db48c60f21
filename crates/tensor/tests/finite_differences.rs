//! Every backward operation against central differences of its forward, in f64 on the reference backend.
//!
//! Directional: for four random directions per input, `<dy, (f(x + e v) - f(x - e v)) / 2e>` must be `<dx, v>`.
#![allow(clippy::unwrap_used)]

use tensor::ops::*;
use tensor::{Backend, DType, Philox, ReferenceBackend, Stream, Tag, Tensor};

const S: Stream = Stream::COMPUTE;
const EPS: f64 = 1e-5;
const BOUND: f64 = 1e-6;

fn be() -> ReferenceBackend {
    ReferenceBackend::new()
}

fn normals(seed: u64, n: usize) -> Vec<f64> {
    let rng = Philox::new(seed, 77);
    (0..n as u64).map(|i| rng.normal(i)).collect()
}

fn make(data: &[f64], dims: &[usize]) -> Tensor {
    Tensor::from_f64(&be(), DType::F64, data, dims, Tag::Work).unwrap()
}

fn random(seed: u64, dims: &[usize]) -> Tensor {
    make(&normals(seed, dims.iter().product()), dims)
}

fn nan(dims: &[usize]) -> Tensor {
    make(&vec![f64::NAN; dims.iter().product()], dims)
}

fn ints(x: &[i32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(&be(), x, dims, Tag::Work).unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_f64(&be()).unwrap()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

/// `forward` from inputs to outputs; `backward` from inputs and output gradients to input gradients.
fn check(
    name: &str,
    inputs: &[Tensor],
    forward: impl Fn(&[Tensor]) -> Vec<Tensor>,
    backward: impl Fn(&[Tensor], &[Tensor]) -> Vec<Tensor>,
) {
    let outputs = forward(inputs);
    let dys: Vec<Tensor> = outputs.iter().enumerate().map(|(i, y)| random(900 + i as u64, y.dims())).collect();
    let grads = backward(inputs, &dys);
    assert_eq!(grads.len(), inputs.len());
    let loss =
        |inputs: &[Tensor]| forward(inputs).iter().zip(&dys).map(|(y, dy)| dot(&values(y), &values(dy))).sum::<f64>();
    for (i, (x, g)) in inputs.iter().zip(&grads).enumerate() {
        let (x0, g) = (values(x), values(g));
        assert_eq!(x0.len(), g.len());
        for direction in 0..4 {
            let v = normals(5000 + 10 * i as u64 + direction, x0.len());
            let at = |e: f64| {
                let moved: Vec<f64> = x0.iter().zip(&v).map(|(x, v)| x + e * v).collect();
                let mut inputs = inputs.to_vec();
                inputs[i] = make(&moved, x.dims());
                loss(&inputs)
            };
            let numeric = (at(EPS) - at(-EPS)) / (2.0 * EPS);
            let error = (numeric - dot(&g, &v)).abs() / (numeric.abs() + 0.1 * norm(&g));
            assert!(
                error < BOUND,
                "{name}: input {i}, direction {direction}: {numeric} against {}, {error:e}",
                dot(&g, &v)
            );
        }
    }
}

#[test]
fn gemm_gradients() {
    let mul = |a: &Tensor, ta: bool, b: &Tensor, tb: bool, dims: &[usize]| {
        let d = nan(dims);
        be().gemm(S, &Gemm { a, ta, b, tb, d: &d, alpha: 1.0, beta: 0.0 }).unwrap();
        d
    };
    // y = x W^T: dx = dy W, dW = dy^T x, as the linear layers use it.
    check(
        "gemm",
        &[random(1, &[5, 7]), random(2, &[3, 7])],
        |i| vec![mul(&i[0], false, &i[1], true, &[5, 3])],
        |i, d| vec![mul(&d[0], false, &i[1], false, &[5, 7]), mul(&d[0], true, &i[0], false, &[3, 7])],
    );
}

#[test]
fn embed_gradients() {
    let ids = ints(&[3, 0, 9, 3, 3, 5], &[6]);
    check(
        "embed",
        &[random(1, &[5, 4])],
        |i| {
            let out = nan(&[6, 4]);
            be().embed_fwd(S, &EmbedFwd { ids: &ids, table: &i[0], first: 2, out: &out }).unwrap();
            vec![out]
        },
        |_, d| {
            let dtable = make(&[0.0; 20], &[5, 4]);
            be().embed_bwd(S, &EmbedBwd { ids: &ids, dout: &d[0], first: 2, dtable: &dtable }).unwrap();
            vec![dtable]
        },
    );
}

fn reduce(partial: &Tensor) -> Tensor {
    let out = nan(&partial.dims()[1..]);
    be().reduce_rows(S, &ReduceRows { src: partial, dst: &out, beta: 0.0 }).unwrap();
    out
}

#[test]
fn rmsnorm_gradients() {
    let (t, w) = (70, 6);
    let run = |i: &[Tensor]| {
        let (y, h, rstd) = (nan(&[t, w]), nan(&[t, w]), nan(&[t]));
        be().rmsnorm_fwd(
            S,
            &RmsNormFwd { x: &i[0], residual: Some(&i[1]), gamma: &i[2], eps: 1e-3, y: &y, h: Some(&h), rstd: &rstd },
        )
        .unwrap();
        (y, h, rstd)
    };
    check(
        "rmsnorm",
        &[random(1, &[t, w]), random(2, &[t, w]), random(3, &[w])],
        |i| {
            let (y, h, _) = run(i);
            vec![y, h]
        },
        |i, d| {
            let (_, h, rstd) = run(i);
            let (dx, partial) = (nan(&[t, w]), nan(&[row_blocks(t), w]));
            be().rmsnorm_bwd(
                S,
                &RmsNormBwd {
                    dy: &d[0],
                    h: &h,
                    rstd: &rstd,
                    gamma: &i[2],
                    dh: Some(&d[1]),
                    dx: &dx,
                    dgamma_partial: &partial,
                },
            )
            .unwrap();
            vec![dx.clone(), dx, reduce(&partial)]
        },
    );
}

#[test]
fn qk_norm_rope_gradients() {
    let (t, g, r, d, p) = (66, 2, 2, 6, 9);
    let positions = ints(&(0..t as i32).map(|i| i % p).collect::<Vec<_>>(), &[t]);
    let angles: Vec<f64> = (0..p as usize * d / 2).map(|i| i as f64 * 0.37).collect();
    let dims = [p as usize, d / 2];
    let (cos, sin) = (
        make(&angles.iter().map(|a| a.cos()).collect::<Vec<_>>(), &dims),
        make(&angles.iter().map(|a| a.sin()).collect::<Vec<_>>(), &dims),
    );
    for norms in [true, false] {
        let mut inputs = vec![random(1, &[t, g, r + 2, d])];
        if norms {
            inputs.extend([random(2, &[d]), random(3, &[d])]);
        }
        check(
            "qk_norm_rope",
            &inputs,
            |i| {
                let qk = nan(&[t, g, r + 1, d]);
                let a = QkNormRopeFwd {
                    qkv: &i[0],
                    positions: &positions,
                    cos: &cos,
                    sin: &sin,
                    q_gamma: i.get(1),
                    k_gamma: i.get(2),
                    eps: 1e-3,
                    qk: &qk,
                };
                be().qk_norm_rope_fwd(S, &a).unwrap();
                // Values pass: they are an output too.
                vec![qk, i[0].select(2, r + 1).unwrap()]
            },
            |i, dy| {
                let dqkv = nan(&[t, g, r + 2, d]);
                be().copy(S, &dqkv.narrow(2, 0, r + 1).unwrap(), &dy[0]).unwrap();
                be().copy(S, &dqkv.select(2, r + 1).unwrap(), &dy[1]).unwrap();
                let (dq, dk) = (nan(&[row_blocks(t), d]), nan(&[row_blocks(t), d]));
                let a = QkNormRopeBwd {
                    dqkv: &dqkv,
                    qkv: &i[0],
                    positions: &positions,
                    cos: &cos,
                    sin: &sin,
                    q_gamma: i.get(1),
                    k_gamma: i.get(2),
                    eps: 1e-3,
                    dq_gamma_partial: norms.then_some(&dq),
                    dk_gamma_partial: norms.then_some(&dk),
                };
                be().qk_norm_rope_bwd(S, &a).unwrap();
                if norms { vec![dqkv, reduce(&dq), reduce(&dk)] } else { vec![dqkv] }
            },
        );
    }
}

#[test]
fn attention_gradients() {
    let (g, r, d, scale) = (2, 2, 3, 0.6);
    let cu = [0, 5, 5, 6, 9];
    let t = 9;
    let cu = ints(&cu, &[5]);
    let views = |x: &Tensor| (x.narrow(2, 0, r).unwrap(), x.select(2, r).unwrap(), x.select(2, r + 1).unwrap());
    let run = |x: &Tensor| {
        let (q, k, v) = views(x);
        let (o, lse) = (nan(&[t, g, r, d]), nan(&[t, g, r]));
        be().attn_fwd(S, &AttnFwd { q: &q, k: &k, v: &v, cu_seqlens: &cu, max_seqlen: 5, scale, o: &o, lse: &lse })
            .unwrap();
        (o, lse)
    };
    check(
        "attention",
        &[random(1, &[t, g, r + 2, d])],
        |i| vec![run(&i[0]).0],
        |i, dy| {
            let ((o, lse), (q, k, v), dqkv) = (run(&i[0]), views(&i[0]), nan(&[t, g, r + 2, d]));
            let a = AttnBwd {
                q: &q,
                k: &k,
                v: &v,
                o: &o,
                d_o: &dy[0],
                lse: &lse,
                cu_seqlens: &cu,
                max_seqlen: 5,
                scale,
                dqkv: &dqkv,
            };
            be().attn_bwd(S, &a).unwrap();
            vec![dqkv]
        },
    );
}

#[test]
fn swiglu_gradients() {
    check(
        "swiglu",
        &[random(1, &[4, 2, 5])],
        |i| {
            let y = nan(&[4, 5]);
            be().swiglu_fwd(S, &SwigluFwd { gate_up: &i[0], y: &y }).unwrap();
            vec![y]
        },
        |i, d| {
            let dx = nan(&[4, 2, 5]);
            be().swiglu_bwd(S, &SwigluBwd { gate_up: &i[0], dy: &d[0], dgate_up: &dx, y: None }).unwrap();
            vec![dx]
        },
    );
}

#[test]
fn log_prob_and_entropy_gradients() {
    let (n, v) = (5, 9);
    let targets = ints(&[0, 8, 3, 3, 5], &[n]);
    let temperature = make(&[1.0, 0.5, 2.0, 0.9, 1.3], &[n]);
    let stats = |x: &Tensor| {
        let s = nan(&[n, 4]);
        be().logprob_stats(
            S,
            &LogprobStats { logits: x, targets: &targets, first: 0, temperature: &temperature, stats: &s },
        )
        .unwrap();
        s
    };
    check(
        "logprob",
        &[random(1, &[n, v])],
        |i| {
            let s: Vec<TokenStats<f64>> = values(&stats(&i[0]))
                .chunks_exact(4)
                .map(|r| TokenStats::<f64>::from_row([r[0], r[1], r[2], r[3]]))
                .collect();
            let column = |f: fn(&TokenStats<f64>) -> f64| make(&s.iter().map(f).collect::<Vec<_>>(), &[n]);
            vec![column(TokenStats::<f64>::logp), column(TokenStats::<f64>::entropy)]
        },
        |i, d| {
            let x = make(&values(&i[0]), &[n, v]);
            let a = LogprobDlogits {
                logits: &x,
                targets: &targets,
                first: 0,
                temperature: &temperature,
                stats: &stats(&i[0]),
                dlogp: &d[0],
                dentropy: Some(&d[1]),
            };
            be().logprob_dlogits(S, &a).unwrap();
            vec![x]
        },
    );
}
