# SPDX-License-Identifier: Apache-2.0
"""Rotation frequencies of transformers, as C tables for tests/unit/attention-worker/test_rope_frequencies.c.

usage: ATEN_CPU_CAPABILITY=default python rope_goldens.py > tables.txt

With AVX2 or AVX-512 torch computes powers by a vector library that is off by one unit in the last place here and there
(one of the 64 frequencies of theta 1e6); "default" rounds every power correctly.
"""
import os
import sys

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_get_mscale

# name -> head_dim (after partial_rotary_factor), rope_parameters
CASES = {
    "qwen3": (128, {"rope_type": "default", "rope_theta": 1e6}),
    "qwen3_5": (64, {"rope_type": "default", "rope_theta": 1e7}),
    "linear": (128, {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}),
    "llama3_1": (128, {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                       "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "deepseek_v3": (64, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}),
    "two_mscales": (64, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "mscale": 0.707, "mscale_all_dim": 0.5, "original_max_position_embeddings": 4096}),
    "qwen2_5_yarn": (128, {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
                           "original_max_position_embeddings": 32768}),
    "yarn_wide_ramp": (32, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0,
                            "original_max_position_embeddings": 131072}),
    "yarn_untruncated": (64, {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0,
                              "beta_slow": 1.0, "truncate": False, "attention_factor": 1.25,
                              "original_max_position_embeddings": 4096}),
}


def plain(config, _device):
    p = config.rope_parameters
    dim = config.head_dim
    return 1.0 / (p["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)), 1.0


def c_hex(value):
    """The shortest hexadecimal form of an f32."""
    mantissa, exponent = torch.tensor(value, dtype=torch.float32).item().hex().split("p")
    return "%sp%sf" % (mantissa.rstrip("0").rstrip("."), exponent)


def softmax_factor(p):
    """As DeepseekV3Attention's __init__ has it."""
    m = yarn_get_mscale(p["factor"], p["mscale_all_dim"]) if p.get("mscale_all_dim") else 1.0
    return m * m


def main():
    if os.environ.get("ATEN_CPU_CAPABILITY") != "default":
        sys.exit("ATEN_CPU_CAPABILITY=default is needed: see the text at the top")
    printed = {}
    for name, (dims, parameters) in CASES.items():
        config = LlamaConfig(head_dim=dims, hidden_size=dims * 2, num_attention_heads=2, num_key_value_heads=2,
                             max_position_embeddings=131072, rope_parameters=dict(parameters))
        frequencies, factor = ROPE_INIT_FUNCTIONS.get(parameters["rope_type"], plain)(config, torch.device("cpu"))
        assert frequencies.dtype == torch.float32 and len(frequencies) == dims // 2
        values = tuple(c_hex(v) for v in frequencies.tolist())
        same = printed.setdefault(values, name)
        print("/* %s: attention factor %s, softmax factor %s%s */" % (
            name, c_hex(factor), c_hex(softmax_factor(parameters)), "" if same == name else ", frequencies of " + same))
        if same == name:
            print("static const float %s[%d] = {" % (name, dims // 2))
            for i in range(0, len(values), 6):
                print("    " + ", ".join(values[i:i + 6]) + ",")
            print("};\n")


if __name__ == "__main__":
    main()
