# SPDX-License-Identifier: Apache-2.0
"""One plan gives the same bits, whatever the threads, timing and retries; and every kernel variant.

usage: same_bits.py BIN FIXTURES timing | ISA
"""
import sys

from cluster import SKIPPED, Cluster, golden

MODELS = ("qwen3-moe-fp8-tiny", "qwen3-fp8-tiny", "qwen3-tiny", "qwen3_5_moe-fp8-tiny", "deepseek_v32-fp8-tiny")
PROMPTS = ("short", "hundred")
DUCKS = 3
FAULTS = "delay=0.3,delay_us=3000,drop=0.02,reorder=0.1,seed=5"
WHAT = sys.argv[3]


def run(c, model):
    """-> logits of the prompts, one array after another; and the golden tokens must come."""
    prompts = golden(model)[0]
    found = c.greedy(prompts["short"]["ids"], 32)
    assert found == prompts["short"]["greedy_ids"], found
    return [c.logits(prompts[name]["ids"]) for name in PROMPTS]


def same(a, b, what):
    assert all(x.tobytes() == y.tobytes() for x, y in zip(a, b)), what
    print("  %s: equal bytes" % what)


def timing(model):
    with Cluster(model, DUCKS, "--threads", 1) as c:
        one = run(c, model)
        in_order = c.stats()["total"]["overtaken"]
    with Cluster(model, DUCKS, "--threads", 2) as c:
        same(one, run(c, model), "1 and 2 threads")
    with Cluster(model, DUCKS, "--threads", 1, "--net-fault", FAULTS) as c:
        late = run(c, model)
        counters = ("fault_dropped", "fault_delayed", "fault_reordered", "retransmitted", "reordered")
        c.wait_for("faults and repairs", lambda: all(c.total(n) > 0 for n in counters))
        overtaken = c.stats()["total"]["overtaken"]
        print("  %s, answers out of slot order %d (%d without faults)" % (
            ", ".join("%s %d" % (n, c.total(n)) for n in counters), overtaken, in_order))
        busy = sum(rows > 0 for rows in c.duck_rows().values())     # experts of 32 columns: one duck has them all
        assert overtaken > 0 or busy == 1, "the faults changed no order of arrival"
    same(one, late, "other arrival orders and retries")


def kernels(model, isa):
    with Cluster(model, DUCKS, "--threads", 1) as c:
        best = run(c, model)
    try:
        with Cluster(model, DUCKS, "--threads", 1, "--isa", isa) as c:
            other = run(c, model)
    except Exception as e:
        if "this CPU runs" not in str(e):
            raise
        print("skipped: this CPU has no %s" % isa)
        sys.exit(SKIPPED)
    same(best, other, isa)


for m in MODELS:
    print(m)
    if WHAT == "timing":
        timing(m)
    else:
        kernels(m, WHAT)
