# SPDX-License-Identifier: Apache-2.0
"""What every verb and program prints: help, completion, both forms of each answer, sampling, stops, chat, log-probabilities."""
import json
import math
import os
import re
import subprocess
import tempfile

import numpy as np

from cluster import BIN, FIXTURES, Cluster, golden, run

MODEL = "qwen3-moe-fp8-tiny"
INDEXED = "deepseek_v32-fp8-tiny"
COMMON = {"name", "coordinator", "json", "help"}
LOAD = {"model", "tp", "multiple-of", "context", "backend", "attention", "allow-full"}
CHAT = {"ids", "chat", "messages", "system", "tools", "thinking"}
VERBS = {
    "local up": LOAD | {"ducks", "threads", "isa", "port", "net-fault", "listen", "max-running", "step-rows",
                        "dead-after-ms", "log-level"},
    "local down": {"all"},
    "local list": set(),
    "status": set(),
    "stats": set(),
    "load": LOAD | {"no-wait"},
    "generate": CHAT | {"prompt", "max-tokens", "temperature", "top-p", "top-k", "seed", "logprobs", "logits-out", "trace-out",
                        "trace-layers", "stop", "ignore-eos", "prefill-chunk"},
    "score": CHAT | {"text", "file", "logprobs", "prefill-chunk"},
    "inspect": {"ducks", "multiple-of", "context"},
    "tokenize": {"text", "file", "model"},
    "detokenize": {"ids", "model"},
    "call": {"timeout-ms"},
    "describe": set(),
    "completion": set(),
}
NODE = {"coordinator", "name", "threads", "pin", "isa", "port", "interface", "udp-port", "run-dir", "dead-after-ms",
        "busy-poll", "net-fault", "log-level", "version", "help"}
PROGRAMS = {
    "coordinator": {"listen", "step-rows", "max-running", "queue", "log-level", "version", "help"},
    "attention-worker": NODE | {"cache-mib"},
    "duck-firmware": NODE | {"reserve-mib"},
}

prompts, logits = golden(MODEL)
short, thinking, turns = prompts["short"], prompts["thinking"], prompts["multi_turn"]
END = short["greedy_ids"][short["eos_at"]]


def duckctl(*args, **kw):
    return run([os.path.join(BIN, "duckctl"), *args], **kw)


def options_in(help_text):
    return set(re.findall(r"^  --([a-z0-9-]+) ", help_text, re.M))


def helps():
    overview = duckctl("--help").stdout
    assert set(re.findall(r"^  ((?:local )?[a-z]+)  ", overview, re.M)) == set(VERBS), overview
    for verb, options in VERBS.items():
        text = duckctl(*verb.split(), "--help").stdout
        assert text.startswith("usage: duckctl " + verb) and "exit codes: 0" in text, text
        assert options_in(text) == options | COMMON, (verb, options_in(text) ^ (options | COMMON))
    for program, options in PROGRAMS.items():
        text = run([os.path.join(BIN, program), "--help"]).stdout
        assert options <= options_in(text), (program, options - options_in(text))
        p = run([os.path.join(BIN, program), "--unheard-of"], expect=2)
        assert "--unheard-of" in p.stderr and p.stderr.startswith(program), p.stderr
        p = run([os.path.join(BIN, program), "more"], expect=2)
        assert "'more'" in p.stderr, p.stderr
    for program in [*PROGRAMS, "duckctl"]:
        version = run([os.path.join(BIN, program), "--version"]).stdout
        assert re.fullmatch(re.escape(program) + r" \d+\.\d+\.\d+\n", version), version
    assert duckctl(expect=2).stderr.startswith("usage:")
    print("help of %d verbs and %d programs" % (len(VERBS), len(PROGRAMS)))


def completion():
    script = duckctl("completion", "bash").stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)

    def complete(*words):
        ask = 'COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _duckctl; printf "%%s\\n" "${COMPREPLY[@]}"'
        p = run(["bash", "-c", script + ask % " ".join("'%s'" % w for w in words)])
        return set(p.stdout.split())
    assert complete("duckctl", "") == {v.split()[0] for v in VERBS}
    assert complete("duckctl", "gen") == {"generate"}
    assert complete("duckctl", "local", "") == {"up", "down", "list"}
    for verb, options in VERBS.items():
        assert complete("duckctl", *verb.split(), "--") == {"--" + o for o in options | COMMON}, verb
    assert complete("duckctl", "load", "--attention", "") == {"sparse", "full"}
    assert complete("duckctl", "local", "up", "--port", "v") == {"vhost"}
    assert complete("duckctl", "score", "--thinking", "") == {"on", "off"}
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "model"))
        open(os.path.join(folder, "file"), "w").close()
        assert complete("duckctl", "inspect", folder + "/") == {os.path.join(folder, "model")}
    print("completion")


