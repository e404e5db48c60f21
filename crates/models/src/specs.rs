use nn::{HfPiece, Init, ParamSpec, Rect, Shard, TpGrad};

use crate::{Architecture, ModelConfig};

pub(crate) const EMBED: &str = "embed";
pub(crate) const FINAL_NORM: &str = "final_norm";
pub(crate) const LM_HEAD: &str = "lm_head";

pub(crate) fn layer_name(layer: usize, part: &str) -> String {
    format!("layers.{layer}.{part}")
}

/// Every parameter of the whole model, in order: embedding, layers, final norm, head (absent when tied).
///
/// Layouts: `attn.qkv` is `[G, (R + 2) D, H]`, per key-value head its queries, key and value, cut by whole heads;
/// `mlp.gate_up` is `[2, F, H]`, both halves cut alike.
pub fn param_specs(c: &ModelConfig) -> Vec<ParamSpec> {
    let (h, d, g, r, f) = (c.hidden_size, c.head_dim, c.kv_heads, c.rep(), c.intermediate_size);
    let normal = Init::Normal { std: 0.02 };
    // GPT-2's rule: what adds to the residual stream is scaled by the number of additions.
    let output = Init::Normal { std: 0.02 / (2.0 * c.layers.max(1) as f64).sqrt() };
    let mut specs =
        vec![matrix(EMBED.into(), &[c.vocab_size, h], Shard::Vocab(0), normal, "model.embed_tokens.weight")];
    for l in 0..c.layers {
        let hf = |part: &str| format!("model.layers.{l}.{part}.weight");
        specs.push(norm(layer_name(l, "attn_norm"), h, hf("input_layernorm"), TpGrad::PartialIfSequenceParallel));
        let piece = |name: &str, start: usize, heads: usize| HfPiece {
            name: hf(name),
            shape: vec![g * heads * d, h],
            rect: Rect { offset: vec![0, start * d, 0], shape: vec![g, heads * d, h] },
        };
        specs.push(ParamSpec {
            name: layer_name(l, "attn.qkv"),
            shape: vec![g, (r + 2) * d, h],
            shard: Shard::Column(0),
            tp_grad: TpGrad::Complete,
            init: normal,
            weight_decay: true,
            hf: vec![
                piece("self_attn.q_proj", 0, r),
                piece("self_attn.k_proj", r, 1),
                piece("self_attn.v_proj", r + 1, 1),
            ],
        });
        if c.architecture == Architecture::Qwen3 {
            specs.push(norm(layer_name(l, "attn.q_norm"), d, hf("self_attn.q_norm"), TpGrad::Partial));
            specs.push(norm(layer_name(l, "attn.k_norm"), d, hf("self_attn.k_norm"), TpGrad::Partial));
        }
        specs.push(matrix(layer_name(l, "attn.o"), &[h, g * r * d], Shard::Row(1), output, &hf("self_attn.o_proj")));
        specs.push(norm(
            layer_name(l, "mlp_norm"),
            h,
            hf("post_attention_layernorm"),
            TpGrad::PartialIfSequenceParallel,
        ));
        let half = |name: &str, i: usize| HfPiece {
            name: hf(name),
            shape: vec![f, h],
            rect: Rect { offset: vec![i, 0, 0], shape: vec![1, f, h] },
        };
        specs.push(ParamSpec {
            name: layer_name(l, "mlp.gate_up"),
            shape: vec![2, f, h],
            shard: Shard::Column(1),
            tp_grad: TpGrad::Complete,
            init: normal,
            weight_decay: true,
            hf: vec![half("mlp.gate_proj", 0), half("mlp.up_proj", 1)],
        });
        specs.push(matrix(layer_name(l, "mlp.down"), &[h, f], Shard::Row(1), output, &hf("mlp.down_proj")));
    }
    specs.push(norm(FINAL_NORM.into(), h, "model.norm.weight".into(), TpGrad::PartialIfSequenceParallel));
    if !c.tie_word_embeddings {
        specs.push(matrix(LM_HEAD.into(), &[c.vocab_size, h], Shard::Vocab(0), normal, "lm_head.weight"));
    }
    specs
}

fn whole(
    name: String,
    shape: Vec<usize>,
    shard: Shard,
    tp_grad: TpGrad,
    init: Init,
    weight_decay: bool,
    hf: String,
) -> ParamSpec {
    let piece = HfPiece { name: hf, shape: shape.clone(), rect: Rect::full(&shape) };
    ParamSpec { name, shape, shard, tp_grad, init, weight_decay, hf: vec![piece] }
}

fn matrix(name: String, shape: &[usize], shard: Shard, init: Init, hf: &str) -> ParamSpec {
    whole(name, shape.to_vec(), shard, TpGrad::Complete, init, true, hf.into())
}

fn norm(name: String, width: usize, hf: String, tp_grad: TpGrad) -> ParamSpec {
    whole(name, vec![width], Shard::Replicated, tp_grad, Init::Ones, false, hf)
}
