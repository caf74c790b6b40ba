# SPDX-License-Identifier: Apache-2.0
"""Prefill in one piece, in chunks and token by token give the same tokens; sequences side by side what each gets alone."""
import concurrent.futures

import numpy as np

from cluster import Cluster, golden

STEPS = 32

for model in ("qwen3-moe-fp8-tiny", "qwen3-fp8-tiny"):
    prompts, _ = golden(model)
    names = list(prompts)
    with Cluster(model, 2, "--max-running", 8) as c:
        alone = {n: c.greedy(prompts[n]["ids"], STEPS) for n in names}
        for n in names:
            assert alone[n] == prompts[n]["greedy_ids"], n
        for chunk in (1, 7, 64):
            for n in ("multi_turn", "hundred"):
                assert c.greedy(prompts[n]["ids"], STEPS, "--prefill-chunk", chunk) == alone[n], (n, chunk)
        whole, pieces = c.logits(prompts["hundred"]["ids"]), c.logits(prompts["hundred"]["ids"], "--prefill-chunk", 1)
        print("%s: one piece against token by token: %.2e" % (model, np.abs(whole - pieces).max()))
        assert whole.tobytes() == pieces.tobytes(), "token by token gives other bits"

        # Eight at once, of mixed lengths, each with other sequences before, beside and after it.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [(n, pool.submit(c.greedy, prompts[n]["ids"], STEPS)) for n in names * 4]
            for n, job in jobs:
                assert job.result() == alone[n], n
        s = c.stats()
        rows = s["total"]["rows"] / s["steps"]
        print("%s: %d sequences, %d steps, %.2f rows per step" % (model, len(jobs), s["steps"], rows))
        assert s["sequences_done"] >= len(jobs) and s["sequences_failed"] == 0
