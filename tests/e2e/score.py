# SPDX-License-Identifier: Apache-2.0
"""Scores of a prompt through real processes: against the golden logits, for several chunks, in all their forms."""
import json
import math
import os
import re
import tempfile

import numpy as np

from cluster import Cluster, golden

MODELS = ("qwen3-moe-fp8-tiny", "qwen3_5_moe-fp8-tiny", "deepseek_v32-fp8-tiny")
TOP = 5


def id_list(ids):
    return ",".join(map(str, ids))


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def logprobs_of(s):
    return [x["logprob"] for x in s["scores"]]


def against_golden(c, prompts, logits):
    ids = prompts["multi_turn"]["ids"]
    wanted = log_softmax(logits["multi_turn.all"])
    found = [c.json("score", "--ids", id_list(ids), "--logprobs", TOP, *chunk)
             for chunk in ((), ("--prefill-chunk", 1), ("--prefill-chunk", 7))]
    assert found[0] == found[1] == found[2], "scores depend on the chunks"
    s = found[0]
    assert sorted(s) == ["ids", "nll", "scores", "tokens"] and s["ids"] == ids and s["tokens"] == len(ids) - 1, s
    assert [x["position"] for x in s["scores"]] == list(range(1, len(ids))) and [x["id"] for x in s["scores"]] == ids[1:]
    right = wanted[np.arange(len(ids) - 1), ids[1:]]
    difference = np.abs(np.array(logprobs_of(s)) - right).max()
    for row, x in zip(wanted, s["scores"]):
        assert sorted(x) == ["id", "logprob", "position", "top"], x
        values = [t["logprob"] for t in x["top"]]
        assert len(values) == TOP and values == sorted(values, reverse=True), x
        # np.max lets a NaN through to the comparison, max() drops it.
        difference = np.max([difference, np.abs(row[[t["id"] for t in x["top"]]] - values).max(),
                             np.abs(np.sort(row)[::-1][:TOP] - values).max()])
    print("  %d positions, largest difference of a log-probability %.2e" % (len(ids) - 1, difference))
    assert difference <= 1e-4
    assert math.isclose(s["nll"], -sum(logprobs_of(s)), rel_tol=1e-6)
    # The last position's distribution is that of the first token that is generated.
    g = c.generate("--ids", id_list(ids[:-1]), "--temperature", 0, "--max-tokens", 1, "--logprobs", TOP)
    assert [[t["id"], t["logprob"]] for t in s["scores"][-1]["top"]] == g["logprobs"][0]["top"]


def forms(c, prompts):
    p = prompts["question"]
    whole = c.json("score", "--text", p["text"])
    assert whole["ids"] == p["ids"]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as f:
        f.write(p["text"])
        f.flush()
        assert c.json("score", "--file", f.name) == whole
    chat = c.json("score", "--chat", "你好", "--thinking", "off")
    assert chat["ids"] == prompts["short"]["ids"] and chat["tokens"] == len(chat["ids"]) - 1
    one = c.json("score", "--ids", p["ids"][0])
    assert one == {"ids": p["ids"][:1], "scores": [], "nll": 0, "tokens": 0}, one
    assert "0 tokens" in c.ctl("score", "--ids", p["ids"][0]).stdout

    lines = c.ctl("score", "--text", p["text"], "--logprobs", 2).stdout.splitlines()
    assert lines[0].split()[:4] == ["position", "id", "text", "logprob"] and len(lines) == len(p["ids"]) + 1, lines
    texts = []
    for line, x in zip(lines[1:], whole["scores"]):
        m = re.fullmatch(r' *(\d+) +(\d+)  ("(?:[^"\\]|\\.)*") +(-?[\d.]+)  (\d+) ".*', line)
        assert m and [int(m[1]), int(m[2])] == [x["position"], x["id"]] and abs(float(m[4]) - x["logprob"]) < 1e-5, line
        texts.append(json.loads(m[3]))
    if not any("\ufffd" in t for t in texts):
        assert "".join(texts) == p["text"][len(c.json("detokenize", "--ids", p["ids"][0])["text"]):], texts
    m = re.fullmatch(r"total NLL ([\d.]+) over (\d+) tokens, mean ([\d.]+), perplexity ([\d.]+)", lines[-1])
    assert m and int(m[2]) == whole["tokens"] and abs(float(m[1]) - whole["nll"]) < 1e-4, lines[-1]
    assert math.isclose(float(m[4]), math.exp(whole["nll"] / whole["tokens"]), rel_tol=1e-4), lines[-1]


def beside_others(c, prompts):
    """A score that runs with an answer changes neither."""
    ids, p = prompts["hundred"]["ids"], prompts["three_hundred"]
    alone = c.json("score", "--ids", id_list(ids))
    request = {"ids": {"ids": p["ids"]}, "max_tokens": 32, "temperature": 0, "ignore_eos": True}
    handle = json.loads(c.ctl("call", "Client/Submit", json.dumps(request)).stdout)["handle"]
    assert c.json("score", "--ids", id_list(ids), "--prefill-chunk", 3) == alone
    tokens, cursor, finished = [], 0, False
    while not finished:
        read = {"handle": handle, "cursor": cursor, "wait_ms": 1000}
        for e in json.loads(c.ctl("call", "Client/Read", json.dumps(read)).stdout).get("events", []):
            cursor, finished = e["cursor"], "finish" in e
            tokens += [e["token"]] if "token" in e else []
    assert tokens == p["greedy_ids"], tokens
    last = c.json("stats")["output_tokens"]
    c.json("score", "--ids", id_list(ids))
    assert c.json("stats")["output_tokens"] == last, "a score is no answer"


def refusals(c):
    for field, value in (("stop", ["x"]), ("max_tokens", 1), ("temperature", 0), ("seed", 1), ("ignore_eos", True)):
        code, text = c.refused("call", "Client/Submit", json.dumps({"text": "abc", "score": True, field: value}))
        assert code == "INVALID_ARGUMENT" and field in text, (code, text)
    code, text = c.refused("score", "--ids", "1,99999")
    assert code == "INVALID_ARGUMENT" and "99999" in text, (code, text)
    code, text = c.refused("score", "--file", "/nonexistent")
    assert code == "NOT_FOUND" and "/nonexistent" in text, (code, text)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "zero")
        with open(path, "wb") as f:
            f.write(b"a\0b")
        code, text = c.refused("score", "--file", path)
        assert code == "INVALID_ARGUMENT" and path in text and "zero byte" in text, (code, text)
        with open(path, "wb") as f:
            f.write(b"a\xffb")
        code, text = c.refused("score", "--file", path)
        assert code == "INVALID_ARGUMENT" and "--file " + path in text and "UTF-8" in text, (code, text)


for model in MODELS:
    golden_prompts, golden_logits = golden(model)
    with Cluster(model, 2) as cluster:
        print(model)
        against_golden(cluster, golden_prompts, golden_logits)
        if model == MODELS[0]:
            forms(cluster, golden_prompts)
            beside_others(cluster, golden_prompts)
            refusals(cluster)
