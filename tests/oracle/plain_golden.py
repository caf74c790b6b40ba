# SPDX-License-Identifier: Apache-2.0
"""Expected values of the plain models by transformers: float32, eager attention, weights as stored.

usage: plain_golden.py NAME...     (names of plain_specs.json; writes tests/fixtures/NAME/golden)

golden.json: "prompts".<name>: ids, text, greedy_ids (32, not stopped at the end token), margins (first minus second
logit of each step), eos_at, greedy_text, last_top5; "measured": what an independent implementation and deliberate
mistakes differ by. logits.safetensors: <prompt>.last [V], multi_turn.all [T, V]. trace.safetensors, prompt "short":
embed, layer.N.mixer_out, layer.N.out, final_norm [T, H]; layer.N.k, layer.N.v [kv_heads, T, head_dim], k after its
rotation.
"""
import json
import os
import sys

import numpy
import torch
import transformers

from plain_forward import Forward
from plain_model import FIXTURES, Text, generator, load_json, stored_model
from tensor_file import Tensor, write

STEPS, CANDIDATES, COMFORTABLE = 32, 6, 0.5
torch.set_num_threads(1)

EVERYWHERE = ["rope_pairs", "gqa_modulo", "gate_up_swapped", "eps_1e-6"]
MISTAKES = {
    "qwen2-tiny": ["no_bias", "no_k_bias", "theta_10000"],
    "mistral-tiny": ["scale_of_hidden", "theta_10000", "one_scale"],
    "llama3-rope-tiny": ["no_scaling", "all_slow", "step_for_ramp", "theta_10000"],
    "llama-linear-rope-tiny": ["no_scaling"],
    "llama-yarn-tiny": ["no_scaling", "all_slow", "step_for_ramp", "no_attention_factor", "attention_factor_once"],
}


def candidates(text, seed):
    """name -> texts, of which the one with the widest margins is kept"""
    rng, pairs = generator(seed), text.dialogues["pairs"]
    ask = lambda question: text.render([("user", question)])
    words = [w for w in ("The", "Hello", "What", "I", "A", "In", "1") if len(text.encode(w)) == 1]
    out = {"one": words, "short": [ask(pairs[0][0])],
           "question": [ask(q) for q, _ in rng.sample(pairs[1:], CANDIDATES)],
           "long_answer": [ask(q) for q, a in sorted(pairs, key=lambda p: -len(text.encode(p[1])))[:3]]}
    for name, tokens in (("multi_turn", 48), ("hundred", 100), ("three_hundred", 300)):
        out[name] = []
        while len(out[name]) < CANDIDATES:
            turns, _ = text.conversation(rng, tokens + 40)
            prompt = text.render(turns)
            if abs(len(text.encode(prompt)) - tokens) <= 12:
                out[name].append(prompt)
    return out


@torch.no_grad()
def greedy(model, ids):
    """-> logits of every position of the prompt, tokens, margins"""
    step = model(input_ids=torch.tensor([ids]), use_cache=True)
    prompt_logits, tokens, margins = step.logits[0], [], []
    while True:
        top = step.logits[0, -1].topk(2)
        tokens.append(top.indices[0].item())
        margins.append((top.values[0] - top.values[1]).item())
        if len(tokens) == STEPS:
            return prompt_logits.numpy(), tokens, margins
        step = model(input_ids=torch.tensor([tokens[-1:]]), cache=step.cache, use_cache=True)


def describe(text, prompt, ids, logits, tokens, margins):
    eos_at = tokens.index(text.end) if text.end in tokens else -1
    best = numpy.argsort(-logits[-1], kind="stable")[:5]
    return {"ids": ids, "text": prompt, "n_tokens": len(ids), "greedy_ids": tokens, "eos_at": eos_at,
            "greedy_text": text.tokenizer.decode(tokens[:eos_at] if eos_at >= 0 else tokens, skip_special_tokens=False),
            "margins": [round(m, 4) for m in margins], "min_margin": round(min(margins), 4),
            "last_top5": [[int(i), round(float(logits[-1][i]), 5)] for i in best]}