def describe():
    listed = {m["method"]: m for m in json.loads(duckctl("describe", "--json").stdout)["methods"]}
    assert {"Client/Submit", "Membership/Heartbeat", "Attention/NextStep", "Duck/MoeForward"} <= set(listed)
    for method, m in listed.items():
        text = duckctl("describe", method).stdout
        assert text.startswith("%s (%s) returns %s\n" % (method, m["request"], m["reply"])), text
    text = duckctl("describe", "Client/Submit").stdout
    assert re.search(r"optional float temperature", text) and re.search(r"repeated uint32 ids", text), text
    print("describe: %d methods" % len(listed))


def both_forms(c):
    # READY comes from the worker; what a duck holds, from its own next heartbeat.
    c.wait_for("the ducks say what they hold", lambda: c.ctl("status").stdout.count("MB in 3 layers") == 2)
    s = c.json("status")
    assert s["state"] == "READY" and s["model_dir"] == c.model and s["model_type"] == "qwen3_moe", s
    assert s["plan"]["multiple_of"] == 32 and len(s["plan"]["slots"]) == 2 and s["plan"]["context"] == 4096
    text = c.ctl("status").stdout
    for word in ("READY", c.model, "qwen3_moe", "worker", "duck-0", "duck-1", "MB in 3 layers"):
        assert word in text, text
    for n in s["nodes"]:
        assert n["alive"] and n["node"]["pid"] == c.processes()[n["node"]["name"]]
    called = json.loads(c.ctl("call", "Client/GetStatus").stdout)
    assert (called["state"], called["plan"]) == (s["state"], s["plan"])
    waited = json.loads(c.ctl("call", "Client/GetStatus", '{"wait_ms": 10000, "unlike": "LOADING"}').stdout)
    assert waited["state"] == "READY"
    before = c.stats()
    c.greedy(short["ids"], 4)
    after, text = c.stats(), c.ctl("stats").stdout
    assert after["output_tokens"] == before.get("output_tokens", 0) + 4
    assert after["prompt_tokens"] == before.get("prompt_tokens", 0) + len(short["ids"])
    assert "output tokens %d" % after["output_tokens"] in text and "us per layer operation" in text, text
    print("status and stats")


def tokens(c):
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as f:
        for p in prompts.values():
            f.seek(0)
            f.truncate()
            f.write(p["text"])
            f.flush()
            for where in ((), ("--model", c.model)):
                assert c.json("tokenize", "--text", p["text"], *where)["ids"] == p["ids"], p["text"]
                assert c.json("tokenize", "--file", f.name, *where)["ids"] == p["ids"], p["text"]
                ids = ",".join(map(str, p["ids"]))
                assert c.json("detokenize", "--ids", ids, *where)["text"] == p["text"]
                assert c.ctl("detokenize", "--ids", ids, *where).stdout == p["text"] + "\n"
    assert c.ctl("tokenize", "--text", thinking["text"]).stdout == ",".join(map(str, thinking["ids"])) + "\n"
    assert c.json("tokenize", "--text", "")["ids"] == []
    p = run([os.path.join(BIN, "duckctl"), "detokenize", "--ids", "392", "--model", c.model, "--name", "no-such-cluster"])
    assert p.stdout == prompts["one"]["text"] + "\n"
    print("tokenize and detokenize: %d prompts" % len(prompts))


