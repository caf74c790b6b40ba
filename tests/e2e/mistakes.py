# SPDX-License-Identifier: Apache-2.0
"""The golden comparison can fail: each deliberate mistake in a copy of a fixture must move the logits."""
import json
import os
import shutil
import struct
import tempfile

import numpy as np

from cluster import FIXTURES, Cluster, golden

PROMPT = "short"


class Copy:
    """An editable copy of a fixture folder."""

    def __init__(self, model):
        self.folder = tempfile.mkdtemp(prefix="dkm", dir="/tmp")
        for f in os.listdir(os.path.join(FIXTURES, model)):
            path = os.path.join(FIXTURES, model, f)
            if os.path.isfile(path):
                shutil.copy(path, self.folder)
                os.chmod(os.path.join(self.folder, f), 0o644)

    def config(self, **fields):
        path = os.path.join(self.folder, "config.json")
        with open(path) as f:
            c = json.load(f)
        c.update(fields)
        with open(path, "w") as f:
            json.dump(c, f)

    def headers(self):
        """file -> (header, offset of the data)"""
        out = {}
        for name in os.listdir(self.folder):
            if name.endswith(".safetensors"):
                with open(os.path.join(self.folder, name), "rb") as f:
                    length = struct.unpack("<Q", f.read(8))[0]
                    out[name] = json.loads(f.read(length)), 8 + length
        return out

    def places(self):
        """tensor -> (file, first byte, end, shape)"""
        return {t: (name, base + d["data_offsets"][0], base + d["data_offsets"][1], d["shape"])
                for name, (header, base) in self.headers().items() for t, d in header.items() if t != "__metadata__"}

    def read(self, place):
        with open(os.path.join(self.folder, place[0]), "rb") as f:
            f.seek(place[1])
            return f.read(place[2] - place[1])

    def write(self, place, data):
        assert len(data) == place[2] - place[1]
        with open(os.path.join(self.folder, place[0]), "r+b") as f:
            f.seek(place[1])
            f.write(data)

    def swap(self, a, b):
        places = self.places()
        one, two = self.read(places[a]), self.read(places[b])
        self.write(places[a], two)
        self.write(places[b], one)


def theta(c):
    c.config(rope_theta=10000)


def gate_up(c):
    for name in list(c.places()):
        if ".gate_proj." in name:
            c.swap(name, name.replace("gate_proj", "up_proj"))


def scales_transposed(c):
    for name, place in c.places().items():
        if name.endswith("_scale_inv") and len(place[3]) == 2:
            rows, cols = place[3]
            s = np.frombuffer(c.read(place), np.uint16)
            c.write(place, np.ascontiguousarray(s.reshape(cols, rows).T).tobytes())


def expert_shifted(c):
    """Expert 1 gets expert 2's weights and so on, in every layer."""
    places = c.places()
    experts = 1 + max(int(n.split(".experts.")[1].split(".")[0]) for n in places if ".experts." in n)
    old = {n: c.read(p) for n, p in places.items() if ".experts." in n}
    for n in old:
        head, tail = n.split(".experts.")
        e, rest = tail.split(".", 1)
        c.write(places[n], old["%s.experts.%d.%s" % (head, (int(e) + 1) % experts, rest)])


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
        copy = Copy(model)
        try:
            mistake(copy)
            moved = np.abs(last_logits(copy.folder, prompts[PROMPT]) - logits[PROMPT + ".last"]).max()
        finally:
            shutil.rmtree(copy.folder)
        print("%-20s %-20s %.3f" % (model, mistake.__name__, moved))
        assert moved > 1e-2, "%s: the golden comparison does not see %s" % (model, mistake.__name__)
