"""What transformers says about a model folder, in f32 on a CPU with eager attention.

    python reference.py FOLDER PROMPTS.json OUT

PROMPTS.json is {"max_new_tokens": N, "prompts": [{"user": QUESTION} or {"text": PROMPT}, ...]}; a question goes through the
folder's chat template. Writes OUT/reference.json, one object per prompt:

    prompt, prompt_ids            the text, and its tokens
    ids, text                     prompt and greedy continuation through the cache; the text of the continuation
    decoded                       what the tokenizer makes of all ids again
    logprobs, entropy             of ids[t + 1] and of the whole distribution after ids[..t], nats, temperature 1
    top10_ids, top10_logprobs     at the first token of the continuation
    greedy_min_gap                smallest difference of the two largest logits on the way

and OUT/logits.safetensors with a tensor [tokens, vocabulary] per prompt, named by its number.
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.no_grad()
def describe(model, tokenizer, prompt, max_new_tokens):
    text = prompt.get("text")
    if text is None:
        question = [{"role": "user", "content": prompt["user"]}]
        text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    prompt_ids = tokenizer(text, add_special_tokens=False).input_ids
    count = len(prompt_ids)
    ids = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, count, dtype=torch.long),
        max_new_tokens=max_new_tokens,
        do_sample=False,
    )[0].tolist()
    logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    logp = F.log_softmax(logits, -1)
    top = logp[count - 1].topk(10)
    best = logits[count - 1 : -1].topk(2).values
    return logits, {
        "prompt": text,
        "prompt_ids": prompt_ids,
        "ids": ids,
        "text": tokenizer.decode(ids[count:]),
        "decoded": tokenizer.decode(ids),
        "logprobs": logp[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist(),
        "entropy": (-(logp.exp() * logp).sum(-1)).tolist(),
        "top10_ids": top.indices.tolist(),
        "top10_logprobs": top.values.tolist(),
        "greedy_min_gap": (best[:, 0] - best[:, 1]).min().item(),
    }


def main(folder, prompts, out):
    asked = json.loads(prompts.read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    logits, answers = {}, []
    for prompt in asked["prompts"]:
        each, answer = describe(model, tokenizer, prompt, asked["max_new_tokens"])
        logits[str(len(answers))] = each.contiguous()
        answers.append(answer)
        print(f"transformers: {answer['text']!r}, {len(answer['ids'])} tokens", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    save_file(logits, out / "logits.safetensors")
    (out / "reference.json").write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    main(*(pathlib.Path(argument) for argument in sys.argv[1:4]))
