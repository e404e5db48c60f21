"""The PyTorch side of `thresh-bench core`: reads a JSON command a line, answers a JSON line.

A Qwen3 decoder in float32, written as one would write it for speed: fused projections, scaled_dot_product_attention, fused
AdamW, log-probs for the asked rows only. It loads the weights of a Hugging Face folder, so that what it computes can be compared
with ours, and runs a given number of steps when told to, so that both sides take turns.
"""
import json, struct, sys, time
import torch, torch.nn.functional as F
from torch import nn

torch.set_grad_enabled(False)


def tensors(path):
    with open(path, "rb") as f:
        data = bytearray(f.read())
    (n,) = struct.unpack("<Q", data[:8])
    head = json.loads(bytes(data[8 : 8 + n]))
    out = {}
    for name, t in head.items():
        if name != "__metadata__":
            assert t["dtype"] == "F32", t
            a, b = t["data_offsets"]
            out[name] = torch.frombuffer(data, dtype=torch.float32, count=(b - a) // 4, offset=8 + n + a).view(t["shape"]).clone()
    return out


class Layer(nn.Module):
    def __init__(self, c, w, p):
        super().__init__()
        self.h, self.kv, self.d, self.eps = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rms_norm_eps"]
        par = lambda *names: nn.Parameter(torch.cat([w[p + n + ".weight"] for n in names]))
        self.qkv = par("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.o = par("self_attn.o_proj")
        self.gate_up = par("mlp.gate_proj", "mlp.up_proj")
        self.down = par("mlp.down_proj")
        self.n1, self.n2 = par("input_layernorm"), par("post_attention_layernorm")
        self.qn, self.kn = par("self_attn.q_norm"), par("self_attn.k_norm")

    def forward(self, x, cos, sin, cache=None, at=0):
        b, s, hidden = x.shape
        h, kv, d = self.h, self.kv, self.d
        y = F.linear(F.rms_norm(x, (hidden,), self.n1, self.eps), self.qkv)
        q, k, v = y.view(b, s, h + 2 * kv, d).split([h, kv, kv], 2)
        q, k = F.rms_norm(q, (d,), self.qn, self.eps), F.rms_norm(k, (d,), self.kn, self.eps)
        turn = lambda t: torch.cat((t[..., : d // 2] * cos - t[..., d // 2 :] * sin, t[..., d // 2 :] * cos + t[..., : d // 2] * sin), -1)
        q, k, v = turn(q).transpose(1, 2), turn(k).transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            cache[0][:, :, at : at + s], cache[1][:, :, at : at + s] = k, v
            k, v = cache[0][:, :, : at + s], cache[1][:, :, : at + s]
        a = F.scaled_dot_product_attention(q, k, v, is_causal=s > 1, enable_gqa=h != kv)
        x = x + F.linear(a.transpose(1, 2).reshape(b, s, h * d), self.o)
        g, u = F.linear(F.rms_norm(x, (hidden,), self.n2, self.eps), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(g) * u, self.down)


class Model(nn.Module):
    def __init__(self, folder):
        super().__init__()
        c = self.c = json.load(open(folder + "/config.json"))
        w = tensors(folder + "/model.safetensors")
        self.emb = nn.Parameter(w["model.embed_tokens.weight"])
        self.layers = nn.ModuleList(Layer(c, w, f"model.layers.{i}.") for i in range(c["num_hidden_layers"]))
        self.norm = nn.Parameter(w["model.norm.weight"])
        theta = c.get("rope_parameters", c)["rope_theta"]
        d = c["head_dim"]
        inv = theta ** (-torch.arange(0, d, 2).double() / d)
        angle = torch.outer(torch.arange(c["max_position_embeddings"]).double(), inv)
        self.cos, self.sin = angle.cos().float()[:, None], angle.sin().float()[:, None]

    def forward(self, ids, caches=None, at=0):
        s = ids.shape[1]
        cos, sin = self.cos[at : at + s], self.sin[at : at + s]
        x = F.embedding(ids, self.emb)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, caches[i] if caches else None, at)
        return F.rms_norm(x, (x.shape[-1],), self.norm, self.c["rms_norm_eps"])


class Peer:
    def load(self, folder):
        self.model = self.net = Model(folder)

    def threads(self, n):
        torch.set_num_threads(n)
        # As on our side: one thread is timed by its CPU, several by the wall.
        self.clock = time.process_time if n == 1 else time.perf_counter

    def compile(self):
        for i, layer in enumerate(self.model.layers):
            self.model.layers[i] = torch.compile(layer, dynamic=False)

    def train_setup(self, tokens, prompt, advantages, lr):
        self.ids = torch.tensor(tokens)
        self.rows = slice(prompt - 1, self.ids.shape[1] - 1)
        self.targets = self.ids[:, prompt:]
        self.adv = torch.tensor(advantages)[:, None]
        params = list(self.model.parameters())
        self.opt = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step(self):
        with torch.enable_grad():
            h = self.model(self.ids)[:, self.rows].reshape(-1, self.model.emb.shape[1])
            logits = F.linear(h, self.model.emb)
            logp = -F.cross_entropy(logits, self.targets.reshape(-1), reduction="none").view(self.targets.shape)
            ratio = (logp - logp.detach()).exp()
            loss = -torch.minimum(ratio * self.adv, ratio.clamp(0.8, 1.2) * self.adv).mean()
            loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.opt.step()
        self.opt.zero_grad()
        return logp.mean().item(), norm.item()

    def train(self, n):
        t = self.clock()
        for _ in range(n):
            logp, norm = self.step()
        return {"seconds": self.clock() - t, "logp": logp, "grad_norm": norm}

    def decode_setup(self, prompts, forced):
        """`forced[i]` are the tokens fed at step i, the last of them only scored."""
        ids, self.forced = torch.tensor(prompts), torch.tensor(forced)
        b, self.at = ids.shape
        c, room = self.model.c, ids.shape[1] + len(forced)
        shape = (b, c["num_key_value_heads"], room, c["head_dim"])
        self.caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in self.model.layers]
        self.model(ids, self.caches, 0)

    def decode(self):
        t, sums, n = self.clock(), 0.0, len(self.forced) - 1
        for i in range(n):
            h = self.model(self.forced[i][:, None], self.caches, self.at + i)[:, 0]
            logits = F.linear(h, self.model.emb)
            logp = logits - logits.logsumexp(-1, keepdim=True)
            torch.multinomial(logp.exp(), 1)
            sums += logp.gather(1, self.forced[i + 1][:, None]).mean().item()
        return {"seconds": self.clock() - t, "logp": sums / n}

    def matmul(self, m, n, k, times):
        key = (m, n, k)
        if getattr(self, "key", None) != key:
            self.key, self.a, self.b = key, torch.randn(m, k), torch.randn(n, k)
            self.out = torch.empty(m, n)
        t = self.clock()
        for _ in range(times):
            torch.mm(self.a, self.b.t(), out=self.out)
        return {"seconds": self.clock() - t}

    def version(self):
        return {"version": torch.__version__}


peer = Peer()
for line in sys.stdin:
    order = json.loads(line)
    name = order.pop("do")
    try:
        answer = getattr(peer, name)(**order) or {}
    except Exception as e:
        answer = {"error": f"{type(e).__name__}: {e}"}
    print(json.dumps(answer), flush=True)
