use nn::RopeScaling;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, Result};

/// Families of `architectures[0]` that differ in their layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Architecture {
    /// per-head norms on queries and keys
    Qwen3,
    Llama,
}

/// The sizes of a dense decoder, read from a Hugging Face `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// need not be `hidden_size / heads`
    pub head_dim: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    pub tie_word_embeddings: bool,
    pub max_position_embeddings: usize,
    pub bos_token_id: Option<u32>,
    /// a config may name several
    pub eos_token_ids: Vec<u32>,
    /// type of the checkpoint, "float32", "bfloat16" or "float16"
    pub dtype: String,
}

impl ModelConfig {
    /// Takes the form of transformers 5 (`rope_parameters`, `dtype`) and the older one (`rope_theta`, `rope_scaling`,
    /// `torch_dtype`).
    ///
    /// # Errors
    /// Names the field, its value and what to do; nothing unsupported is ignored.
    pub fn from_json(text: &str) -> Result<ModelConfig> {
        let v: Value = serde_json::from_str(text).map_err(|e| Error::Parse(e.to_string()))?;
        let architecture = architecture(&v)?;
        refuse_unsupported(&v)?;
        let (hidden_size, heads) = (size(&v, "hidden_size")?, size(&v, "num_attention_heads")?);
        let (rope_theta, rope_scaling) = rope(&v)?;
        let config = ModelConfig {
            architecture,
            vocab_size: size(&v, "vocab_size")?,
            hidden_size,
            intermediate_size: size(&v, "intermediate_size")?,
            layers: size(&v, "num_hidden_layers")?,
            heads,
            kv_heads: optional_size(&v, "num_key_value_heads")?.unwrap_or(heads),
            head_dim: match (optional_size(&v, "head_dim")?, architecture) {
                (Some(d), _) => d,
                (None, Architecture::Qwen3) => 128,
                (None, Architecture::Llama) => hidden_size / heads.max(1),
            },
            rms_norm_eps: number(&v, "rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            tie_word_embeddings: v.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
            max_position_embeddings: optional_size(&v, "max_position_embeddings")?.unwrap_or(32768),
            bos_token_id: token(&v, "bos_token_id").first().copied(),
            eos_token_ids: token(&v, "eos_token_id"),
            dtype: v.get("dtype").or(v.get("torch_dtype")).and_then(Value::as_str).unwrap_or("float32").to_owned(),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::Parse(what));
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return bad(format!(
                "num_attention_heads = {} is not a multiple of num_key_value_heads = {}",
                self.heads, self.kv_heads
            ));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return bad(format!("head_dim = {} must be even and above 0", self.head_dim));
        }
        if [self.vocab_size, self.hidden_size, self.intermediate_size, self.layers, self.heads].contains(&0) {
            let names = "vocab_size, hidden_size, intermediate_size, num_hidden_layers and num_attention_heads";
            return bad(format!("{names} must be above 0"));
        }
        if self.rms_norm_eps <= 0.0 || !self.rms_norm_eps.is_finite() {
            return bad(format!("rms_norm_eps = {} must be above 0", self.rms_norm_eps));
        }
        Ok(())
    }

