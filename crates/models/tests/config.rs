//! What is read from a `config.json`, and what is refused with a reason.
#![allow(clippy::unwrap_used)]

use models::{Architecture, ModelConfig};
use nn::RopeScaling;
use serde_json::{Value, json};

fn base() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "rms_norm_eps": 1e-5
    })
}

fn with(change: Value) -> Value {
    let mut v = base();
    v.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    v
}

fn read(v: &Value) -> ModelConfig {
    ModelConfig::from_json(&v.to_string()).unwrap()
}

fn refused(change: Value) -> String {
    ModelConfig::from_json(&with(change).to_string()).unwrap_err().to_string()
}

#[test]
fn old_and_new_forms_of_a_config_mean_the_same() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    let mut new = llama3.clone();
    new["rope_theta"] = json!(5e5);
    let v5 = read(&with(json!({"rope_parameters": new, "dtype": "bfloat16"})));
    let old = read(&with(json!({"rope_theta": 5e5, "rope_scaling": llama3, "torch_dtype": "bfloat16"})));
    assert_eq!(v5, old);
    assert_eq!(v5.rope_theta, 5e5);
    assert_eq!(v5.dtype, "bfloat16");
    assert!(matches!(v5.rope_scaling, RopeScaling::Llama3 { factor, .. } if factor == 8.0));
    // A null is an absence.
    assert_eq!(read(&with(json!({"rope_scaling": null, "rope_theta": 1e4}))).rope_scaling, RopeScaling::None);
}

#[test]
fn absent_fields_have_the_defaults_of_transformers() {
    let c = read(&base());
    assert_eq!(
        (c.architecture, c.kv_heads, c.head_dim, c.rope_theta, c.tie_word_embeddings),
        (Architecture::Llama, 4, 16, 1e4, false)
    );
    let q = read(&with(json!({"architectures": ["Qwen3ForCausalLM"]})));
    assert_eq!((q.architecture, q.head_dim), (Architecture::Qwen3, 128));
    assert_eq!(read(&with(json!({"eos_token_id": [2, 7], "bos_token_id": 1}))).eos_token_ids, [2, 7]);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (change, field) in [
        (json!({"attention_bias": true}), "attention_bias"),
        (json!({"mlp_bias": true}), "mlp_bias"),
        (json!({"architectures": ["Qwen3MoeForCausalLM"]}), "Qwen3MoeForCausalLM"),
        (json!({"use_sliding_window": true, "sliding_window": 512}), "use_sliding_window"),
        (json!({"layer_types": ["full_attention", "linear_attention"]}), "layer_types"),
        (json!({"hidden_act": "gelu"}), "hidden_act"),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), "yarn"),
        (json!({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}), "low_freq_factor"),
        (json!({"partial_rotary_factor": 0.25}), "partial_rotary_factor"),
        (json!({"quantization_config": {"quant_method": "fp8"}}), "quantization_config"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads"),
        (json!({"head_dim": 15}), "head_dim"),
        (json!({"hidden_size": null}), "hidden_size"),
        (json!({"vocab_size": "many"}), "vocab_size"),
    ] {
        let message = refused(change.clone());
        assert!(message.contains(field), "{change}: {message}");
    }
    assert!(ModelConfig::from_json("{").unwrap_err().to_string().contains("config.json"));
}
