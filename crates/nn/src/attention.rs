//! Causal self-attention with grouped queries: fused QKV projection, per-head norm and rotary embedding, attention,
//! output projection. Over packed sequences, or over a paged cache that it writes first.
//!
//! The fused activation is `[T, G, R + 2, D]`: per key-value head its R queries, its key, its value; a tensor-parallel
//! rank holds `G / tp` whole groups. Saves the raw `qkv`, the rotated `qk`, the output and its log-sum-exp.

use tensor::Tensor;
use tensor::ops::{AttnBwd, AttnFwd, AttnPaged, KvWrite, QkNormRopeBwd, QkNormRopeFwd, row_blocks};

use crate::norm::add_partials;
use crate::{ColumnLinear, Cx, Error, Layer, Layout, ParamId, Result, RowLinear, Saved};

#[derive(Clone, Copy, Debug)]
pub struct AttentionConfig {
    /// query heads per key-value head
    pub rep: usize,
    pub head_dim: usize,
    /// of the q and k norms
    pub eps: f64,
    /// place of this layer in the stage's [`crate::KvCache`]
    pub kv_layer: usize,
}

#[derive(Debug)]
pub struct Attention {
    pub qkv: ColumnLinear,
    pub out: RowLinear,
    /// q and k norm weights, `[D]` each
    pub norms: Option<(ParamId, ParamId)>,
    pub config: AttentionConfig,
}

const QKV: usize = 0;
const QK: usize = 1;
const O: usize = 2;
const LSE: usize = 3;
const DQ_NORM: usize = 4;
const DK_NORM: usize = 5;
const C_QKV: usize = 0;
const C_OUT: usize = 1;
const NAME: &str = "Attention";

impl Attention {
    fn scale(&self) -> f64 {
        1.0 / (self.config.head_dim as f64).sqrt()
    }

    /// Queries, key and value of each group in `[T, G, R + 2, D]` or, without the value, `[T, G, R + 1, D]`.
    fn part(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        Ok(x.select(2, start)?)
    }

    fn gammas<'a>(&self, cx: &Cx<'a>) -> (Option<&'a Tensor>, Option<&'a Tensor>) {
        self.norms.map_or((None, None), |(q, k)| (Some(cx.params.get(q)), Some(cx.params.get(k))))
    }

    fn max_position(cx: &Cx) -> usize {
        match &cx.layout {
            Layout::Packed(seq) => seq.max_seqlen(),
            Layout::Cached(kv) => kv.batch.max_position(),
        }
    }
}

impl Layer for Attention {
    fn forward(&self, cx: &Cx, x: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let AttentionConfig { rep, head_dim, eps, kv_layer } = self.config;
        let qkv = self.qkv.forward(cx, x, sv.child(C_QKV))?;
        let t = qkv.dim(0);
        let groups = qkv.dim(1) / ((rep + 2) * head_dim);
        let qkv = qkv.reshape(&[t, groups, rep + 2, head_dim])?;
        let (cos, sin) = cx.rope.tables(cx.be, Self::max_position(cx))?;
        let (q_gamma, k_gamma) = self.gammas(cx);
        let qk = cx.act(&[t, groups, rep + 1, head_dim])?;
        let rope = QkNormRopeFwd {
            qkv: &qkv,
            positions: cx.positions(),
            cos: &cos,
            sin: &sin,
            q_gamma,
            k_gamma,
            eps,
            qk: &qk,
        };
        cx.be.qk_norm_rope_fwd(cx.stream, &rope)?;

        let q = qk.narrow(2, 0, rep)?;
        let (k, v) = (self.part(&qk, rep)?, self.part(&qkv, rep + 1)?);
        let o = cx.act(&[t, groups, rep, head_dim])?;
        match &cx.layout {
            Layout::Packed(seq) => {
                let lse = cx.stat(&[t, groups, rep])?;
                let attn = AttnFwd {
                    q: &q,
                    k: &k,
                    v: &v,
                    cu_seqlens: seq.cu(),
                    max_seqlen: seq.max_seqlen(),
                    scale: self.scale(),
                    o: &o,
                    lse: &lse,
                };
                cx.be.attn_fwd(cx.stream, &attn)?;
                sv.put(LSE, &lse);
            }
            Layout::Cached(kv) => {
                if sv.keeps() {
                    return Err(Error::Unsupported {
                        layer: NAME,
                        what: "there is no backward pass through a paged cache",
                    });
                }
                let (k_pages, v_pages) = kv.cache.layer(kv_layer);
                cx.be.kv_write(cx.stream, &KvWrite { k: &k, v: &v, k_pages, v_pages, slots: &kv.batch.slots })?;
                let b = kv.batch;
                let attn = AttnPaged {
                    q: &q,
                    k_pages,
                    v_pages,
                    cu_q: &b.cu_q,
                    kv_len: &b.kv_len,
                    block_table: &b.block_table,
                    scale: self.scale(),
                    o: &o,
                };
                cx.be.attn_paged(cx.stream, &attn)?;
            }
        }
        sv.put(QKV, &qkv);
        sv.put(QK, &qk);
        sv.put(O, &o);
        self.out.forward(cx, o.reshape(&[t, groups * rep * head_dim])?, sv.child(C_OUT))
    }

