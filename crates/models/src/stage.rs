use std::ops::Range;

use nn::{
    Attention, AttentionConfig, Block, ColumnLinear, Cx, Embedding, Layer, LmHead, Mlp, ParamId, ParamSpec, Recompute,
    RmsNorm, RowLinear, Saved,
};
use tensor::Tensor;

use crate::specs::{EMBED, FINAL_NORM, LM_HEAD, layer_name};
use crate::{Architecture, Error, ModelConfig, Result, param_specs};

/// Which part of a model a stage holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageRange {
    pub layers: Range<usize>,
    pub embedding: bool,
    pub head: bool,
}

impl StageRange {
    /// All of it.
    pub fn whole(config: &ModelConfig) -> StageRange {
        StageRange { layers: 0..config.layers, embedding: true, head: true }
    }
}

/// A range of layers, with or without the embedding in front and the head behind: what one pipeline rank runs.
#[derive(Debug)]
pub struct Stage {
    range: StageRange,
    specs: Vec<ParamSpec>,
    embedding: Option<Embedding>,
    blocks: Vec<Box<dyn Layer>>,
    head: Option<(RmsNorm, LmHead)>,
}

const C_NORM: usize = 0;
const C_BLOCKS: usize = 1;

impl Stage {
    /// `chunk` rows of logits are held at a time; with `recompute`, blocks keep only their inputs.
    pub fn new(config: &ModelConfig, range: StageRange, chunk: usize, recompute: bool) -> Result<Stage> {
        if range.layers.start > range.layers.end || range.layers.end > config.layers {
            return Err(Error::Call(format!("layers {:?} of a model of {}", range.layers, config.layers)));
        }
        if config.tie_word_embeddings && range.embedding != range.head {
            return Err(Error::Call("tied embeddings need embedding and head in one stage".into()));
        }
        let specs: Vec<ParamSpec> = param_specs(config).into_iter().filter(|s| holds(&range, &s.name)).collect();
        let id = |name: &str| {
            specs
                .iter()
                .position(|s| s.name == name)
                .map(ParamId)
                .ok_or_else(|| Error::Call(format!("no parameter {name} in this stage")))
        };
        let embedding = if range.embedding { Some(Embedding { weight: id(EMBED)? }) } else { None };
        let eps = config.rms_norm_eps;
        let mut blocks: Vec<Box<dyn Layer>> = Vec::new();
        for (kv_layer, l) in range.layers.clone().enumerate() {
            let id = |part: &str| id(&layer_name(l, part));
            let norms = match config.architecture {
                Architecture::Qwen3 => Some((id("attn.q_norm")?, id("attn.k_norm")?)),
                Architecture::Llama => None,
            };
            let attention = Attention {
                qkv: ColumnLinear { weight: id("attn.qkv")? },
                out: RowLinear { weight: id("attn.o")? },
                norms,
                config: AttentionConfig { rep: config.rep(), head_dim: config.head_dim, eps, kv_layer },
            };
            let mlp = Mlp {
                gate_up: ColumnLinear { weight: id("mlp.gate_up")? },
                down: RowLinear { weight: id("mlp.down")? },
            };
            let block = Block {
                norm1: RmsNorm { weight: id("attn_norm")?, eps },
                mixer: Box::new(attention),
                norm2: RmsNorm { weight: id("mlp_norm")?, eps },
                ffn: Box::new(mlp),
            };
            blocks.push(if recompute { Box::new(Recompute(block)) } else { Box::new(block) });
        }
        let head = if range.head {
            let weight = id(if config.tie_word_embeddings { EMBED } else { LM_HEAD })?;
            Some((RmsNorm { weight: id(FINAL_NORM)?, eps }, LmHead { weight, chunk }))
        } else {
            None
        };
        Ok(Stage { range, specs, embedding, blocks, head })
    }

    pub fn range(&self) -> &StageRange {
        &self.range
    }

    /// Parameters of this stage, in flat-buffer order.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    pub fn embedding(&self) -> Option<&Embedding> {
        self.embedding.as_ref()
    }

    pub fn blocks(&self) -> &[Box<dyn Layer>] {
        &self.blocks
    }

    pub fn head(&self) -> Option<&LmHead> {
        self.head.as_ref().map(|h| &h.1)
    }

    /// The layers: token ids `[T]` i32 if this stage has the embedding, else hidden states; out come hidden states,
    /// normed if it has the head.
    pub fn forward(&self, cx: &Cx, input: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let mut x = match &self.embedding {
            Some(e) => e.forward(cx, &input)?,
            None => input,
        };
        for (i, b) in self.blocks.iter().enumerate() {
            x = b.forward(cx, x, sv.child(C_BLOCKS + i))?;
        }
        if let Some((norm, _)) = &self.head {
            x = norm.forward(cx, x, sv.child(C_NORM))?;
        }
        Ok(x)
    }

    /// The gradient of the hidden states that came in (of the embedding's output, if it has one) from that of those
    /// that went out.
    pub fn backward_input(&self, cx: &Cx, dy: Tensor, sv: &mut Saved) -> Result<Tensor> {
        let mut dx = dy;
        if let Some((norm, _)) = &self.head {
            dx = norm.backward_input(cx, dx, sv.child(C_NORM))?;
        }
        for (i, b) in self.blocks.iter().enumerate().rev() {
            dx = b.backward_input(cx, dx, sv.child(C_BLOCKS + i))?;
        }
        Ok(dx)
    }

    /// Parameter gradients of norms and layers; the embedding's are its own.
    pub fn backward_weight(&self, cx: &Cx, mut sv: Saved) -> Result<()> {
        if let Some((norm, _)) = &self.head {
            norm.backward_weight(cx, sv.take_child(C_NORM))?;
        }
        for (i, b) in self.blocks.iter().enumerate().rev() {
            b.backward_weight(cx, sv.take_child(C_BLOCKS + i))?;
        }
        Ok(())
    }

    /// Both backward passes layer by layer: each layer's activations are gone before the next begins.
    pub fn backward(&self, cx: &Cx, dy: Tensor, mut sv: Saved) -> Result<Tensor> {
        let mut dx = dy;
        if let Some((norm, _)) = &self.head {
            let mut s = sv.take_child(C_NORM);
            dx = norm.backward_input(cx, dx, &mut s)?;
            norm.backward_weight(cx, s)?;
        }
        for (i, b) in self.blocks.iter().enumerate().rev() {
            let mut s = sv.take_child(C_BLOCKS + i);
            dx = b.backward_input(cx, dx, &mut s)?;
            b.backward_weight(cx, s)?;
        }
        Ok(dx)
    }
}

fn holds(range: &StageRange, name: &str) -> bool {
    match name {
        EMBED => range.embedding,
        FINAL_NORM | LM_HEAD => range.head,
        layer => layer.split('.').nth(1).and_then(|l| l.parse().ok()).is_some_and(|l| range.layers.contains(&l)),
    }
}
