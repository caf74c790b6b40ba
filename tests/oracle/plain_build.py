# SPDX-License-Identifier: Apache-2.0
"""Trains the small plain models on a few dialogues and writes their folders into tests/fixtures.

usage: plain_build.py [--steps=N] NAME...     (names of plain_specs.json)
"""
import json
import math
import os
import shutil
import sys
import time

import numpy
import torch
import torch.nn.functional as F

from plain_model import FIXTURES, TOKENIZER, Text, generator, load_json, new_model, stored_model
from tensor_file import BLOCK, E4M3, Tensor, block_grid, write

SEED_MODEL = "qwen3-tiny"      # whose tokenizer files the new folders share
STEPS, RATE = 1200, 3e-3
torch.set_num_threads(1)


@torch.no_grad()
def randomise(model, seed):
    """Norms and biases get values that a wrong implementation cannot ignore, 128 x 128 blocks unequal magnitudes."""
    gen = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=gen)
        if name.endswith("bias"):
            p.copy_(0.7 * r)
        elif "norm" in name:
            p.copy_(1 + 0.25 * r)
        elif "embed_tokens" in name:
            p.copy_(0.05 * r)      # so small that rms_norm_eps counts in the first layer
        elif "lm_head" in name:
            p.copy_(0.3 * r)
        else:
            p.copy_(0.7 * r / math.sqrt(p.shape[1]))
            for a in range(0, p.shape[0], BLOCK):
                for b in range(0, p.shape[1], BLOCK):
                    p[a:a + BLOCK, b:b + BLOCK] *= math.exp(0.6 * torch.randn(1, generator=gen).item())


def train(name, model, text, seed, steps):
    rng, began = generator(seed), time.time()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in range(steps):
        share = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 20) * share
        ids, weights = text.batch(rng, 2, 320) if step % 4 == 3 else text.batch(rng, 8, rng.choice([40, 80, 120]))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), reduction="none")
        weights = weights[:, 1:].reshape(-1)
        loss = (losses * weights).sum() / weights.sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 100 == 0 or step == steps - 1:
            print("%s: step %d, loss %.4f, %.0f s" % (name, step, loss.item(), time.time() - began), flush=True)
    model.eval()


def to_fp8(values):
    """128 x 128 blocks (parts of them at the edges), the largest value of each becomes 448 -> weight, bf16 scales"""
    rows, cols = (-(-n // BLOCK) for n in values.shape)
    padded = numpy.zeros((rows * BLOCK, cols * BLOCK), "<f4")
    padded[:values.shape[0], :values.shape[1]] = values
    largest = numpy.abs(padded).reshape(rows, BLOCK, cols, BLOCK).max((1, 3))
    scales = Tensor.bf16(largest / numpy.float32(448))
    scaled = numpy.clip(values / block_grid(scales.f32(), values.shape), -448, 448)
    codes = torch.from_numpy(scaled).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert numpy.array_equal(E4M3[codes], torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn).float().numpy())
    return Tensor("F8_E4M3", codes), scales


def stored_tensors(model, config, fp8):
    out = {}
    for name, p in model.state_dict().items():
        values = p.detach().numpy()
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if fp8 and "_proj.weight" in name:
            out[name], out[name.replace(".weight", ".weight_scale_inv")] = to_fp8(values)
        else:
            out[name] = Tensor.bf16(values)
    return out


def write_weights(folder, tensors, shards):
    if shards == 1:
        write(os.path.join(folder, "model.safetensors"), tensors)
        return
    names, where = list(tensors), {}
    for i in range(shards):        # a weight and its scales may be in different shards, as in the releases
        part = names[len(names) * i // shards:len(names) * (i + 1) // shards]
        file = "model-%05d-of-%05d.safetensors" % (i + 1, shards)
        write(os.path.join(folder, file), {n: tensors[n] for n in part})
        where.update({n: file for n in part})
    total = sum(t.data.nbytes for t in tensors.values())
    write_json(folder, "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")


def write_side_files(folder, config, text):
    """No chat template: the prompts are text that is ChatML already."""
    shutil.copyfile(TOKENIZER, os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(FIXTURES, SEED_MODEL, "tokenizer_config.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    del tokenizer["chat_template"]
    write_json(folder, "tokenizer_config.json", tokenizer)
    write_json(folder, "generation_config.json", {
        "bos_token_id": config["bos_token_id"], "do_sample": True, "eos_token_id": [text.end, text.pad],
        "temperature": 0.6, "top_p": 0.9, "transformers_version": config["transformers_version"]})
    write_json(folder, "config.json", config)


def main():
    specs, text = load_json("plain_specs.json"), Text()
    steps = [int(a[8:]) for a in sys.argv[1:] if a.startswith("--steps=")]
    for name in [a for a in sys.argv[1:] if not a.startswith("--")] or specs:
        spec, folder = specs[name], os.path.join(FIXTURES, name)
        os.makedirs(folder, exist_ok=True)
        torch.manual_seed(spec["seed"])
        model = new_model(spec["config"])
        randomise(model, spec["seed"])
        train(name, model, text, spec["seed"], steps[0] if steps else STEPS)
        write_weights(folder, stored_tensors(model, spec["config"], spec["fp8"]), spec["shards"])
        write_side_files(folder, spec["config"], text)
        stored_model(folder)
        size = sum(e.stat().st_size for e in os.scandir(folder) if e.is_file())
        print("%s: %.0f KiB without the golden values" % (name, size / 1024), flush=True)


if __name__ == "__main__":
    main()
