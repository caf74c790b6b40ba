# SPDX-License-Identifier: Apache-2.0
"""The golden comparison can fail: each deliberate mistake in a copy of a fixture must move the logits."""
import numpy as np

from cluster import Cluster, golden
from model_copy import ModelCopy

PROMPT = "short"


def theta(c):
    c.config(rope_theta=10000)


def gate_up(c):
    for name in c.tensors():
        if ".gate_proj." in name:
            other = name.replace("gate_proj", "up_proj")
            one, two = c.read(name), c.read(other)
            c.poke(name, 0, two)
            c.poke(other, 0, one)


def scales_transposed(c):
    for name, shape in c.tensors().items():
        if name.endswith("_scale_inv") and len(shape) == 2:
            s = np.frombuffer(c.read(name), np.uint16).reshape(shape)
            c.poke(name, 0, np.ascontiguousarray(s.T).tobytes())


def expert_shifted(c):
    """Expert 1 gets expert 2's weights and so on, in every layer."""
    old = {n: c.read(n) for n in c.tensors() if ".experts." in n}
    experts = 1 + max(int(n.split(".experts.")[1].split(".")[0]) for n in old)
    for n, weights in old.items():
        head, tail = n.split(".experts.")
        e, rest = tail.split(".", 1)
        c.poke("%s.experts.%d.%s" % (head, (int(e) + 1) % experts, rest), 0, weights)


def topk_not_normalised(c):
    c.config(norm_topk_prob=False)


def one_expert_less(c):
    c.config(num_experts_per_tok=3)


MISTAKES = {
    "qwen3-tiny": (theta, gate_up),
    "qwen3-fp8-tiny": (theta, gate_up, scales_transposed),
    "qwen3-moe-fp8-tiny": (theta, gate_up, scales_transposed, expert_shifted, topk_not_normalised, one_expert_less),
}


def last_logits(folder, prompt):
    with Cluster(folder, 2) as c:
        return c.logits(prompt["ids"])[-1]


for model, mistakes in MISTAKES.items():
    prompts, logits = golden(model)
    right = np.abs(last_logits(model, prompts[PROMPT]) - logits[PROMPT + ".last"]).max()
    print("%-20s %-20s %.2e" % (model, "unchanged", right))
    assert right <= 1e-3
    for mistake in mistakes:
        with ModelCopy(model) as copy:
            mistake(copy)
            moved = np.abs(last_logits(copy.folder, prompts[PROMPT]) - logits[PROMPT + ".last"]).max()
        print("%-20s %-20s %.3f" % (model, mistake.__name__, moved))
        assert moved > 1e-2, "%s: the golden comparison does not see %s" % (model, mistake.__name__)
