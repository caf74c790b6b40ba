# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens and logits of a fixture through real processes, for several numbers of ducks; what each duck computed.

usage: golden_tokens.py BIN FIXTURES MODEL DUCKS[,DUCKS ...]
"""
import json
import os
import sys

from cluster import FIXTURES, Cluster, check_logits, golden, read_safetensors

MODEL, DUCKS = sys.argv[3], [int(n) for n in sys.argv[4].split(",")]
STEPS = 32
UNIT = 32       # --multiple-of's default


def feed_forwards():
    """What the ducks have of the model's layers: a list of (units of the intermediate dimension, experts of a row). The
    shared expert is not among it: the worker computes that."""
    with open(os.path.join(FIXTURES, MODEL, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    c = c.get("text_config", c)
    experts = c.get("num_experts") or c.get("n_routed_experts")
    out = []
    for layer in range(c["num_hidden_layers"]):
        moe = experts and layer >= c.get("first_k_dense_replace", 0) and layer not in c.get("mlp_only_layers", ())
        width, chosen = (c["moe_intermediate_size"], c["num_experts_per_tok"]) if moe else (c["intermediate_size"], 1)
        out.append((-(-width // UNIT), chosen))
    return out


def counters(c):
    """duck -> hidden rows, rows of experts"""
    return {n["node"]["name"]: (n.get("duck", {}).get("rows", 0), n.get("duck", {}).get("expert_rows", 0))
            for n in c.stats()["nodes"] if n["node"]["kind"] == "DUCK"}


def expected_counters(ducks, tokens):
    """A duck whose part of a layer is empty, because there are fewer units than ducks, gets no rows of that layer."""
    out = {}
    for i in range(ducks):
        busy = [chosen for units, chosen in feed_forwards() if i < units]
        out["duck-%d" % i] = tokens * len(busy), tokens * sum(busy)
    return out


def check_prompt(c, name, p, largest):
    path = os.path.join(c.runtime, "logits.safetensors")
    found = c.greedy(p["ids"], STEPS, "--logits-out", path)
    assert found == p["greedy_ids"], "%s: %s, golden %s" % (name, found, p["greedy_ids"])
    rows = read_safetensors(path)["logits"].copy()
    os.unlink(path)
    assert rows.shape[0] == len(p["ids"])
    largest["golden"].append(check_logits(name, rows[-1], logits[name + ".last"], 1e-3))
    if name + ".all" in logits:
        largest["golden"].append(check_logits(name + ", all positions", rows, logits[name + ".all"], 1e-3))
    if name in reference:
        largest["ducks"].append(check_logits("%s, against %d ducks" % (name, DUCKS[0]), rows, reference[name], 1e-4))
    reference.setdefault(name, rows)
    return len(p["ids"]) + STEPS - 1


prompts, logits = golden(MODEL)
reference = {}
largest = {"golden": [], "ducks": [0.0]}
for ducks in DUCKS:
    with Cluster(MODEL, ducks) as c:
        print("%s, %d ducks" % (MODEL, ducks))
        tokens = sum(check_prompt(c, name, p, largest) for name, p in prompts.items())
        expected = expected_counters(ducks, tokens)
        c.wait_for("row counters %s, expected %s" % (counters(c), expected), lambda: counters(c) == expected)
        print("  rows and rows of experts of each duck: %s" % sorted(expected.values(), reverse=True))
print("%s: largest difference to the golden logits %.1e, between numbers of ducks %.1e" % (
    MODEL, max(largest["golden"]), max(largest["ducks"])))
