#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the checkpoints that test_family_variants.c reads: the small models as other releases store them.

usage: make_variants.py FIXTURES ORACLE OUT
FIXTURES is tests/fixtures, ORACLE the folder of recast_variant.py.
"""
import json
import os
import shutil
import sys

import numpy

RECAST = [
    ("qwen3_5-fp8-tiny", "bf16", {"bf16": "A_log|linear_attn.norm"}),
    ("qwen3_5-fp8-tiny", "f32", {"f32": "norm|dt_bias"}),
    ("qwen3_5-fp8-tiny", "text", {"text_only": True}),
    ("qwen3_5_moe-fp8-tiny", "fuse", {"fuse": True}),
    ("qwen3_5_moe-fp8-tiny", "text", {"text_only": True}),
]
# Of the norm of the query's latent, in every release.
LATENT_NORM_EPS = 1e-6


def same_queries(fixtures, out, tensor_file):
    """Two DeepSeek models that must give the same: one whose query's latent is the layer's normalised input, and one that
    has no latent (q_lora_rank null, q_proj). The first one's q_a_proj is 2^-10 times the identity, so that the eps of the
    latent's norm counts, and the norm's weight undoes that; rms_norm_eps is far smaller, so that the layer's input has a
    mean square of 1."""
    folder = os.path.join(fixtures, "deepseek_v3-fp8-tiny")
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    tensors = tensor_file.read_folder(folder)
    hidden, small = config["hidden_size"], 2.0 ** -10
    latent = dict(tensors)
    plain = dict(tensors)
    for layer in range(config["num_hidden_layers"] + config["num_nextn_predict_layers"]):
        p = "model.layers.%d." % layer
        a = p + "self_attn."
        product = tensor_file.weight(tensors, a + "q_b_proj.weight") @ tensor_file.weight(tensors, a + "q_a_proj.weight")
        for t in (latent, plain):
            t[p + "input_layernorm.weight"] = tensor_file.Tensor("F32", numpy.ones(hidden))
            for name in ("q_a_proj.weight", "q_b_proj.weight"):
                del t[a + name], t[tensor_file.scale_name(a + name)]
        del plain[a + "q_a_layernorm.weight"]
        plain[a + "q_proj.weight"] = tensor_file.Tensor.bf16(product)
        latent[a + "q_b_proj.weight"] = plain[a + "q_proj.weight"]
        latent[a + "q_a_proj.weight"] = tensor_file.Tensor.bf16(small * numpy.eye(hidden, dtype="<f4"))
        undo = (small ** 2 + LATENT_NORM_EPS) ** 0.5 / small
        latent[a + "q_a_layernorm.weight"] = tensor_file.Tensor("F32", numpy.full(hidden, undo))
    config["rms_norm_eps"] = 1e-12
    for name, rank, variant in (("latent", hidden, latent), ("plain", None, plain)):
        to = os.path.join(out, "deepseek_v3-fp8-tiny." + name)
        os.makedirs(to, exist_ok=True)
        tensor_file.write(os.path.join(to, "model.safetensors"), variant)
        with open(os.path.join(to, "config.json"), "w", encoding="utf-8") as f:
            json.dump({**config, "q_lora_rank": rank}, f)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    fixtures, oracle, out = sys.argv[1:]
    sys.dont_write_bytecode = True
    sys.path.insert(0, oracle)
    import recast_variant
    import tensor_file
    shutil.rmtree(out, ignore_errors=True)
    for model, name, options in RECAST:
        recast_variant.write_variant(os.path.join(fixtures, model), os.path.join(out, model + "." + name), **options)
    same_queries(fixtures, out, tensor_file)


if __name__ == "__main__":
    main()