def answers(c):
    ids = ",".join(map(str, short["ids"]))
    whole = c.generate("--ids", ids, "--temperature", 0)
    assert whole["prompt_ids"] == short["ids"]
    assert whole["token_ids"] == short["greedy_ids"][:short["eos_at"] + 1] and whole["token_ids"][-1] == END
    assert whole["text"] == short["greedy_text"] and whole["finish_reason"] == "stop"
    assert c.generate("--prompt", short["text"], "--temperature", 0)["token_ids"] == whole["token_ids"]
    p = c.ctl("generate", "--ids", ids, "--temperature", 0)
    assert p.stdout == short["greedy_text"] + "\n", p.stdout
    numbers = re.fullmatch(r"Generation stats: time [\d.]+ s, input_len (\d+), output_len (\d+), ttft [\d.]+ ms, "
                           r"tpot [\d.]+ ms, prefill [\d.]+ tok/s, decode [\d.]+ tok/s\n", p.stderr)
    assert numbers and numbers.groups() == (str(len(short["ids"])), str(len(whole["token_ids"]))), p.stderr

    s = whole["stats"]
    assert s["input_len"] == len(short["ids"]) and s["output_len"] == len(whole["token_ids"]), s
    assert 0 < s["ttft_s"] <= s["time_s"] and s["tpot_s"] > 0 and s["prefill_tok_s"] > 0 and s["decode_tok_s"] > 0, s
    assert math.isclose(s["ttft_s"] + s["tpot_s"] * (s["output_len"] - 1), s["time_s"], rel_tol=0.2, abs_tol=0.05), s

    for n in (1, 5, short["eos_at"]):
        g = c.generate("--ids", ids, "--temperature", 0, "--max-tokens", n)
        assert g["token_ids"] == short["greedy_ids"][:n] and g["finish_reason"] == "length", g
        assert short["greedy_text"].startswith(g["text"].rstrip("\ufffd")), g
    g = c.generate("--ids", ids, "--temperature", 0, "--max-tokens", short["eos_at"] + 1)
    assert g["token_ids"] == whole["token_ids"] and g["finish_reason"] == "stop", g
    g = c.generate("--ids", ids, "--temperature", 0, "--max-tokens", 32, "--ignore-eos")
    assert g["token_ids"] == short["greedy_ids"] and g["finish_reason"] == "length"
    assert g["text"].startswith(short["greedy_text"])

    for stop in ("很", "高兴见", "。今天", short["greedy_text"][0]):
        g = c.generate("--ids", ids, "--temperature", 0, "--stop", "never said", "--stop", stop)
        assert g["text"] == short["greedy_text"].split(stop)[0] and g["finish_reason"] == "stop", (stop, g)
        assert g["token_ids"] == short["greedy_ids"][:len(g["token_ids"])] and END not in g["token_ids"]
        assert c.ctl("generate", "--ids", ids, "--temperature", 0, "--stop", stop).stdout.rstrip("\n") == g["text"]
    g = c.generate("--ids", ids, "--temperature", 0, "--stop", "never said")
    assert g["text"] == short["greedy_text"]

    handle = json.loads(c.ctl("call", "Client/Submit", json.dumps({"ids": {"ids": [392]}, "ignore_eos": True})).stdout)
    c.ctl("call", "Client/Cancel", json.dumps({"handle": handle["handle"]}))
    events = json.loads(c.ctl("call", "Client/Read", json.dumps({"handle": handle["handle"]})).stdout)["events"]
    assert [e.get("finish") for e in events if "finish" in e] == ["CANCEL"], events
    print("answers: end token, length, stops, cancel")


def pipes(c):
    """What can be read only once."""
    messages = [{"role": "user", "content": "hot?"}]
    weather = [{"type": "function", "function": {"name": "weather_at", "parameters": {"type": "object", "properties": {}}}}]

    def score(words, text):
        p = subprocess.run([os.path.join(BIN, "duckctl"), "score", *words, "--name", c.name, "--json"], env=c.env, input=text,
                           stdout=subprocess.PIPE, text=True, timeout=60, check=True)
        return json.loads(p.stdout)["ids"]
    with tempfile.TemporaryDirectory() as folder:
        names = {"messages": messages, "tools": weather}
        for name, value in names.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                json.dump(value, f)
        wanted = c.json("score", "--messages", os.path.join(folder, "messages"), "--tools", os.path.join(folder, "tools"))["ids"]
        for source in ("-", "/dev/stdin"):
            assert score(("--messages", source, "--tools", os.path.join(folder, "tools")), json.dumps(messages)) == wanted
            assert score(("--messages", os.path.join(folder, "messages"), "--tools", source), json.dumps(weather)) == wanted
        assert score(("--file", "-"), short["text"]) == short["ids"]
    p = c.ctl("score", "--messages", "-", "--tools", "-", expect=2)
    assert "standard input" in p.stderr, p.stderr
    print("pipes")


