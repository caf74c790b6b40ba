# SPDX-License-Identifier: Apache-2.0
"""Sparse and full attention of a model with an indexer, through real processes.

usage: attention_mode.py BIN FIXTURES
"""
import json
import os

import numpy as np

from cluster import FIXTURES, Cluster, check_logits, golden

MODEL, DUCKS, STEPS = "deepseek_v32-fp8-tiny", (1, 2, 3, 5, 8), 32
TOP_K = 24              # index_topk
FULL = "full_attention."


def load(c, mode, *options):
    c.ctl("load", "--model", c.model, *options)
    assert "attention " + mode in c.ctl("status").stdout


def answer(c, ids):
    """Greedy, as long as the context lets it. -> tokens, why it ended"""
    r = c.generate("--ids", ",".join(map(str, ids)), "--max-tokens", STEPS, "--temperature", 0, "--ignore-eos")
    return r["token_ids"], r["finish_reason"]


def sparse(c):
    """-> logits of the prompts"""
    out = {n: c.logits(p["ids"]) for n, p in prompts.items()}
    for n, p in prompts.items():
        check_logits("sparse, " + n, out[n][-1], logits[n + ".last"], 1e-3)
        assert answer(c, p["ids"]) == (p["greedy_ids"], "length"), n
    return out


def full_everywhere(c, selected):
    for name, expected in full_prompts.items():
        ids = prompts[name]["ids"]
        found = c.logits(ids)
        check_logits("full, " + name, found[-1], logits[FULL + name + ".last"], 1e-3)
        moved = float(np.abs(found[-1] - logits[name + ".last"]).max())
        assert moved <= 1e-3 if len(ids) <= TOP_K else moved > 0.05, "%s: sparse and full differ by %g" % (name, moved)
        check_logits("full, %s, up to index_topk" % name, found[:TOP_K], selected[name][:TOP_K], 1e-4)
        tokens = c.greedy(ids, STEPS)
        assert tokens == expected["greedy_ids"], "full, %s: %s, golden %s" % (name, tokens, expected["greedy_ids"])


def full_with_end(c, selected):
    """The context ends where the indexer would begin to leave positions out."""
    short = [n for n, p in prompts.items() if len(p["ids"]) < TOP_K]
    assert len(short) >= 4
    for n in short:
        p = prompts[n]
        check_logits("full up to index_topk, " + n, c.logits(p["ids"]), selected[n], 1e-4)
        assert answer(c, p["ids"]) == (p["greedy_ids"][:TOP_K - len(p["ids"])], "length"), n
    last = prompts["multi_turn"]["ids"][:TOP_K - 1]
    assert len(answer(c, last)[0]) == 1
    for ids in (prompts["multi_turn"]["ids"][:TOP_K], prompts["multi_turn"]["ids"]):
        code, said = c.refused("generate", "--ids", ",".join(map(str, ids)), "--max-tokens", 1)
        assert code == "INVALID_ARGUMENT" and "attention mode 'full' ends at index_topk = %d" % TOP_K in said, said
        assert "%d tokens" % len(ids) in said and "--attention sparse or --allow-full" in said, said


def refusals(c):
    """A refused load leaves the loaded model as it is."""
    for model, options, text in (
            ("qwen3-tiny", (), "qwen3 has none"), ("deepseek_v3-fp8-tiny", ("--allow-full",), "deepseek_v3 has none"),
            (MODEL, ("--context", TOP_K + 1), "ends at index_topk = %d positions" % TOP_K)):
        code, said = c.refused("load", "--model", os.path.join(FIXTURES, model), "--attention", "full", *options)
        assert code == "INVALID_ARGUMENT" and text in said, said
        print("  refused: %s" % said)
    p = c.ctl("load", "--model", c.model, "--allow-full", expect=2)
    assert "--attention full" in p.stderr, p
    assert answer(c, prompts["short"]["ids"])[0] == prompts["short"]["greedy_ids"]


prompts, logits = golden(MODEL)
with open(os.path.join(FIXTURES, MODEL, "golden", "golden.json"), encoding="utf-8") as f:
    full_prompts = json.load(f)["full_attention_prompts"]
assert {FULL + n + ".last" for n in full_prompts} == {n for n in logits if n.startswith(FULL)}
assert any(p["greedy_ids"] != prompts[n]["greedy_ids"] for n, p in full_prompts.items()), "no prompt tells the modes apart"
with Cluster(MODEL, max(DUCKS), "--attention", "full", "--allow-full") as c:
    assert "attention full" in c.ctl("status").stdout
    full = c.logits(prompts["hundred"]["ids"])
    load(c, "sparse")
    selected = sparse(c)
    refusals(c)
    for ducks in DUCKS:
        print("full attention, %d ducks" % ducks)
        load(c, "full", "--attention", "full", "--allow-full", "--tp", ducks)
        full_everywhere(c, selected)
    assert c.logits(prompts["hundred"]["ids"]).tobytes() == full.tobytes(), "another load gives other bits"
    load(c, "full", "--attention", "full")
    full_with_end(c, selected)
    load(c, "full", "--attention", "full", "--allow-full", "--context", TOP_K)
    _, said = c.refused("generate", "--ids", ",".join(map(str, prompts["multi_turn"]["ids"])), "--max-tokens", 1)
    assert "larger context" in said and "index_topk" not in said, said
    load(c, "full", "--attention", "full", "--context", TOP_K - 4)
    assert len(answer(c, prompts["short"]["ids"])[0]) == TOP_K - 4 - len(prompts["short"]["ids"])
