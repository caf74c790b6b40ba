# SPDX-License-Identifier: Apache-2.0
"""Ducks in network namespaces of their own, joined by a bridge, over af_packet with loss: the same tokens."""
import os
import subprocess
import sys

from cluster import Cluster, SKIPPED, golden

MODEL = "qwen3-moe-fp8-tiny"

if os.geteuid() != 0 or subprocess.run(["ip", "netns", "add", "dk-probe"], capture_output=True).returncode != 0:
    print("skipped: network namespaces need root and iproute2")
    sys.exit(SKIPPED)
subprocess.run(["ip", "netns", "del", "dk-probe"], check=True)

prompts, _ = golden(MODEL)
before = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
with Cluster(MODEL, 3, "--port", "af_packet", "--net-fault", "drop=0.01,seed=3") as c:
    for name in ("short", "question", "hundred", "three_hundred"):
        found = c.greedy(prompts[name]["ids"], 32)
        assert found == prompts[name]["greedy_ids"], "%s: %s" % (name, found)
    c.wait_for("drops and retransmissions", lambda: c.total("fault_dropped") > 0 and c.total("retransmitted") > 0)
    print("dropped %d, retransmitted %d: the same tokens" % (c.total("fault_dropped"), c.total("retransmitted")))
after = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
assert before == after, "namespaces left behind: " + after
