# SPDX-License-Identifier: Apache-2.0
"""Llama, Mistral and Qwen2 from the checkpoint's files with numpy alone, written from the papers and model cards.

It shares no code with transformers: the agreement of the two (plain_golden.py) is what the golden files rest on.
`mistakes` are deliberate ones, to see how far each moves the logits.

usage: plain_forward.py FOLDER...     compares with FOLDER/golden
"""
import json
import math
import os
import sys

import numpy

from tensor_file import block_grid, read, read_folder, scale_name, weight

f32 = numpy.float32
SCALING_FIELDS = ("rope_scaling", "rope_parameters")


class Forward:
    def __init__(self, folder, mistakes=()):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        self.mistakes = set(mistakes)
        self.stored = read_folder(folder)
        self.values = {}
        c = self.config
        self.heads = c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads", self.heads)
        self.head_dim = c.get("head_dim", c["hidden_size"] // self.heads)
        self.rope = next((c[f] for f in SCALING_FIELDS if c.get(f)), {})
        self.theta = c.get("rope_theta") or self.rope.get("rope_theta") or 10000.0
        if "theta_10000" in self.mistakes:
            self.theta = 10000.0
        self.eps = 1e-6 if "eps_1e-6" in self.mistakes else c["rms_norm_eps"]

    def weight(self, name):
        if name not in self.values:
            self.values[name] = self.load(name)
        return self.values[name]

    def load(self, name):
        scales = self.stored.get(scale_name(name)) if name.endswith(".weight") else None
        if scales is None or "one_scale" not in self.mistakes:
            return weight(self.stored, name)
        mean = numpy.full_like(scales.f32(), scales.f32().mean())
        return self.stored[name].f32() * block_grid(mean, self.stored[name].data.shape)

    def linear(self, name, x):
        y = x @ self.weight(name + ".weight").T
        bias = name + ".bias"
        if bias not in self.stored or "no_bias" in self.mistakes or ("no_k_bias" in self.mistakes and "k_proj" in name):
            return y
        return y + self.weight(bias)

    def norm(self, name, x):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + f32(self.eps)) * self.weight(name + ".weight")

    # ---- rotation

    def frequencies(self):
        """-> frequencies [head_dim / 2] f32, what cosines and sines are multiplied by"""
        n, r = self.head_dim, self.rope
        pair = numpy.arange(n // 2)
        plain = self.theta ** (-2.0 * pair / n)
        kind = r.get("rope_type") or r.get("type") or "default"
        if kind == "default" or "no_scaling" in self.mistakes:
            return plain.astype(f32), f32(1)
        slow = plain / r["factor"]
        if kind == "linear":
            return slow.astype(f32), f32(1)
        context = r["original_max_position_embeddings"]
        if kind == "llama3":
            turns = context * plain / (2 * math.pi)
            kept = (turns - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
            factor = 1
        else:
            assert kind == "yarn"
            at = {b: n * math.log(context / (b * 2 * math.pi)) / (2 * math.log(self.theta))
                  for b in (r["beta_fast"], r["beta_slow"])}
            begin, end = max(math.floor(at[r["beta_fast"]]), 0), min(math.ceil(at[r["beta_slow"]]), n - 1)
            kept = 1 - (pair - begin) / (end - begin)
            factor = 0.1 * math.log(r["factor"]) + 1
        kept = numpy.clip(kept, 0, 1)
        if "all_slow" in self.mistakes:
            kept = 0 * kept
        if "step_for_ramp" in self.mistakes:
            kept = (kept >= 0.5).astype(float)
        if "no_attention_factor" in self.mistakes:
            factor = 1
        if "attention_factor_once" in self.mistakes:     # on q or on k, not on both
            factor = math.sqrt(factor)
        return (kept * plain + (1 - kept) * slow).astype(f32), f32(factor)

    def rotate(self, x):
        """x [T, heads, head_dim]; pairs (i, i + head_dim / 2)."""
        frequencies, factor = self.frequencies()
        angles = numpy.arange(len(x), dtype=f32)[:, None] * frequencies
        cos, sin = (numpy.cos(angles) * factor)[:, None], (numpy.sin(angles) * factor)[:, None]
        if "rope_pairs" in self.mistakes:
            a, b = x[..., 0::2], x[..., 1::2]
            return numpy.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
        half = self.head_dim // 2
        a, b = x[..., :half], x[..., half:]
        return numpy.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    # ---- layers

    def attention(self, p, x):
        rows, group = len(x), self.heads // self.kv_heads
        q = self.linear(p + "q_proj", x).reshape(rows, self.heads, self.head_dim)
        k = self.linear(p + "k_proj", x).reshape(rows, self.kv_heads, self.head_dim)
        v = self.linear(p + "v_proj", x).reshape(rows, self.kv_heads, self.head_dim)
        q, k = self.rotate(q), self.rotate(k)
        scale = f32(1 / math.sqrt(self.config["hidden_size"] / self.heads
                                  if "scale_of_hidden" in self.mistakes else self.head_dim))
        later = numpy.triu(numpy.full((rows, rows), -numpy.inf, f32), 1)
        out = []
        for h in range(self.heads):
            kv = h % self.kv_heads if "gqa_modulo" in self.mistakes else h // group
            score = q[:, h] @ k[:, kv].T * scale + later
            score = numpy.exp(score - score.max(-1, keepdims=True))
            out.append(score / score.sum(-1, keepdims=True) @ v[:, kv])
        return self.linear(p + "o_proj", numpy.concatenate(out, -1)), k, v

    def mlp(self, p, x):
        gate, up = self.linear(p + "gate_proj", x), self.linear(p + "up_proj", x)
        if "gate_up_swapped" in self.mistakes:
            gate, up = up, gate
        return self.linear(p + "down_proj", gate / (1 + numpy.exp(-gate)) * up)

    def run(self, ids, trace=None):
        """-> logits [T, vocab]; trace, a dict, gets the values of golden/trace.safetensors."""
        trace = {} if trace is None else trace
        x = trace["embed"] = self.weight("model.embed_tokens.weight")[ids]
        for i in range(self.config["num_hidden_layers"]):
            p, t = "model.layers.%d." % i, "layer.%d." % i
            mixed, k, v = self.attention(p + "self_attn.", self.norm(p + "input_layernorm", x))
            trace[t + "mixer_out"], trace[t + "k"], trace[t + "v"] = mixed, k.swapaxes(0, 1), v.swapaxes(0, 1)
            x = x + mixed
            x = x + self.mlp(p + "mlp.", self.norm(p + "post_attention_layernorm", x))
            trace[t + "out"] = x
        x = trace["final_norm"] = self.norm("model.norm", x)
        head = "lm_head.weight" if "lm_head.weight" in self.stored else "model.embed_tokens.weight"
        return x @ self.weight(head).T


def compare(folder):
    """Largest difference of logits and of inner values."""
    with open(os.path.join(folder, "golden", "golden.json"), encoding="utf-8") as f:
        prompts = json.load(f)["prompts"]
    logits = read(os.path.join(folder, "golden", "logits.safetensors"))
    inner = read(os.path.join(folder, "golden", "trace.safetensors"))
    model, trace, worst = Forward(folder), {}, 0.0
    for name, p in prompts.items():
        got = model.run(p["ids"], trace if name == "short" else None)
        worst = numpy.maximum(worst, numpy.abs(got[-1] - logits[name + ".last"].f32()).max())
        if name + ".all" in logits:
            worst = numpy.maximum(worst, numpy.abs(got - logits[name + ".all"].f32()).max())
    assert set(trace) == set(inner), set(trace) ^ set(inner)
    return worst, numpy.max([numpy.abs(trace[n] - t.f32()).max() for n, t in inner.items()])


if __name__ == "__main__":
    for folder_ in sys.argv[1:]:
        print("%s: logits differ by at most %.1e, inner values by %.1e" % (folder_, *compare(folder_)))
