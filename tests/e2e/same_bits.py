# SPDX-License-Identifier: Apache-2.0
"""One plan gives the same bits, whatever the threads, timing, retries and kernel variant."""
from cluster import Cluster, check_logits, golden

MODEL, PROMPT = "qwen3-moe-fp8-tiny", "hundred"
FAULTS = "delay=0.3,delay_us=3000,drop=0.02,seed=5"

ids = golden(MODEL)[0][PROMPT]["ids"]


def logits(*options):
    with Cluster(MODEL, 3, *options) as c:
        out = c.logits(ids)
        return out, c.total("retransmitted"), c.total("fault_delayed")


one, _, _ = logits("--threads", 1)
two, _, _ = logits("--threads", 2)
assert one.tobytes() == two.tobytes(), "1 and 2 threads differ"
print("1 and 2 threads: equal bytes")

with Cluster(MODEL, 3, "--threads", 1, "--net-fault", FAULTS) as c:
    late = c.logits(ids)
    c.wait_for("retransmissions and delays", lambda: c.total("retransmitted") > 0 and c.total("fault_delayed") > 0)
    print("delayed %d, dropped %d, retransmitted %d" % (c.total("fault_delayed"), c.total("fault_dropped"),
                                                       c.total("retransmitted")))
assert one.tobytes() == late.tobytes(), "delays and retries changed the result"
print("with delays and retries: equal bytes")

for isa in ("ref", "avx2", "avx512"):
    try:
        other, _, _ = logits("--threads", 1, "--isa", isa)
    except Exception as e:
        if "this CPU runs" not in str(e):
            raise
        print("%s: this CPU has no such kernels, not compared" % isa)
        continue
    check_logits("kernels " + isa, other, one, 1e-4)