def choose(text, model, prompts):
    best = None
    for prompt in prompts:
        ids = text.encode(prompt)
        logits, tokens, margins = greedy(model, ids)
        if best is None or min(margins) > best[0]["min_margin"]:
            best = describe(text, prompt, ids, logits, tokens, margins), logits
        if min(margins) > COMFORTABLE:
            break
    return best


@torch.no_grad()
def trace(model, ids):
    out, hooks = {}, []

    def keep(module, name):
        def hook(_module, _inputs, result):
            out[name] = (result[0] if isinstance(result, tuple) else result).reshape(len(ids), -1).numpy().copy()
        hooks.append(module.register_forward_hook(hook))
    keep(model.model.embed_tokens, "embed")
    keep(model.model.norm, "final_norm")
    for i, layer in enumerate(model.model.layers):
        keep(layer, "layer.%d.out" % i)
        keep(layer.self_attn, "layer.%d.mixer_out" % i)
    cache = model(input_ids=torch.tensor([ids]), use_cache=True).cache
    for hook in hooks:
        hook.remove()
    for i, layer in enumerate(cache.layers):
        out["layer.%d.k" % i], out["layer.%d.v" % i] = layer.keys[0].numpy(), layer.values[0].numpy()
    return out


@torch.no_grad()
def measure(name, folder, model, prompts, full):
    def against(forward):
        differences = {n: numpy.abs(forward(p["ids"]) - full[n]) for n, p in prompts.items() if n != "one"}
        return {"last": float("%.3g" % max(d[-1].max() for d in differences.values())),
                "all_positions": float("%.3g" % max(d.max() for d in differences.values())),
                "three_hundred_last": float("%.3g" % differences["three_hundred"][-1].max())}

    def token_by_token(ids):
        rows, cache = [], None
        for i in ids:
            step = model(input_ids=torch.tensor([[i]]), cache=cache, use_cache=True)
            rows.append(step.logits[0, -1].numpy())
            cache = step.cache
        return numpy.stack(rows)
    wrong = {}
    for mistake in MISTAKES[name] + EVERYWHERE:
        if mistake == "eps_1e-6" and model.config.rms_norm_eps == 1e-6 or \
                mistake == "gqa_modulo" and model.config.num_key_value_heads in (1, model.config.num_attention_heads):
            continue
        wrong[mistake] = against(Forward(folder, [mistake]).run)
    return {"logit_std": round(float(numpy.concatenate([f.ravel() for f in full.values()]).std()), 3),
            "independent_fp32": against(Forward(folder).run), "token_by_token_vs_prefill": against(token_by_token),
            "mistakes": wrong}


def main():
    specs, text = load_json("plain_specs.json"), Text()
    for name in sys.argv[1:] or specs:
        folder = os.path.join(FIXTURES, name)
        gold = os.path.join(folder, "golden")
        config, model = stored_model(folder)
        prompts, full = {}, {}
        for prompt, texts in candidates(text, specs[name]["seed"] + 1000).items():
            prompts[prompt], full[prompt] = choose(text, model, texts)
        tensors = {n + ".last": f[-1] for n, f in full.items()}
        tensors["multi_turn.all"] = full["multi_turn"]
        os.makedirs(gold, exist_ok=True)
        write(os.path.join(gold, "logits.safetensors"), {n: Tensor("F32", t) for n, t in tensors.items()})
        inner = trace(model, prompts["short"]["ids"])
        write(os.path.join(gold, "trace.safetensors"), {n: Tensor("F32", t) for n, t in inner.items()})
        report = {"model": name, "family": config["model_type"], "vocab_size": config["vocab_size"],
                  "torch": torch.__version__, "transformers": transformers.__version__, "prompts": prompts,
                  "all_positions_prompt": "multi_turn", "trace_prompt": "short",
                  "measured": measure(name, folder, model, prompts, full)}
        with open(os.path.join(gold, "golden.json"), "w", encoding="utf-8") as f:
            json.dump(report, f, ensure_ascii=False, indent=1)
            f.write("\n")
        print(name, json.dumps(report["measured"], indent=1))
        for n, p in prompts.items():
            print("   %-13s %3d tokens, least margin %.3f, %r" % (n, p["n_tokens"], p["min_margin"], p["greedy_text"]))


if __name__ == "__main__":
    main()
