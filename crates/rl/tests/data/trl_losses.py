"""Writes trl_losses.json: values and gradients of TRL's GRPO losses, for the settings this crate can express.

Run in an environment with torch, trl and datasets (the file says which versions made it):

    python trl_losses.py SMALL_MODEL_FOLDER > trl_losses.json

SMALL_MODEL_FOLDER is any causal LM with its tokenizer: TRL wants one to construct a trainer, but the log-probs are ours.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import datasets
import torch
import transformers
import trl

ROWS, TOKENS = 6, 9
LENGTHS = (9, 4, 7, 1, 9, 5)
TOOL_TOKENS = (4, slice(3, 5))  # inside a response, but not the model's own

generator = torch.Generator().manual_seed(5)
logps = -torch.rand(ROWS, TOKENS, generator=generator) * 3
old = logps + 0.6 * torch.randn(ROWS, TOKENS, generator=generator)
ref = logps + 0.2 * torch.randn(ROWS, TOKENS, generator=generator)
entropies = torch.rand(ROWS, TOKENS, generator=generator) * 2
advantages = torch.tensor([-1.3, 0.7, 0.4, -1.2, 0.0, 0.9])
completion = torch.tensor([[1] * n + [0] * (TOKENS - n) for n in LENGTHS])
tool = torch.ones(ROWS, TOKENS, dtype=torch.long)
tool[TOOL_TOKENS] = 0
mask = (completion * tool).float()


def case(model, tokenizer, **settings):
    config = trl.GRPOConfig(
        output_dir="trl_out", use_cpu=True, bf16=False, report_to="none", per_device_train_batch_size=2,
        num_generations=2, max_completion_length=TOKENS, use_bias_correction_kl=False, **settings,
    )
    trainer = trl.GRPOTrainer(
        model=model, args=config, processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * 8),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.args.steps_per_generation = 1  # one window: DAPO's normaliser is the number of response tokens
    x = logps.clone().requires_grad_(True)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (x, entropies, None)
    loss = trainer._compute_loss(trainer.model, {
        "prompt_ids": torch.zeros(ROWS, 2, dtype=torch.long), "prompt_mask": torch.ones(ROWS, 2, dtype=torch.long),
        "completion_ids": torch.zeros(ROWS, TOKENS, dtype=torch.long), "completion_mask": completion,
        "tool_mask": tool, "advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": ref,
        "num_items_in_batch": mask.sum(),
    })
    loss.backward()
    return {
        "loss_type": settings["loss_type"], "beta": settings["beta"], "epsilon_low": trainer.epsilon_low,
        "epsilon_high": trainer.epsilon_high, "delta": settings.get("delta"), "loss": loss.item(),
        "grad": x.grad.tolist(),
    }


def main():
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    settings = [{"loss_type": t, "beta": b} for t in ("grpo", "bnpo", "dapo") for b in (0.0, 0.05)]
    settings += [{"loss_type": "dapo", "beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.28}]
    settings += [{"loss_type": "dapo", "beta": 0.0, "epsilon": 0.2, "delta": 1.5}]
    json.dump({
        "trl": trl.__version__, "transformers": transformers.__version__, "logps": logps.tolist(),
        "old": old.tolist(), "ref": ref.tolist(), "mask": mask.tolist(), "advantages": advantages.tolist(),
        "entropies": entropies.tolist(), "cases": [case(model, tokenizer, **s) for s in settings],
    }, sys.stdout, separators=(",", ":"))


main()
