# SPDX-License-Identifier: Apache-2.0
"""`duckctl inspect` of every fixture, of the releases' config.json files, and of damaged copies: no cluster, no weight read.

Not called inspect.py: numpy imports a standard module of that name.
"""
import glob
import json
import math
import os
import re
import struct

from cluster import BIN, FIXTURES, run
from model_copy import ModelCopy

RELEASES = os.path.join(FIXTURES, "releases")
ENV = dict(os.environ, XDG_RUNTIME_DIR="/nonexistent")      # a call of a cluster would fail
INDEX = "model.safetensors.index.json"


def duckctl(*args, expect=0):
    return run([os.path.join(BIN, "duckctl"), "inspect", *map(str, args)], env=ENV, expect=expect)


def inspect(folder, *args, expect=0):
    p = duckctl(folder, *args, "--json", expect=expect)
    o = json.loads(p.stdout)
    assert bool(o["problems"]) == (expect == 1), o["problems"]
    return o


def headers(folder):
    """name -> dtype, elements, bytes of every tensor in the folder's weight files."""
    found = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        with open(path, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        for name, t in header.items():
            if name != "__metadata__":
                found[name] = t["dtype"], math.prod(t["shape"]), t["data_offsets"][1] - t["data_offsets"][0]
    return found


def part_of(name, layers):
    if name.startswith(("model.visual.", "visual.")):
        return "vision"
    if name.startswith("mtp.") or name.startswith(tuple("model.layers.%d." % n for n in range(layers, layers + 4))):
        return "multi-token prediction"
    if ".mlp.experts." in name or any(".mlp.%s_proj." % p in name for p in ("gate", "up", "down")):
        return "ducks"
    return "worker"


def narrow(text):
    assert max(map(len, text.split("\n"))) <= 80, max(text.split("\n"), key=len)


def fixture(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    language = config.get("text_config", config)
    o = inspect(folder)
    assert o["weights"] == "read" and o["hidden"] == language["hidden_size"] and o["layers"] == language["num_hidden_layers"]
    assert sum(k["count"] for k in o["layer_kinds"]) == o["layers"], o["layer_kinds"]
    kinds = language.get("layer_types", [])
    assert sum(k["count"] for k in o["layer_kinds"] if k["mixer"] == "delta") == kinds.count("linear_attention")
    wanted = {}
    for name, (dtype, elements, size) in headers(folder).items():
        p = wanted.setdefault(part_of(name, o["layers"]), {"tensors": 0, "parameters": 0, "bytes": 0, "types": {}})
        p["tensors"] += 1
        p["bytes"] += size
        p["parameters"] += 0 if name.endswith("_scale_inv") else elements
        p["types"][dtype] = p["types"].get(dtype, 0) + size
    assert {p["part"] for p in o["parts"]} == set(wanted), o["parts"]
    for p in o["parts"]:
        w = wanted[p["part"]]
        assert (p["tensors"], p["parameters"], p["bytes"]) == (w["tensors"], w["parameters"], w["bytes"]), (p, w)
        assert p["run"] == (p["part"] in ("worker", "ducks"))
        assert sum(p["bytes_by_type"].values()) == w["bytes"], (p, w)
        if "other" not in p["bytes_by_type"]:       # such as a convolution of the vision part, of rank 5
            assert p["bytes_by_type"] == w["types"], (p, w)
        assert not p["run"] or "other" not in p["bytes_by_type"], p
    assert o["parameters"] == wanted["worker"]["parameters"] + wanted["ducks"]["parameters"], o["parameters"]
    # One duck keeps every weight of its part, and a float of scale for each 32 rows and 128 columns of it.
    one = o["flocks"][0]
    elements = wanted["ducks"]["parameters"] * (1 if o["fp8"] else 4 if "F32" in wanted["ducks"]["types"] else 2)
    assert one["ducks"] == 1 and elements <= one["largest_bytes"] < 1.3 * elements, (one, elements)
    assert o["worker"]["weight_bytes"] == wanted["worker"]["bytes"]
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        t = json.load(f)
    size = max(max(t["model"]["vocab"].values()), max([a["id"] for a in t["added_tokens"]], default=0)) + 1
    assert o["tokenizer"] == {"kind": "byte-level BPE", "size": size}, o["tokenizer"]
    assert o["end_tokens"], o
    text = duckctl(folder).stdout
    for word in (o["family"], "%d ids" % size, "parameters", "worker", "ducks", "cache per 1000 tokens"):
        assert word in text, (word, text)
    narrow(text)


def without_weights(folder):
    """What config.json alone says, and that what is computed from it is what the files of the same model have."""
    whole = inspect(folder)
    with ModelCopy(os.path.basename(folder)) as m:
        m.remove(*[f for f in os.listdir(m.folder) if f != "config.json"])
        o = inspect(m.folder)
        assert o["weights"] == "none" and o["parameters"] == whole["parameters"] and o["tokenizer"] is None, o
        text = duckctl(m.folder).stdout
        assert "none in this folder" in text and ("FP8" in text) == o["fp8"], text
    for computed, stored in zip(o["parts"], whole["parts"]):
        assert (computed["part"], computed["parameters"]) == (stored["part"], stored["parameters"])
        if computed["part"] == "ducks":
            assert (computed["tensors"], computed["bytes"]) == (stored["tensors"], stored["bytes"]), (computed, stored)
        else:       # norms may be F32 where config.json says BF16
            assert abs(computed["bytes"] - stored["bytes"]) <= 0.02 * stored["bytes"], (computed, stored)
    assert o["flocks"] == whole["flocks"]


def release(name, wanted):
    o = inspect(os.path.join(RELEASES, name), "--ducks", 48)
    elements = wanted.get("elements") or wanted["parameters"]
    assert abs(o["parameters"] - elements) <= 0.005 * elements, (name, o["parameters"], elements)
    assert o["weights"] == "none" and o["active_parameters"] <= o["parameters"], o
    assert (o["active_parameters"] < o["parameters"]) == (o["moe"] is not None)
    assert [f["ducks"] for f in o["flocks"]] == [1, 2, 4, 8, 16, 32, 48], o["flocks"]
    sizes = [f["largest_bytes"] for f in o["flocks"]]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[2] > 0, sizes
    narrow(duckctl(os.path.join(RELEASES, name)).stdout)
    return o


def documented(o):
    """Every field of the JSON object is in --help."""
    words = set(re.findall(r"[a-z_0-9]+", duckctl("--help").stdout))
    keys = set(o)
    for value in o.values():
        for part in value if isinstance(value, list) else [value]:
            keys |= set(part) if isinstance(part, dict) else set()
    assert keys <= words, keys - words


def damaged():
    cases = (
        (lambda m: m.drop("model.layers.1.self_attn.q_proj.weight"), "model.layers.1.self_attn.q_proj.weight"),
        (lambda m: m.drop("model.layers.1.mlp.experts.3.gate_proj.weight_scale_inv"), "experts.3.gate_proj.weight_scale_inv"),
        (lambda m: m.config(num_hidden_layers=4), "model.layers.3."),
        (lambda m: m.config(num_hidden_layers=2), "model.layers.2."),
        (lambda m: m.config(moe_intermediate_size=160), "experts.0.gate_proj"),
        (lambda m: m.config(vocab_size=1000), "model.embed_tokens.weight"),
        (lambda m: m.edit("model.norm.weight", dtype="I16"), "I16"),
        (lambda m: m.cut("model-00002-of-00002.safetensors", -1), "cut short"),
        (lambda m: m.remove("model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors"),
        (lambda m: m.cut("tokenizer.json", -100), "tokenizer.json"),
        (lambda m: m.json("generation_config.json", lambda g: g.update(eos_token_id=5000)), "5000"),
    )
    for damage, word in cases:
        with ModelCopy("qwen3-moe-fp8-tiny") as m:
            damage(m)
            o = inspect(m.folder, expect=1)
            assert any(word in p for p in o["problems"]), (word, o["problems"])
            text = duckctl(m.folder, expect=1).stdout
            assert "problem: " in text and "parameters" in text, text
    with ModelCopy("qwen3-moe-fp8-tiny") as m:
        lost = sorted(n for n in headers(m.folder) if ".layers.1." in n and n.endswith(".weight") and ".experts." not in n)
        for name in lost:
            m.drop(name)
        whole, o = inspect(os.path.join(FIXTURES, "qwen3-moe-fp8-tiny")), inspect(m.folder, expect=1)
        assert o["problem_count"] == len(o["problems"]) > 3, o["problems"]
        for name in lost:
            assert any(name in p for p in o["problems"]), name
        here, there = o["parts"][0], whole["parts"][0]
        gone = sum(n for name, (_, n, _) in headers(os.path.join(FIXTURES, "qwen3-moe-fp8-tiny")).items() if name in lost)
        assert there["parameters"] - here["parameters"] == gone, (here, there, gone)
    for damage, word in ((lambda m: m.remove("config.json"), "config.json"),
                         (lambda m: m.config(model_type="gpt_neox"), "gpt_neox")):
        with ModelCopy("qwen3-moe-fp8-tiny") as m:
            damage(m)
            p = duckctl(m.folder, "--json", expect=1)
            assert word in json.loads(p.stdout)["error"]["text"], p.stdout
    print("%d damaged folders" % (len(cases) + 2))


models = sorted(os.path.dirname(os.path.dirname(p)) for p in glob.glob(os.path.join(FIXTURES, "*", "golden", "golden.json")))
for model in models:
    fixture(model)
    without_weights(model)
    documented(inspect(model))
print("%d fixtures: parameters, tensors and bytes as in the headers" % len(models))
with open(os.path.join(RELEASES, "parameters.json"), encoding="utf-8") as f:
    counts = json.load(f)
assert sorted(counts) == sorted(d for d in os.listdir(RELEASES) if os.path.isdir(os.path.join(RELEASES, d)))
for r, c in counts.items():
    release(r, c)
print("%d releases: parameters within 0.5 %%" % len(counts))
damaged()
