# SPDX-License-Identifier: Apache-2.0
"""One plan gives the same bits, whatever the threads, timing and retries; and every kernel variant.

usage: same_bits.py BIN FIXTURES timing | ISA
"""
import os
import sys

from cluster import FIXTURES, SKIPPED, Cluster, golden

MODELS = ("qwen3-moe-fp8-tiny", "qwen3-fp8-tiny", "qwen3-tiny", "qwen3_5_moe-fp8-tiny", "deepseek_v32-fp8-tiny")
PROMPTS = ("short", "hundred")
DUCKS = 3
FAULTS = "delay=0.3,delay_us=3000,drop=0.02,reorder=0.1,seed=5"
WHAT = sys.argv[3]


def run(*options, look=lambda c: None):
    """Each model in one cluster after the other. The golden tokens must come.
    -> model -> logits of the prompts, one array after another; what look(cluster) gives at the end"""
    found = {}
    with Cluster(MODELS[0], DUCKS, *options) as c:
        for model in MODELS:
            prompts = golden(model)[0]
            c.ctl("load", "--model", os.path.join(FIXTURES, model))
            tokens = c.greedy(prompts["short"]["ids"], 32)
            assert tokens == prompts["short"]["greedy_ids"], (model, tokens)
            found[model] = [c.logits(prompts[name]["ids"]) for name in PROMPTS]
        return found, look(c)


def same(a, b, what):
    for model in MODELS:
        assert all(x.tobytes() == y.tobytes() for x, y in zip(a[model], b[model])), (model, what)
        print("%s, %s: equal bytes" % (model, what))


def overtaken(c):
    """Answers that came out of slot order."""
    return c.stats()["total"]["overtaken"]


def faults(c):
    counters = ("fault_dropped", "fault_delayed", "fault_reordered", "retransmitted", "reordered")
    c.wait_for("faults and repairs", lambda: all(c.total(n) > 0 for n in counters))
    print(", ".join("%s %d" % (n, c.total(n)) for n in counters))
    return overtaken(c)


def timing():
    one, in_order = run("--threads", 1, look=overtaken)
    two, _ = run("--threads", 2)
    same(one, two, "1 and 2 threads")
    late, moved = run("--threads", 1, "--net-fault", FAULTS, look=faults)
    same(one, late, "other arrival orders and retries")
    print("answers out of slot order: %d, without faults %d" % (moved, in_order))
    assert moved > 0, "the faults changed no order of arrival"


def kernels(isa):
    best, _ = run("--threads", 1)
    try:
        other, _ = run("--threads", 1, "--isa", isa)
    except Exception as e:
        if "this CPU runs" not in str(e):
            raise
        print("skipped: this CPU has no %s" % isa)
        sys.exit(SKIPPED)
    same(best, other, isa)


if WHAT == "timing":
    timing()
else:
    kernels(WHAT)
