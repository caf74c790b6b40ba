# SPDX-License-Identifier: Apache-2.0
"""Variants of the Qwen3.5 fixtures as other releases store the same weights. numpy alone; tests import write_variant().

usage: recast_variant.py FOLDER OUT [--bf16=REGEX] [--f32=REGEX] [--fuse] [--drop-prefix]
--bf16, --f32   store the tensors whose names match in that type; FP8 weights and their scales stay. Qwen3.6 and later
                have bf16 where Qwen3.5 has f32: --bf16='A_log|linear_attn.norm'.
--fuse          experts as in the bf16 releases of Qwen3.5-MoE: bf16, experts.gate_up_proj [E, 2I, H] with the gate's
                rows first, and experts.down_proj [E, H, I].
--drop-prefix   a text-only release: model.language_model.X is model.X, config.json is the text_config alone with
                model_type qwen3_5_text or qwen3_5_moe_text, and the vision tower is missing.
Expected logits of the variants: tests/fixtures/recast (see README.md).
"""
import json
import os
import re
import shutil
import sys

import numpy

from tensor_file import Tensor, read_folder, scale_name, weight, write

EXPERT = re.compile(r"(.*mlp\.experts\.)(\d+)\.(gate|up|down)_proj\.weight$")
TEXT_ARCHITECTURES = {"qwen3_5": "Qwen3_5ForCausalLM", "qwen3_5_moe": "Qwen3_5MoeForCausalLM"}


def store_as(tensors, pattern, convert):
    for name, t in tensors.items():
        if re.search(pattern, name) and t.kind != "F8_E4M3" and not name.endswith("weight_scale_inv"):
            tensors[name] = convert(t.f32())


def fuse_experts(tensors):
    layers = {}
    for name in [n for n in tensors if EXPERT.match(n)]:
        base, expert, kind = EXPERT.match(name).groups()
        layers.setdefault(base, {})[int(expert), kind] = Tensor.bf16(weight(tensors, name)).data
        del tensors[name]
        tensors.pop(scale_name(name), None)
    for base, found in layers.items():
        count = 1 + max(expert for expert, _ in found)
        both = [numpy.concatenate([found[e, "gate"], found[e, "up"]]) for e in range(count)]
        tensors[base + "gate_up_proj"] = Tensor("BF16", numpy.stack(both))
        tensors[base + "down_proj"] = Tensor("BF16", numpy.stack([found[e, "down"] for e in range(count)]))


def drop_prefix(tensors):
    out = {}
    for name, t in tensors.items():
        if not name.startswith("model.visual."):
            out[re.sub(r"^model\.language_model\.", "model.", name)] = t
    return out


def text_config(config):
    """The text part of a multimodal config.json as a file of its own."""
    text = dict(config["text_config"])
    out = {"architectures": [TEXT_ARCHITECTURES[config["model_type"]]], **text,
           "model_type": config["model_type"] + "_text", "tie_word_embeddings": config["tie_word_embeddings"],
           "transformers_version": config["transformers_version"]}
    if "quantization_config" in config:
        quantization = dict(config["quantization_config"])
        keep = [re.sub(r"^model\.language_model\.", "model.", n)
                for n in quantization.get("modules_to_not_convert", [])]
        quantization["modules_to_not_convert"] = [n for n in keep if "visual" not in n]
        out["quantization_config"] = quantization
    return out


def write_variant(folder, out, bf16=None, f32=None, fuse=False, text_only=False):
    """Reads the checkpoint `folder`, writes the folder `out` with one file of weights and no golden values."""
    tensors = read_folder(folder)
    if bf16:
        store_as(tensors, bf16, Tensor.bf16)
    if f32:
        store_as(tensors, f32, lambda values: Tensor("F32", values))
    if fuse:
        fuse_experts(tensors)
    if text_only:
        tensors = drop_prefix(tensors)
    os.makedirs(out, exist_ok=True)
    write(os.path.join(out, "model.safetensors"), tensors)
    for name in os.listdir(folder):
        if name.endswith((".json", ".jinja")) and name != "model.safetensors.index.json":
            shutil.copyfile(os.path.join(folder, name), os.path.join(out, name))
    if text_only:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            config = text_config(json.load(f))
        with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2)
            f.write("\n")


def main():
    folders = [a for a in sys.argv[1:] if not a.startswith("--")]
    options = dict(a[2:].split("=", 1) if "=" in a else (a[2:], True) for a in sys.argv[1:] if a.startswith("--"))
    if len(folders) != 2 or set(options) - {"bf16", "f32", "fuse", "drop-prefix"}:
        sys.exit(__doc__)
    write_variant(*folders, bf16=options.get("bf16"), f32=options.get("f32"), fuse="fuse" in options,
                  text_only="drop-prefix" in options)


if __name__ == "__main__":
    main()
