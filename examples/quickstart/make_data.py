#!/usr/bin/env python3
"""Makes the quickstart's data: python3 make_data.py   (standard library only; its output is committed)

The task: `s:59210=` wants the five digits in ascending order, `01259`. Warm-start rows come from a teacher of mixed quality: 40 %
right, the rest the reversed order or a plain copy, so that the warm start ends with a policy that is right about a quarter of the
time and reinforcement learning has something to find. Evaluation prompts occur in neither of the other files.
"""
import json
import pathlib
import random

HERE = pathlib.Path(__file__).parent / "volumes" / "thresh-data" / "sort5"
SPECIAL = ["<|endoftext|>", "<|pad|>"]
CHARACTERS = "0123456789+-*=:abcdefghijklmnopqrstuvwxyz ,<>."
RIGHT = 0.4


def prompt(digits):
    return f"s:{digits}="


def rows(path, items):
    with open(HERE / path, "w", encoding="utf-8") as out:
        for item in items:
            out.write(json.dumps(item, separators=(",", ":")) + "\n")


def teacher(rng, digits):
    answer = "".join(sorted(digits))
    draw = rng.random()
    if draw < RIGHT:
        return answer
    return answer[::-1] if draw < RIGHT + (1 - RIGHT) / 2 else digits


def main():
    rng = random.Random(5)
    everything = [f"{n:05d}" for n in range(100_000)]
    rng.shuffle(everything)
    held_out, training, warm = everything[:256], everything[256:4352], everything[4352:20736]
    (HERE / "model").mkdir(parents=True, exist_ok=True)
    rows("eval.jsonl", ({"prompt": prompt(d), "label": "".join(sorted(d))} for d in held_out))
    rows("train.jsonl", ({"prompt": prompt(d), "label": "".join(sorted(d))} for d in training))
    rows("warm.jsonl", ({"prompt": prompt(d), "completion": teacher(rng, d)} for d in warm))

    vocabulary = {token: index for index, token in enumerate(SPECIAL + list(CHARACTERS))}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for token in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocabulary, "merges": []},
    }
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float32",
        "vocab_size": len(vocabulary),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": vocabulary["<|endoftext|>"],
        "pad_token_id": vocabulary["<|pad|>"],
    }
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|pad|>",
             "model_max_length": 64, "clean_up_tokenization_spaces": False}
    generation = {"eos_token_id": vocabulary["<|endoftext|>"], "pad_token_id": vocabulary["<|pad|>"]}
    for name, value in [("tokenizer.json", tokenizer), ("config.json", config), ("tokenizer_config.json", names),
                        ("generation_config.json", generation)]:
        (HERE / "model" / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
