//! The map between fused tensors and Hugging Face names.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;

use models::{ModelConfig, Rect, gather_piece, param_specs, scatter_piece};
use support::*;

const FIXTURES: [&str; 3] = ["qwen3", "llama", "llama3"];

#[test]
fn the_name_map_names_every_tensor_of_a_checkpoint_once_and_covers_ours() {
    for name in FIXTURES {
        let f = Fixture::new(name);
        let weights = f.tensors("model.safetensors");
        let specs = param_specs(&f.config());
        let names: Vec<String> = specs.iter().flat_map(|s| s.hf.iter().map(|p| p.name.clone())).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{name}: a name twice");
        assert!(names.iter().collect::<BTreeSet<_>>().into_iter().eq(weights.keys()), "{name}");
        for spec in &specs {
            let full = Rect::full(&spec.shape);
            let mut hits = vec![0u8; spec.numel()];
            for p in &spec.hf {
                assert_eq!(p.shape.iter().product::<usize>(), weights[&p.name].len());
                assert_eq!(p.rect.numel(), weights[&p.name].len());
                p.rect.shared_runs(&full, |_, at, n| hits[at..at + n].iter_mut().for_each(|h| *h += 1));
            }
            assert!(hits.iter().all(|&h| h == 1), "{name} {}", spec.name);
        }
        let total: usize = weights.values().map(Vec::len).sum();
        assert_eq!(f.config().parameters(), total);
        assert_eq!(total as u64, f.meta()["params"].as_u64().unwrap());
    }
}

#[test]
fn tensors_come_out_of_the_fused_layout_as_they_went_in_for_any_tp() {
    for name in FIXTURES {
        let f = Fixture::new(name);
        let weights = f.tensors("model.safetensors");
        let tp_max = f.config().kv_heads;
        for tp in (1..=tp_max).filter(|tp| tp_max.is_multiple_of(*tp)) {
            for spec in param_specs(&f.config()) {
                for piece in &spec.hf {
                    let src = bytemuck::cast_slice::<f64, u8>(&weights[&piece.name]);
                    let mut back = vec![0u8; src.len()];
                    for rank in 0..tp {
                        let local = spec.local(rank, tp).unwrap();
                        let mut mine = vec![0u8; local.numel() * 8];
                        scatter_piece(piece, src, &local, &mut mine, 8);
                        gather_piece(piece, &mut back, &local, &mine, 8);
                    }
                    assert!(back == src, "{name} {} tp {tp}", piece.name);
                }
            }
        }
    }
}

#[test]
fn random_initialisation_is_a_function_of_seed_and_name_alone() {
    let text = r#"{"architectures":["Qwen3ForCausalLM"],"vocab_size":47,"hidden_size":24,"intermediate_size":12,"num_hidden_layers":2,
        "num_attention_heads":4,"num_key_value_heads":2,"head_dim":6,"tie_word_embeddings":true}"#;
    let make = |tp: (usize, usize), seed| {
        let config = ModelConfig::from_json(text).unwrap();
        let be = cpu(1);
        let params = models::ParamStore::new(&*be, param_specs(&config), tensor::DType::F32, tp.0, tp.1).unwrap();
        params.init_random(&*be, seed).unwrap();
        let views: Vec<_> = (0..params.specs().len()).map(|i| params.get(nn::ParamId(i)).clone()).collect();
        (be, params, views)
    };
    let whole = |tp: usize, seed| {
        let mut out = Named::new();
        for rank in 0..tp {
            let (be, params, views) = make((rank, tp), seed);
            by_hf_name(&*be, &params, &views, &mut out);
        }
        out
    };
    let one = whole(1, 7);
    assert_eq!(one, whole(2, 7));
    assert_ne!(one, whole(1, 8));
    let std = |x: &[f64]| (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64).sqrt();
    assert!((std(&one["model.embed_tokens.weight"]) - 0.02).abs() < 0.002);
    assert!((std(&one["model.layers.0.self_attn.o_proj.weight"]) - 0.01).abs() < 0.001, "scaled by 1 / sqrt(2 L)");
    assert!(one["model.norm.weight"].iter().all(|&x| x == 1.0));
    // Different parameters of one shape are different draws.
    assert_ne!(one["model.layers.0.self_attn.k_proj.weight"], one["model.layers.0.self_attn.v_proj.weight"]);
    assert_ne!(one["model.layers.0.mlp.up_proj.weight"], one["model.layers.1.mlp.up_proj.weight"]);
}