def chat(c):
    g = c.generate("--chat", "你好", "--thinking", "off", "--temperature", 0)
    assert g["prompt_ids"] == short["ids"] and g["text"] == short["greedy_text"], g
    g = c.generate("--chat", "What is 12 * 12?", "--thinking", "on", "--temperature", 0, "--max-tokens", 32)
    assert g["prompt_ids"] == thinking["ids"] and g["token_ids"] == thinking["greedy_ids"], g
    assert g["text"].startswith("<think>") and g["text"] == thinking["greedy_text"], g
    default = c.generate("--chat", "What is 12 * 12?", "--temperature", 0, "--max-tokens", 1)
    assert default["prompt_ids"] == thinking["ids"], "thinking is the family's default"

    conversations = [turns, prompts["hundred"], prompts["three_hundred"]]
    for p in conversations:
        said = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", p["text"], re.S)
        messages = [{"role": role, "content": content} for role, content in said]
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as f:
            json.dump(messages, f, ensure_ascii=False)
            f.flush()
            g = c.generate("--messages", f.name, "--thinking", "off", "--temperature", 0, "--max-tokens", 32)
        assert g["prompt_ids"] == p["ids"], (g["prompt_ids"], p["ids"])
        n = p["eos_at"] + 1 or 32
        assert g["token_ids"] == p["greedy_ids"][:n], g
    g = c.generate("--system", "You are a helpful assistant.", "--chat", "你好", "--thinking", "off", "--max-tokens", 1)
    assert c.json("detokenize", "--ids", ",".join(map(str, g["prompt_ids"])))["text"] == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + short["text"])
    print("chat: thinking on and off, %d conversations from files" % len(conversations))


def tools(c):
    """Golden renderings with tools, as files."""
    with open(os.path.join(FIXTURES, "tokenizers", "chat_cases.json"), encoding="utf-8") as f:
        cases = [x for x in json.load(f)["cases"] if x["family"] == "qwen3" and x.get("tools") and "text" in x]
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for x in cases:
            args = dict(x.get("args") or {})
            if not args.pop("add_generation_prompt", True):
                continue
            thinking = args.pop("enable_thinking", None)
            if args:
                continue
            for name in ("messages", "tools"):
                files[name] = os.path.join(folder, name + ".json")
                with open(files[name], "w", encoding="utf-8") as f:
                    json.dump(x[name], f, ensure_ascii=False)
            switch = () if thinking is None else ("--thinking", "on" if thinking else "off")
            g = c.json("score", "--messages", files["messages"], "--tools", files["tools"], *switch)
            assert g["ids"] == x["small_ids"], x["case"]
            done += 1
        assert done >= 3, "%d cases" % done
        plain = c.json("score", "--chat", "hot?")["ids"]
        assert len(c.json("score", "--chat", "hot?", "--tools", files["tools"])["ids"]) > len(plain)
        for content, word in (("[", "line 1"), ("{}", "array of tools"), ("[5]", "tools[0]")):
            with open(files["tools"], "w", encoding="utf-8") as f:
                f.write(content)
            code, text = c.refused("generate", "--chat", "hot?", "--tools", files["tools"])
            assert code == "INVALID_ARGUMENT" and files["tools"] in text and word in text, (code, text)
            assert "tools_json" not in text, text
    print("tools: %d golden renderings" % done)


def attention():
    """What is said of the modes of a model with an indexer; attention_mode.py has what they compute."""
    with open(os.path.join(FIXTURES, INDEXED, "config.json"), encoding="utf-8") as f:
        top_k = json.load(f)["index_topk"]

    def plan():
        p = c.json("status")["plan"]
        return p.get("full_attention"), p["context"], re.findall("attention (full|sparse)", c.ctl("status").stdout)
    with Cluster(INDEXED, 2, "--attention", "full") as c:
        assert plan() == (True, top_k, ["full"]), plan()
        code, text = c.refused("load", "--model", c.model, "--attention", "full", "--context", top_k + 1)
        assert code == "INVALID_ARGUMENT", code
        for word in ("attention mode 'full' ends at index_topk = %d positions" % top_k, "--allow-full", "--attention sparse",
                     "--context %d" % top_k):
            assert word in text, (word, text)
        c.ctl("load", "--model", c.model, "--attention", "full", "--allow-full")
        assert plan() == (True, 4096, ["full"]), plan()
        c.ctl("load", "--model", c.model)
        assert plan() == (False, 4096, ["sparse"]), plan()
        c.ctl("load", "--model", os.path.join(FIXTURES, MODEL))
        assert plan() == (None, 4096, []), plan()
    print("attention: what load and status say")


