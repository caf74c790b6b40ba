# SPDX-License-Identifier: Apache-2.0
"""Every value inside the layers, as `generate --trace-out` writes it, against the golden trace of each fixture."""
import json
import os
import tempfile

import numpy as np

from cluster import FIXTURES, Cluster, golden, read_safetensors

MODELS = ("qwen3-tiny", "qwen2-tiny", "mistral-tiny", "llama3-rope-tiny", "llama-linear-rope-tiny", "llama-yarn-tiny",
          "qwen3-fp8-tiny", "qwen3-moe-fp8-tiny", "qwen3_5-fp8-tiny", "qwen3_5_moe-fp8-tiny", "deepseek_v3-fp8-tiny",
          "deepseek_v32-fp8-tiny")
DUCKS = 3
PROMPT = "short"


def id_list(ids):
    return ",".join(map(str, ids))


def trace(c, ids, path, *args):
    g = c.generate("--ids", id_list(ids), "--temperature", 0, "--trace-out", path, *args)
    return g, read_safetensors(path)


def compare(c, model, prompts, path):
    p = prompts[PROMPT]
    wanted = read_safetensors(os.path.join(FIXTURES, model, "golden", "trace.safetensors"))
    g, found = trace(c, p["ids"], path, "--max-tokens", 32, "--ignore-eos")
    assert g["token_ids"] == p["greedy_ids"], "the answer goes on as usual"
    assert found["ids"].dtype == np.int32 and found["ids"].tolist() == p["ids"]
    missing = sorted(set(wanted) - set(found))
    assert not missing, missing
    largest, where = 0, None
    for name, value in wanted.items():
        assert found[name].shape == value.shape and found[name].dtype == value.dtype, (name, found[name].shape, value.shape)
        if value.dtype == np.int32:
            assert (found[name] == value).all(), name
            continue
        assert np.isfinite(found[name]).all(), name
        difference = np.abs(found[name] - value).max()
        if difference >= largest:
            largest, where = difference, name
    print("%-24s %3d tensors, largest difference %.2e in %s" % (model, len(wanted), largest, where))
    assert largest <= 1e-4, where
    return found


def selected(found, model):
    """The indexer's choice is not in the golden trace, because here it is everything; see golden/dsa.json."""
    with open(os.path.join(FIXTURES, model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    for layer in range(config["num_hidden_layers"]):
        s = found["layer.%d.selected" % layer]
        assert s.shape == (len(found["ids"]), config["index_topk"]) and s.dtype == np.int32, s.shape
        for t, row in enumerate(s):
            n = min(t + 1, config["index_topk"])
            assert (row[n:] == -1).all() and (np.diff(row[:n]) > 0).all() and row[0] >= 0 and row[n - 1] <= t, row


def sparse(c, model, prompts, path):
    """A prompt that is longer than the indexer's choice."""
    with open(os.path.join(FIXTURES, model, "golden", "dsa.json"), encoding="utf-8") as f:
        wanted = json.load(f)["selected"]
    _, found = trace(c, prompts["multi_turn"]["ids"], path, "--max-tokens", 1)
    selected(found, model)
    for layer, rows in wanted.items():
        for t, positions in enumerate(rows):
            row = found["layer.%s.selected" % layer][t]
            assert row[row >= 0].tolist() == positions, (layer, t)
    print("%-24s selections of %d positions in %d layers" % (model, len(wanted["0"]), len(wanted)))


def newest(c, handle):
    """The cursor of the newest event."""
    events = json.loads(c.ctl("call", "Client/Read", json.dumps({"handle": handle})).stdout).get("events", [])
    return events[-1]["cursor"] if events else 0


def beside_others(c, prompts, path, alone):
    """Traces take steps of their own; what they hold does not depend on others, which go on between them."""
    p = prompts["hundred"]
    request = {"ids": {"ids": p["ids"]}, "max_tokens": 3900, "temperature": 0, "ignore_eos": True}
    handle = json.loads(c.ctl("call", "Client/Submit", json.dumps(request)).stdout)["handle"]
    c.wait_for("its first tokens", lambda: c.stats().get("steps", 0) and newest(c, handle) > 1)
    for _ in range(2):
        before = newest(c, handle)
        _, found = trace(c, prompts[PROMPT]["ids"], path, "--max-tokens", 1)
        assert all((found[name] == alone[name]).all() for name in alone)
        assert c.json("status")["running"] == 1, "the other one has ended: the trace was alone"
        c.wait_for("more tokens", lambda: newest(c, handle) > before)
    c.ctl("call", "Client/Cancel", json.dumps({"handle": handle}))


def some_layers(c, prompts, path, everything):
    """The same values, of the chosen layers and what belongs to none."""
    with open(os.path.join(c.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    last = config.get("text_config", config)["num_hidden_layers"] - 1
    for text, layers in (("0,%d-%d" % (last - 1, last), {0, last - 1, last}), (str(last), {last})):
        _, found = trace(c, prompts[PROMPT]["ids"], path, "--max-tokens", 1, "--trace-layers", text)
        wanted = {n for n in everything if not n.startswith("layer.") or int(n.split(".")[1]) in layers}
        assert set(found) == wanted, (text, set(found) ^ wanted)
        assert all((found[n] == everything[n]).all() for n in wanted), text


def refusals(c, prompts, path):
    ids = prompts["three_hundred"]["ids"]
    code, text = c.refused("generate", "--ids", id_list(ids), "--trace-out", path)
    assert code == "INVALID_ARGUMENT" and str(len(ids)) in text and "256" in text and "--step-rows" in text, (code, text)
    code, text = c.refused("generate", "--ids", id_list(ids[:10]), "--trace-out", path, "--prefill-chunk", 9)
    assert code == "INVALID_ARGUMENT" and "prefill_chunk 9" in text, (code, text)
    assert not os.path.exists(path)
    code, text = c.refused("generate", "--ids", "1", "--trace-out", path, "--trace-layers", "1,3")
    assert code == "INVALID_ARGUMENT" and "trace_layers[1]" in text and "no layer 3" in text, (code, text)
    assert not os.path.exists(path)
    c.refused("generate", "--ids", "1", "--trace-layers", "1", expect=2)
    code, text = c.refused("generate", "--ids", id_list(ids[:10]), "--trace-out", "/nonexistent/x")
    assert code == "NOT_FOUND" and "/nonexistent/x" in text, (code, text)
    status = c.json("status")
    assert status["running"] == status["queued"] == 0, status


for fixture in MODELS:
    golden_prompts, _ = golden(fixture)
    with tempfile.TemporaryDirectory() as folder, Cluster(fixture, DUCKS) as cluster:
        out = os.path.join(folder, "trace.safetensors")
        tensors = compare(cluster, fixture, golden_prompts, out)
        some_layers(cluster, golden_prompts, out, tensors)
        if "v32" in fixture:
            selected(tensors, fixture)
            sparse(cluster, fixture, golden_prompts, out)
        if fixture == MODELS[0]:
            beside_others(cluster, golden_prompts, out, tensors)
            os.unlink(out)
            refusals(cluster, golden_prompts, out)
