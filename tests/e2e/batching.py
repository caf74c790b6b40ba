# SPDX-License-Identifier: Apache-2.0
"""Prefill in one piece, in chunks and token by token give the same tokens; sequences side by side what each gets alone.

usage: batching.py BIN FIXTURES [MODEL ...]
"""
import concurrent.futures
import os
import signal
import sys

from cluster import Cluster, golden

MODELS = sys.argv[3:] or ("qwen3-moe-fp8-tiny", "qwen3-fp8-tiny", "qwen3_5_moe-fp8-tiny", "deepseek_v32-fp8-tiny")
STEPS, CHUNKS, TOGETHER = 32, (1, 7, 64), 32


def chunks(c, prompts):
    for n in ("multi_turn", "hundred"):
        ids = prompts[n]["ids"]
        whole = c.logits(ids).tobytes()
        for chunk in CHUNKS:
            found = c.greedy(ids, STEPS, "--prefill-chunk", chunk)
            assert found == prompts[n]["greedy_ids"], (n, chunk)
            assert c.logits(ids, "--prefill-chunk", chunk).tobytes() == whole, "%s: chunks of %d: other bits" % (n, chunk)


def together(c, prompts):
    """The worker is stopped until all sequences are there, so that they really run side by side."""
    before = c.stats()
    names = [n for n, _ in zip(list(prompts) * TOGETHER, range(TOGETHER))]
    worker = c.processes()["worker"]
    os.kill(worker, signal.SIGSTOP)
    try:
        with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
            jobs = [(n, pool.submit(c.greedy, prompts[n]["ids"], STEPS)) for n in names]
            try:
                c.wait_for("%d sequences" % TOGETHER, lambda: sum(waiting(c)) == TOGETHER)
            finally:
                os.kill(worker, signal.SIGCONT)
            for n, job in jobs:
                assert job.result() == prompts[n]["greedy_ids"], n
    finally:
        os.kill(worker, signal.SIGCONT)
    after = c.stats()
    steps, rows = after["steps"] - before["steps"], after["total"]["rows"] - before["total"]["rows"]
    print("%s: %d sequences, %d steps, %.1f rows per step" % (c.model, TOGETHER, steps, rows / steps))
    assert rows / steps > TOGETHER / 2, "they did not run together"
    assert after["sequences_done"] - before["sequences_done"] == TOGETHER and after["sequences_failed"] == 0


def waiting(c):
    s = c.json("status")
    return s["running"], s["queued"]


for model in MODELS:
    with Cluster(model, 2, "--max-running", TOGETHER) as c:
        prompts, _ = golden(model)
        chunks(c, prompts)
        together(c, prompts)