def sampling(c):
    def sample(seed, *more):
        return c.generate("--ids", "392", "--max-tokens", 24, "--ignore-eos", "--seed", seed, *more)["token_ids"]
    hot = ("--temperature", 1.5, "--top-p", 1, "--top-k", 0)
    found = [sample(seed, *hot) for seed in range(6)]
    assert found == [sample(seed, *hot) for seed in range(6)], "a seed gave two answers"
    assert len({tuple(f) for f in found}) == 6, "seeds do not matter"
    assert len({tuple(f[:1]) for f in found}) > 1, "the first token is never sampled"
    greedy = prompts["one"]["greedy_ids"][:24]
    assert sample(7, "--temperature", 1.5, "--top-k", 1) == greedy, "top-k 1 is greedy"
    assert sample(7, "--temperature", 1.5, "--top-k", 0, "--top-p", 1e-6) == greedy, "a small top-p is greedy"
    # The model's generation_config.json has temperature 0.6, top_k 20, top_p 0.95.
    assert sample(3) == sample(3, "--temperature", 0.6, "--top-k", 20, "--top-p", 0.95), "defaults of the model"
    # Two answers without a seed get seeds of their own.
    free = {tuple(c.generate("--ids", "392", "--max-tokens", 24, "--ignore-eos", *hot)["token_ids"]) for _ in range(3)}
    assert len(free) == 3, "answers without a seed repeat"
    print("sampling: 6 seeds")


def logprobs(c):
    for name in ("short", "question", "thinking"):
        p = prompts[name]
        g = c.generate("--ids", ",".join(map(str, p["ids"])), "--temperature", 0, "--max-tokens", 8, "--logprobs", 5)
        assert [x["id"] for x in g["logprobs"]] == g["token_ids"]
        last = logits[name + ".last"].astype(np.float64)
        wanted = last - last.max() - np.log(np.exp(last - last.max()).sum())
        first = g["logprobs"][0]
        assert abs(first["logprob"] - wanted[first["id"]]) < 2e-3, (first, wanted[first["id"]])
        assert [i for i, _ in first["top"]] == np.argsort(-wanted, kind="stable")[:5].tolist(), first
        for i, value in first["top"]:
            assert abs(value - wanted[i]) < 2e-3, (i, value, wanted[i])
        for x in g["logprobs"]:
            top = [value for _, value in x["top"]]
            assert len(top) == 5 and top == sorted(top, reverse=True) and x["top"][0] == [x["id"], x["logprob"]], x
            assert 0 < sum(math.exp(v) for v in top) <= 1 + 1e-5, x
    g = c.generate("--ids", "392", "--temperature", 0, "--max-tokens", 2)
    assert g["logprobs"] == []
    g = c.generate("--ids", "392", "--temperature", 0, "--max-tokens", 2, "--logprobs", 0)
    assert [x["top"] for x in g["logprobs"]] == [[], []] and all(x["logprob"] < 0 for x in g["logprobs"]), g
    # The temperature shapes what is chosen, not what is reported.
    a, b = (c.generate("--ids", "392", "--temperature", t, "--top-k", 1, "--max-tokens", 2, "--logprobs", 3)["logprobs"]
            for t in (0.1, 5))
    assert a == b, (a, b)
    print("logprobs against golden logits")


def full_disk(c):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "full")
        os.symlink("/dev/full", path)
        for option in ("--logits-out", "--trace-out"):
            code, text = c.refused("generate", "--ids", "392", "--max-tokens", 2, option, path)
            assert code == "RESOURCE_EXHAUSTED" and option in text and path in text, (code, text)
        assert os.path.islink(path), "a device was removed"
        path = os.path.join(folder, "both")
        code, text = c.refused("generate", "--ids", "392", "--max-tokens", 2, "--logits-out", path, "--trace-out", path,
                               expect=2)
        assert path in text and os.listdir(folder) == ["full"], (code, text, os.listdir(folder))
        with open(path, "w") as f:
            f.write("older")
        c.refused("generate", "--ids", "392", "--max-tokens", 2, "--logits-out", path, "--trace-out", "/dev/full")
        with open(path) as f:
            assert f.read() == "older" and sorted(os.listdir(folder)) == ["both", "full"], os.listdir(folder)
    for words in (("generate", "--ids", "392", "--temperature", "0"),       # says "?"
                  ("generate", "--ids", "392", "--temperature", "0", "--json"), ("score", "--ids", "392,393"),
                  ("score", "--ids", "392,393", "--json"), ("inspect", c.model), ("tokenize", "--text", "x"), ("status",),
                  ("--help",)):
        where = () if words[0] in ("inspect", "--help") else ("--name", c.name)
        with open("/dev/full", "w") as full:
            p = subprocess.run([os.path.join(BIN, "duckctl"), *words, *where], env=c.env, stdout=full,
                               stderr=subprocess.PIPE, text=True, timeout=60)
        assert p.returncode == 1 and "standard output: No space left on device" in p.stderr, (words, p)
    print("a full disk")


helps()
completion()
describe()
with Cluster(MODEL, 2) as cluster:
    for case in (both_forms, tokens, answers, pipes, chat, tools, sampling, logprobs, full_disk):
        case(cluster)
attention()
