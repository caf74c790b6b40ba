# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens and logits of every fixture through real processes, for several numbers of ducks; what each duck computed."""
import sys

from cluster import Cluster, check_logits, golden

MODEL, DUCKS = sys.argv[3], [int(n) for n in sys.argv[4].split(",")]
STEPS = 32
UNITS = {"qwen3-tiny": 384 // 32, "qwen3-fp8-tiny": 320 // 32, "qwen3-moe-fp8-tiny": 192 // 32}
LAYERS = 3

prompts, logits = golden(MODEL)
reference = {}
for ducks in DUCKS:
    with Cluster(MODEL, ducks) as c:
        print("%s, %d ducks" % (MODEL, ducks))
        rows = 0
        for name, p in prompts.items():
            ids = p["ids"]
            found = c.greedy(ids, STEPS)
            assert found == p["greedy_ids"], "%s: %s, golden %s" % (name, found, p["greedy_ids"])
            all_positions = c.logits(ids)
            assert all_positions.shape[0] == len(ids)
            check_logits(name, all_positions[-1], logits[name + ".last"], 1e-3)
            if name + ".all" in logits:
                check_logits(name + ", all positions", all_positions, logits[name + ".all"], 1e-3)
            if name in reference:
                check_logits(name + ", against %d ducks" % DUCKS[0], all_positions, reference[name], 1e-4)
            reference.setdefault(name, all_positions)
            rows += LAYERS * (len(ids) + STEPS - 1 + len(ids))
        busy = min(ducks, UNITS[MODEL])     # more ducks than units: the last ones have an empty part
        expected = {"duck-%d" % i: rows if i < busy else 0 for i in range(ducks)}
        c.wait_for("row counters %s, expected %s" % (c.duck_rows(), expected), lambda: c.duck_rows() == expected)
        print("  rows computed by each duck: %d" % rows)
