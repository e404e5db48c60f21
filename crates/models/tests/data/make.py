"""Writes the fixtures of this folder: python make.py OUT. Needs torch and transformers; no network."""
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import save_file

VOCAB = 512
LENGTHS = (83, 45)
BASE = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=160, num_attention_heads=4, rms_norm_eps=1e-6,
            max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=0)
MODELS = {
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config, dict(
        num_hidden_layers=3, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, dict(
        num_hidden_layers=2, num_key_value_heads=1, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "llama3": (hf.LlamaForCausalLM, hf.LlamaConfig, dict(
        num_hidden_layers=2, num_key_value_heads=2, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=64))),
}


def spread_weights(model, seed):
    """Default initialisation (norms at one, tiny weights) would hide errors: give every parameter its say."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            z = torch.randn(p.shape, generator=gen)
            if p.ndim == 1:
                p.copy_(1 + 0.2 * z)
            elif "embed_tokens" in name or "lm_head" in name:
                p.copy_(0.2 * z)
            else:
                p.copy_(z / math.sqrt(p.shape[-1]))


def score(logits, ids, ends, temperature=1.0):
    """Log-prob of the next token at each position (0 at sequence ends), and the entropy."""
    lp = F.log_softmax(logits / temperature, -1)
    out = lp.gather(-1, ids.roll(-1)[:, None])[:, 0]
    keep = torch.ones_like(ids, dtype=torch.bool)
    keep[[e - 1 for e in ends]] = False
    return torch.where(keep, out, 0.0), -(lp.exp() * lp).sum(-1)


def named(tensors):
    return {n: t.detach().contiguous().clone() for n, t in tensors}


def make(name, out):
    cls, config_cls, extra = MODELS[name]
    seed = 1000 + sum(map(ord, name))
    config = config_cls(**BASE, **extra)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = cls(config).float().eval()
    spread_weights(model, seed)
    out.mkdir(parents=True)
    model.save_pretrained(out)
    gen = torch.Generator().manual_seed(seed + 1)
    io, meta = {}, dict(model=name, transformers=hf.__version__, torch=torch.__version__,
                        params=sum(p.numel() for p in model.parameters()))

    ids = torch.randint(3, VOCAB, (2, 24), generator=gen)
    with torch.no_grad():
        io["batch.input_ids"], io["batch.logits"] = ids, model(input_ids=ids, use_cache=False).logits

    # The pack: position ids restart, and transformers keeps the sequences apart when it has no cache.
    ends = [LENGTHS[0], sum(LENGTHS)]
    pack = torch.randint(3, VOCAB, (ends[1],), generator=gen)
    pos = torch.cat([torch.arange(n) for n in LENGTHS])
    mask = torch.zeros(ends[1])
    mask[20:82], mask[98:127], mask[40:44] = 1, 1, 0
    adv = torch.where(torch.arange(ends[1]) < ends[0], 0.9, -1.1)
    noise = torch.randn(ends[1], generator=gen)

    def logits():
        return model(input_ids=pack[None], position_ids=pos[None], use_cache=False).logits[0]

    with torch.no_grad():
        lg = logits()
        lp, entropy = score(lg, pack, ends)
        old, ref = lp + 0.25 * noise.clamp(-3, 3), lp - 0.1 * noise.flip(0)
        for _ in range(4):  # no ratio within 2 % of a clip bound: rounding must not decide a test
            ratio = (lp - old).exp()
            close = ((ratio - 0.8).abs() < 0.02) | ((ratio - 1.28).abs() < 0.02)
            old = torch.where(close, old + 0.06, old)
    io |= {"packed.input_ids": pack, "packed.position_ids": pos, "packed.logits": lg, "packed.logprobs": lp,
           "packed.cu_seqlens": torch.tensor([0, *ends], dtype=torch.int32), "packed.entropy": entropy,
           "packed.logprobs_t0.7": score(lg, pack, ends, 0.7)[0], "packed.loss_mask": mask, "packed.advantages": adv,
           "packed.old_logprobs": old, "packed.ref_logprobs": ref}

    def gradients(loss, file):
        model.zero_grad()
        loss.backward()
        save_file(named((n, p.grad) for n, p in model.named_parameters()), out / file)
        return loss.item()

    lp = score(logits(), pack, ends)[0]
    meta["sft_loss"] = gradients(-(lp * mask).sum() / mask.sum(), "grad_sft.safetensors")
    lp = score(logits(), pack, ends)[0]
    ratio = (lp - old).exp()
    surrogate = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.28) * adv)
    kl = (ref - lp).exp() - (ref - lp) - 1
    meta["grpo_loss"] = gradients(((0.05 * kl - surrogate) * mask).sum() / mask.sum(), "grad_grpo.safetensors")

    before = named(model.named_parameters())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    save_file(named(model.named_parameters()), out / "after_adamw.safetensors")
    meta["adamw"] = dict(lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, clip_norm=1.0, total_norm=float(norm))
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(before[n])

        prompt = torch.randint(3, VOCAB, (1, 11), generator=gen)
        full, tokens, logps = prompt, [], []
        for _ in range(24):
            last = F.log_softmax(model(input_ids=full, use_cache=False).logits[0, -1], -1)
            tokens.append(last.argmax())
            logps.append(last.max())
            full = torch.cat([full, tokens[-1][None, None]], 1)
    io |= {"decode.prompt": prompt[0], "decode.tokens": torch.stack(tokens), "decode.logprobs": torch.stack(logps)}
    save_file(named(io.items()), out / "io.safetensors")
    (out / "meta.json").write_text(json.dumps(meta, indent=1))


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    for model_name in MODELS:
        make(model_name, pathlib.Path(sys.argv[1]) / model_name)
