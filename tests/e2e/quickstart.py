# SPDX-License-Identifier: Apache-2.0
"""tools/quickstart: its answers, its mistakes, Ctrl-C; nothing is left. And that the answer comes from the experts' bytes."""
import os
import re
import signal
import subprocess
import sys

import numpy as np

from cluster import BIN, FIXTURES, SKIPPED, Cluster, golden, read_safetensors
from model_copy import ModelCopy

MODEL = "qwen3-moe-fp8-tiny"
QUICKSTART = os.path.join(FIXTURES, "..", "..", "tools", "quickstart")
SUPPRESSIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dpdk_leaks.supp")
HANG = 300


class Quickstart:
    """One run, in a folder of its own; the programs are those under test."""

    def __init__(self, *args, build=os.path.dirname(BIN)):
        self.c = Cluster(MODEL)      # never started: its folder, its environment, what was there before
        self.c.name = "quickstart"
        self.c.env["LSAN_OPTIONS"] = "print_suppressions=0:suppressions=" + SUPPRESSIONS
        self.p = subprocess.Popen([QUICKSTART, *args], cwd="/", env=dict(self.c.env, DUCK_BUILD_DIR=build), text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  start_new_session=True)

    def end(self):
        """-> exit code, stdout, stderr"""
        try:
            out, err = self.p.communicate(timeout=HANG)
            for f in os.listdir(self.c.runtime):
                if f.startswith("found."):      # by a sanitizer
                    with open(os.path.join(self.c.runtime, f), errors="replace") as finding:
                        print("".join(finding.readlines()[:60]), file=sys.stderr)
            self.c.leftovers.check(self.c)
            assert not os.path.exists(os.path.join(self.c.runtime, "duckllm")), "the cluster's folder is left"
        finally:
            self.c.clean()
        return self.p.returncode, out, err


def answers():
    for args, wanted in (((), "Paris"), (("--ask", "What is 2 + 2?"), "2 + 2 = 4."),
                         (("--ask=你好", "--ducks", "1"), golden(MODEL)[0]["short"]["greedy_text"])):
        code, out, err = Quickstart(*args).end()
        assert code == 0, (args, code, out, err)
        question, answer = re.search(r"^> (.*)\n(.*)\n\nstate +READY\n", out, re.M).groups()
        assert wanted in answer, (question, answer)
        rows = [int(n) for n in re.findall(r"^duck-\d .* rows (\d+)$", out, re.M)]
        assert len(rows) == (1 if "--ducks" in args else 4) and min(rows) > 0, out
        print("%s -> %s" % (question, answer))


def real():
    """SmolLM2, when its folder was made for the other tests."""
    if not os.environ.get("DUCK_SMOLLM2"):
        print("skipped: DUCK_SMOLLM2 is not set (tools/smollm2 makes the folder)")
        sys.exit(SKIPPED)
    code, out, err = Quickstart("--real", "--ask", "What is the capital of France?").end()
    assert code == 0 and "Paris" in out, (code, out, err)
    print("--real -> %s" % re.search(r"^> .*\n(.*)\n", out, re.M).group(1))


def mistakes():
    for args, code, text in ((("--fly",), 2, "--fly"), (("--ask",), 2, "--ask"), (("--ducks", "0"), 2, "--ducks"),
                             (("--ducks", "x"), 2, "--ducks")):
        found = Quickstart(*args).end()
        assert found[0] == code and text in found[2], (args, found)
    found = Quickstart(build="/no/such/folder").end()
    assert found[0] == 2 and "DUCK_BUILD_DIR" in found[2], found
    code, out, err = Quickstart("--help").end()
    assert code == 0 and out.startswith("usage: tools/quickstart") and not err, (code, out, err)
    print("mistakes are told")


def interrupted():
    """Ctrl-C goes to all processes of the terminal, SIGTERM to the script alone. Late signals find it done."""
    for number, everybody in ((signal.SIGINT, True), (signal.SIGTERM, False)):
        for stream, line in (("stderr", "starting "), ("stderr", "loading "), ("stdout", "> ")):
            q = Quickstart()
            while not getattr(q.p, stream).readline().startswith(line):
                assert q.p.poll() is None, q.end()
            (os.killpg if everybody else os.kill)(q.p.pid, number)
            if everybody:       # impatience
                os.killpg(q.p.pid, number)
            code, out, err = q.end()
            assert code in (0, 128 + number), (number, line, code, out, err)
    print("Ctrl-C and SIGTERM: nothing left")


def one_expert():
    """The largest number in all places of one expert that a prompt uses, of one layer: another answer."""
    trace = read_safetensors(os.path.join(FIXTURES, MODEL, "golden", "trace.safetensors"))
    prompt = golden(MODEL)[0]["short"]
    used = np.bincount(trace["layer.2.moe.expert_ids"].astype(int).ravel())
    expert = int(used.argmax())
    with ModelCopy(MODEL) as copy:
        def answer():
            with Cluster(copy.folder, 2) as c:
                return c.generate("--chat", "你好", "--thinking", "off", "--temperature", 0, "--max-tokens", 40)["text"]
        assert answer() == prompt["greedy_text"]
        for part in ("gate", "up", "down"):
            name = "model.layers.2.mlp.experts.%d.%s_proj.weight" % (expert, part)
            copy.poke(name, 0, b"\x7e" * len(copy.read(name)))      # 448 in FP8 E4M3
        changed = answer()
    assert changed != prompt["greedy_text"]
    print("expert %d of layer 2, chosen %d times: %s -> %s" % (expert, used[expert], prompt["greedy_text"], changed))


if "real" in sys.argv[3:]:
    real()
else:
    answers()
    mistakes()
    interrupted()
    one_expert()
