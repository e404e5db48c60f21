//! Every layer against central differences of its forward, in f64 on the reference backend: the input gradient and
//! the gradient of each parameter, along four random directions each.
#![allow(clippy::unwrap_used)]

use nn::*;
use tensor::ops::TokenStats;
use tensor::{Backend, DType, Philox, ReferenceBackend, SingleRank, Stream, Tag, Tensor};

const EPS: f64 = 1e-5;
const BOUND: f64 = 1e-6;
const T: usize = 9;
const H: usize = 6;
const F: usize = 5;
const G: usize = 2;
const R: usize = 2;
const D: usize = 4;

fn normals(seed: u64, n: usize) -> Vec<f64> {
    let rng = Philox::new(seed, 3);
    (0..n as u64).map(|i| rng.normal(i)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// A device, parameters of the given shapes with random values, and a packed layout.
struct Bench {
    be: ReferenceBackend,
    tp: SingleRank,
    params: ParamStore,
    grads: GradStore,
    seq: SeqLayout,
    rope: RopeTable,
}

impl Bench {
    fn new(shapes: &[&[usize]]) -> Bench {
        let be = ReferenceBackend::new();
        let specs = shapes
            .iter()
            .enumerate()
            .map(|(i, s)| ParamSpec {
                name: format!("p{i}"),
                shape: s.to_vec(),
                shard: Shard::Replicated,
                tp_grad: TpGrad::Complete,
                init: Init::Normal { std: 0.5 },
                weight_decay: true,
                hf: vec![],
            })
            .collect();
        let params = ParamStore::new(&be, specs, DType::F64, 0, 1).unwrap();
        params.init_random(&be, 5).unwrap();
        let grads = GradStore::new(&be, &params).unwrap();
        let seq = SeqLayout::new(&be, &[4, 0, 1, 4], 1).unwrap();
        let rope = RopeTable::new(D, 100.0, RopeScaling::None, DType::F64);
        Bench { be, tp: SingleRank::new("tp"), params, grads, seq, rope }
    }

    fn cx(&self) -> Cx<'_> {
        Cx {
            be: &self.be,
            stream: Stream::COMPUTE,
            tp: &self.tp,
            sequence_parallel: true,
            params: &self.params,
            grads: Some(&self.grads),
            layout: Layout::Packed(&self.seq),
            rope: &self.rope,
        }
    }

    fn tensor(&self, data: &[f64], dims: &[usize]) -> Tensor {
        Tensor::from_f64(&self.be, DType::F64, data, dims, Tag::Act).unwrap()
    }

    /// `loss` is a function of the input and of the parameters as they stand; `dx` its gradient, the parameters' are
    /// in `self.grads`.
    fn check(&self, name: &str, x: &[f64], dx: &[f64], loss: impl Fn(&[f64]) -> f64) {
        let compare = |what: &str, g: &[f64], at: &dyn Fn(&[f64]) -> f64| {
            for direction in 0..4 {
                let v = normals(70 + direction, g.len());
                let step = |e: f64| at(&v.iter().map(|v| e * v).collect::<Vec<_>>());
                let numeric = (step(EPS) - step(-EPS)) / (2.0 * EPS);
                let error = (numeric - dot(g, &v)).abs() / (numeric.abs() + 0.1 * dot(g, g).sqrt());
                assert!(
                    error < BOUND,
                    "{name} {what} direction {direction}: {numeric} against {}: {error:e}",
                    dot(g, &v)
                );
            }
        };
        if !dx.is_empty() {
            compare("input", dx, &|d| loss(&x.iter().zip(d).map(|(a, b)| a + b).collect::<Vec<_>>()));
        }
        for i in 0..self.params.specs().len() {
            let (p, g) = (self.params.get(ParamId(i)), self.grads.get(ParamId(i)).to_f64(&self.be).unwrap());
            assert!(dot(&g, &g) > 0.0, "{name}: parameter {i} has no gradient");
            let old = p.to_f64(&self.be).unwrap();
            let set = |data: &[f64]| self.be.copy(Stream::COMPUTE, p, &self.tensor(data, p.dims())).unwrap();
            compare(&format!("parameter {i}"), &g, &|d| {
                set(&old.iter().zip(d).map(|(a, b)| a + b).collect::<Vec<_>>());
                let l = loss(x);
                set(&old);
                l
            });
        }
    }

    /// A layer from `[T, width]`.
    fn layer(&self, name: &str, layer: &dyn Layer, width: usize) {
        let cx = self.cx();
        let x = normals(1, T * width);
        let run = |x: &[f64], sv: &mut Saved| layer.forward(&cx, self.tensor(x, &[T, width]), sv).unwrap();
        let mut sv = Saved::keep();
        let y = run(&x, &mut sv);
        let dy = normals(2, y.numel());
        let dx = layer.backward_input(&cx, self.tensor(&dy, y.dims()), &mut sv).unwrap();
        // A schedule may run anything in between.
        run(&normals(3, T * width), &mut Saved::keep());
        layer.backward_weight(&cx, sv).unwrap();
        self.check(name, &x, &dx.to_f64(&self.be).unwrap(), |x| {
            dot(&dy, &run(x, &mut Saved::forget()).to_f64(&self.be).unwrap())
        });
    }
}

fn attention(first: usize, norms: bool) -> Attention {
    Attention {
        qkv: ColumnLinear { weight: ParamId(first) },
        out: RowLinear { weight: ParamId(first + 1) },
        norms: norms.then_some((ParamId(first + 2), ParamId(first + 3))),
        config: AttentionConfig { rep: R, head_dim: D, eps: 1e-3, kv_layer: 0 },
    }
}

fn mlp(first: usize) -> Mlp {
    Mlp { gate_up: ColumnLinear { weight: ParamId(first) }, down: RowLinear { weight: ParamId(first + 1) } }
}

const QKV: &[usize] = &[G, (R + 2) * D, H];
const OUT: &[usize] = &[H, G * R * D];

#[test]
fn linear_layers() {
    Bench::new(&[&[7, H]]).layer("ColumnLinear", &ColumnLinear { weight: ParamId(0) }, H);
    Bench::new(&[&[7, H]]).layer("RowLinear", &RowLinear { weight: ParamId(0) }, H);
}

#[test]
fn norm() {
    Bench::new(&[&[H]]).layer("RmsNorm", &RmsNorm { weight: ParamId(0), eps: 1e-3 }, H);
}

#[test]
fn attention_with_and_without_norms() {
    Bench::new(&[QKV, OUT, &[D], &[D]]).layer("Attention", &attention(0, true), H);
    Bench::new(&[QKV, OUT]).layer("Attention without norms", &attention(0, false), H);
}

#[test]
fn gated_mlp() {
    Bench::new(&[&[2, F, H], &[H, F]]).layer("Mlp", &mlp(0), H);
}

fn block() -> Block {
    Block {
        norm1: RmsNorm { weight: ParamId(0), eps: 1e-3 },
        mixer: Box::new(attention(1, true)),
        norm2: RmsNorm { weight: ParamId(5), eps: 1e-3 },
        ffn: Box::new(mlp(6)),
    }
}

const BLOCK: &[&[usize]] = &[&[H], QKV, OUT, &[D], &[D], &[H], &[2, F, H], &[H, F]];

#[test]
fn whole_block_with_and_without_recompute() {
    Bench::new(BLOCK).layer("Block", &block(), H);
    Bench::new(BLOCK).layer("Recompute<Block>", &Recompute(block()), H);
}

#[test]
fn embedding() {
    let b = Bench::new(&[&[11, H]]);
    let (cx, e) = (b.cx(), Embedding { weight: ParamId(0) });
    let ids = Tensor::from_slice(&b.be, &[3, 10, 0, 3, 3, 7, 1, 2, 10], &[T], Tag::Act).unwrap();
    let dy = normals(2, T * H);
    e.backward_weight(&cx, &ids, b.tensor(&dy, &[T, H])).unwrap();
    b.check("Embedding", &[], &[], |_| dot(&dy, &e.forward(&cx, &ids).unwrap().to_f64(&b.be).unwrap()));
}

#[test]
fn head_whole_and_in_chunks() {
    for chunk in [100, 4] {
        let b = Bench::new(&[&[11, H]]);
        let (cx, head) = (b.cx(), LmHead { weight: ParamId(0), chunk });
        let targets = Tensor::from_slice(&b.be, &[3, 10, 0, 3, 3, 7, 1, 2, 10], &[T], Tag::Act).unwrap();
        let temperature = b.tensor(&[0.8; T], &[T]);
        let run = |h: &[f64], sv: &mut Saved| {
            head.forward(&cx, &b.tensor(h, &[T, H]), &targets, &temperature, sv).unwrap().to_f64(&b.be).unwrap()
        };
        let (h, dlogp, dentropy) = (normals(1, T * H), normals(2, T), normals(3, T));
        let mut sv = Saved::keep();
        run(&h, &mut sv);
        let dh = head.backward(&cx, &b.tensor(&dlogp, &[T]), Some(&b.tensor(&dentropy, &[T])), sv).unwrap();
        b.check("LmHead", &h, &dh.to_f64(&b.be).unwrap(), |h| {
            let stats = run(h, &mut Saved::forget());
            let s = stats.chunks_exact(4).map(|r| TokenStats::<f64>::from_row([r[0], r[1], r[2], r[3]]));
            s.zip(dlogp.iter().zip(&dentropy)).map(|(s, (a, b))| a * s.logp() + b * s.entropy()).sum()
        });
    }
}

#[test]
fn a_backward_without_its_forward_is_refused() {
    let b = Bench::new(BLOCK);
    let cx = b.cx();
    let x = b.tensor(&normals(1, T * H), &[T, H]);
    let mut forgotten = Saved::forget();
    block().forward(&cx, x.clone(), &mut forgotten).unwrap();
    assert!(matches!(block().backward_input(&cx, x, &mut forgotten), Err(Error::NotSaved { .. })));
}