    /// Query heads per key-value head.
    pub fn rep(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Parameters of the whole model; tied weights count once.
    pub fn parameters(&self) -> usize {
        crate::param_specs(self).iter().map(nn::ParamSpec::numel).sum()
    }

    /// Floating-point operations of one forward pass per token at this context length, attention causal (half the
    /// square). A training step is three times as much.
    pub fn forward_flops_per_token(&self, context: usize) -> f64 {
        let (h, q, kv, f) =
            (self.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim, self.intermediate_size);
        let matmul = self.layers * (h * (q + 2 * kv) + q * h + 3 * h * f) + h * self.vocab_size;
        2.0 * matmul as f64 + 2.0 * (self.layers * q * context) as f64
    }
}

fn architecture(v: &Value) -> Result<Architecture> {
    let name = v
        .get("architectures")
        .and_then(|a| a.get(0))
        .or(v.get("model_type"))
        .and_then(Value::as_str)
        .ok_or_else(|| Error::Parse("neither architectures nor model_type is given".into()))?;
    match name {
        "Qwen3ForCausalLM" | "qwen3" => Ok(Architecture::Qwen3),
        "LlamaForCausalLM" | "llama" => Ok(Architecture::Llama),
        other => Err(Error::Unsupported {
            field: "architectures",
            value: other.into(),
            hint: "use a dense Qwen3ForCausalLM or LlamaForCausalLM checkpoint",
        }),
    }
}

fn refuse_unsupported(v: &Value) -> Result<()> {
    let on = |f: &str| v.get(f).and_then(Value::as_bool).unwrap_or(false);
    let refuse = |field, hint| {
        Err(Error::Unsupported { field, value: v.get(field).map_or_else(String::new, Value::to_string), hint })
    };
    if on("attention_bias") {
        return refuse("attention_bias", "projections with a bias are not computed; use a checkpoint without");
    }
    if on("mlp_bias") {
        return refuse("mlp_bias", "projections with a bias are not computed; use a checkpoint without");
    }
    if on("use_sliding_window") && v.get("sliding_window").is_some_and(|w| !w.is_null()) {
        return refuse("use_sliding_window", "only full attention is computed");
    }
    if v.get("layer_types").and_then(Value::as_array).is_some_and(|l| l.iter().any(|t| t != "full_attention")) {
        return refuse("layer_types", "only full_attention layers are computed");
    }
    if v.get("hidden_act").and_then(Value::as_str).is_some_and(|a| a != "silu") {
        return refuse("hidden_act", "only silu is computed");
    }
    if v.get("quantization_config").is_some_and(|q| !q.is_null()) {
        return refuse("quantization_config", "use the unquantised checkpoint");
    }
    Ok(())
}

fn rope(v: &Value) -> Result<(f64, RopeScaling)> {
    // transformers 5 keeps everything in rope_parameters; before, theta was outside and the rest in rope_scaling.
    let inner = v.get("rope_parameters").filter(|r| r.is_object()).or(v.get("rope_scaling").filter(|r| r.is_object()));
    let get = |name: &str| inner.and_then(|r| r.get(name));
    let theta = get("rope_theta").or(v.get("rope_theta")).and_then(Value::as_f64).unwrap_or(10_000.0);
    if let Some(p) = get("partial_rotary_factor").or(v.get("partial_rotary_factor")).and_then(Value::as_f64)
        && p != 1.0
    {
        return Err(Error::Unsupported {
            field: "partial_rotary_factor",
            value: p.to_string(),
            hint: "only whole heads are rotated",
        });
    }
    let kind = get("rope_type").or(get("type")).and_then(Value::as_str).unwrap_or("default");
    let need = |name: &'static str| {
        get(name).and_then(Value::as_f64).ok_or_else(|| Error::Parse(format!("rope of type {kind} needs {name}")))
    };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low_freq_factor: need("low_freq_factor")?,
            high_freq_factor: need("high_freq_factor")?,
            original_max_position: need("original_max_position_embeddings")?,
        },
        other => {
            return Err(Error::Unsupported {
                field: "rope_type",
                value: other.into(),
                hint: "only default and llama3 are computed",
            });
        }
    };
    Ok((theta, scaling))
}

fn optional_size(v: &Value, name: &str) -> Result<Option<usize>> {
    match v.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(x) => {
            x.as_u64().map(|x| Some(x as usize)).ok_or_else(|| Error::Parse(format!("{name} = {x} is not a size")))
        }
    }
}

fn size(v: &Value, name: &str) -> Result<usize> {
    optional_size(v, name)?.ok_or_else(|| Error::Parse(format!("{name} is missing")))
}

fn number(v: &Value, name: &str) -> Result<Option<f64>> {
    match v.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(x) => x.as_f64().map(Some).ok_or_else(|| Error::Parse(format!("{name} = {x} is not a number"))),
    }
}

fn token(v: &Value, name: &str) -> Vec<u32> {
    match v.get(name) {
        Some(Value::Number(n)) => n.as_u64().map(|x| x as u32).into_iter().collect(),
        Some(Value::Array(a)) => a.iter().filter_map(Value::as_u64).map(|x| x as u32).collect(),
        _ => Vec::new(),
    }
}