    fn backward_input(&self, cx: &Cx, dy: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let AttentionConfig { rep, head_dim, eps, .. } = self.config;
        let Layout::Packed(seq) = &cx.layout else {
            return Err(Error::Unsupported { layer: NAME, what: "there is no backward pass through a paged cache" });
        };
        let d_o = self.out.backward_input(cx, dy, sv.child(C_OUT))?;
        let (qkv, qk) = (sv.take(QKV, NAME, "qkv")?, sv.take(QK, NAME, "qk")?);
        let (o, lse) = (sv.take(O, NAME, "o")?, sv.take(LSE, NAME, "lse")?);
        let d_o = d_o.reshape(o.dims())?;
        let dqkv = cx.act(qkv.dims())?;
        let attn = AttnBwd {
            q: &qk.narrow(2, 0, rep)?,
            k: &self.part(&qk, rep)?,
            v: &self.part(&qkv, rep + 1)?,
            o: &o,
            d_o: &d_o,
            lse: &lse,
            cu_seqlens: seq.cu(),
            max_seqlen: seq.max_seqlen(),
            scale: self.scale(),
            dqkv: &dqkv,
        };
        cx.be.attn_bwd(cx.stream, &attn)?;
        drop((qk, o, lse));

        let (cos, sin) = cx.rope.tables(cx.be, Self::max_position(cx))?;
        let (q_gamma, k_gamma) = self.gammas(cx);
        let partial = || cx.stat(&[row_blocks(qkv.dim(0)), head_dim]);
        let partials = if self.norms.is_some() { Some((partial()?, partial()?)) } else { None };
        let rope = QkNormRopeBwd {
            dqkv: &dqkv,
            qkv: &qkv,
            positions: cx.positions(),
            cos: &cos,
            sin: &sin,
            q_gamma,
            k_gamma,
            eps,
            dq_gamma_partial: partials.as_ref().map(|p| &p.0),
            dk_gamma_partial: partials.as_ref().map(|p| &p.1),
        };
        cx.be.qk_norm_rope_bwd(cx.stream, &rope)?;
        if let Some((dq, dk)) = &partials {
            sv.put(DQ_NORM, dq);
            sv.put(DK_NORM, dk);
        }
        let (t, n) = (dqkv.dim(0), dqkv.dim(1) * dqkv.dim(2) * dqkv.dim(3));
        self.qkv.backward_input(cx, dqkv.reshape(&[t, n])?, sv.child(C_QKV))
    }

    fn backward_weight(&self, cx: &Cx, mut sv: Saved) -> Result<()> {
        self.out.backward_weight(cx, sv.take_child(C_OUT))?;
        if let Some((q, k)) = self.norms {
            add_partials(cx, &sv.take(DQ_NORM, NAME, "q norm gradient")?, q)?;
            add_partials(cx, &sv.take(DK_NORM, NAME, "k norm gradient")?, k)?;
        }
        self.qkv.backward_weight(cx, sv.take_child(C_QKV))
    }
}
