# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M, a really trained model, through real processes: greedy tokens, NLL and distributions against the goldens."""
import json
import os
import sys

import numpy as np

from cluster import FIXTURES, SKIPPED, Cluster, read_safetensors

FOLDER = os.environ.get("DUCK_SMOLLM2")
KINDS = sys.argv[3].split(",")      # BF16, FP8
DUCKS = [int(n) for n in sys.argv[4].split(",")]

if not FOLDER:
    print("skipped: DUCK_SMOLLM2 is not set (tools/smollm2 makes the folder)")
    sys.exit(SKIPPED)


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def until_tie(p, found):
    """The golden ids up to the first step where two tokens are as good as equal."""
    n = min(p["ties"]) if p["ties"] else len(p["greedy_ids"])
    assert found[:n] == p["greedy_ids"][:n], "%s, golden %s" % (found, p["greedy_ids"])
    return n


def kl_to_golden(logprobs, ids, golden_logprobs):
    """KL(golden || found) over the golden's 20 most likely tokens and the rest as one more."""
    p = golden_logprobs.astype(np.float64)
    q = np.take_along_axis(logprobs, ids.astype(np.int64), -1)
    p_rest = np.clip(1 - np.exp(p).sum(-1), 1e-12, 1)
    q_rest = np.clip(1 - np.exp(q).sum(-1), 1e-12, 1)
    return (np.exp(p) * (p - q)).sum(-1) + p_rest * (np.log(p_rest) - np.log(q_rest))


for kind in KINDS:
    suffix = {"BF16": "", "FP8": "_fp8"}[kind]
    with open(os.path.join(FIXTURES, "smollm2", "golden%s.json" % suffix), encoding="utf-8") as f:
        golden = json.load(f)
    tensors = read_safetensors(os.path.join(FIXTURES, "smollm2", "golden%s.safetensors" % suffix))
    for ducks in DUCKS:
        with Cluster(os.path.join(FOLDER, kind), ducks, "--context", 2048) as c:
            for name, p in golden["prompts"].items():
                n = until_tie(p, c.greedy(p["ids"], len(p["greedy_ids"])))
                print("%s, %d ducks, %s: %d greedy tokens equal" % (kind, ducks, name, n))
            p = golden["long"]
            n = until_tie(p, c.greedy(p["ids"], len(p["greedy_ids"])))
            print("%s, %d ducks, prompt of %d tokens: %d greedy tokens equal" % (kind, ducks, len(p["ids"]), n))

            ids = golden["text"]["ids"]
            logprobs = log_softmax(c.logits(ids))
            nll = -logprobs[np.arange(len(ids) - 1), ids[1:]].sum()
            off = abs(nll / golden["text"]["nll_total"] - 1)
            kl = kl_to_golden(logprobs, tensors["text.top20_ids"], tensors["text.top20_logprobs"])
            print("%s, %d ducks: NLL %.4f, golden %.4f (%.5f %% off), mean KL %.2e" % (
                kind, ducks, nll, golden["text"]["nll_total"], 100 * off, kl.mean()))
            assert off <= 5e-4 and kl.mean() <= 1e-4
