# SPDX-License-Identifier: Apache-2.0
"""The Qwen3.5 fixtures as other releases store them: other types, fused experts, a text-only checkpoint.

tests/fixtures/recast has the logits of each variant (tests/oracle/README.md says how far they are from the original's).

usage: recast.py BIN FIXTURES
"""
import os
import sys
import tempfile

import numpy as np

from cluster import FIXTURES, Cluster, check_logits, golden, read_safetensors

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
from recast_variant import write_variant

DENSE, MOE = "qwen3_5-fp8-tiny", "qwen3_5_moe-fp8-tiny"
# model, options, its golden file (None: the original's), how far from the original it must be
VARIANTS = ((DENSE, {"bf16": "A_log|linear_attn.norm"}, "bf16", 1e-3), (DENSE, {"f32": "norm|dt_bias"}, "f32", 0),
            (MOE, {"fuse": True}, "fuse", 1e-3), (DENSE, {"text_only": True}, None, 0),
            (MOE, {"text_only": True}, None, 0), (MOE, {"fuse": True, "text_only": True}, "fuse", 1e-3))


def check(c, model, expected, away):
    prompts, original = golden(model)
    largest, moved = 0.0, 0.0
    for name, p in prompts.items():
        last = c.logits(p["ids"])[-1]
        largest = max(largest, check_logits(name, last, expected[name + ".last"], 1e-3))
        moved = max(moved, float(np.abs(last - original[name + ".last"]).max()))
    assert c.greedy(prompts["long_answer"]["ids"], 32) == prompts["long_answer"]["greedy_ids"]
    assert moved >= away, "%g from the original's logits: the variant was not read" % moved
    return largest, moved


with Cluster(DENSE, 3) as c, tempfile.TemporaryDirectory(prefix="dkr", dir="/tmp") as folder:
    for i, (model, options, file, away) in enumerate(VARIANTS):
        variant = os.path.join(folder, str(i))
        write_variant(os.path.join(FIXTURES, model), variant, **options)
        expected = golden(model)[1]
        if file:
            expected = read_safetensors(os.path.join(FIXTURES, "recast", "%s.%s.safetensors" % (model, file)))
        for ducks in (1, 3):
            said = "%s %s, %d ducks" % (model, " ".join("%s=%s" % o for o in options.items()), ducks)
            print(said)
            c.ctl("load", "--model", variant, "--tp", ducks)
            print("%s: %.1e from its golden logits, %.1e from the original's" % (
                said, *check(c, model, expected, away)))
