# SPDX-License-Identifier: Apache-2.0
"""Starts real clusters through duckctl for the end-to-end tests, and reads golden files.

Every test program gets the folder of the built programs as its first argument and the fixtures' folder as its second. Each
cluster has a run-time folder of its own, which must be gone at the end.
"""
import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

BIN, FIXTURES = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
DTYPES = {"F32": np.float32, "I32": np.int32, "I64": np.int64, "U8": np.uint8, "F8_E4M3": np.uint8, "BF16": np.uint16}
SKIPPED = 77
SUPPRESSIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dpdk_leaks.supp")
numbers = itertools.count()


class Failed(Exception):
    """A command ended with another exit code than 0."""

    def __init__(self, command, code, out, err):
        super().__init__("%s\n-> exit code %d\n%s%s" % (" ".join(map(str, command)), code, out, err))
        self.code, self.out, self.err = code, out, err


def run(command, env=None, timeout=600, expect=0):
    p = subprocess.run(command, env=env, timeout=timeout, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if expect is not None and p.returncode != expect:
        raise Failed(command, p.returncode, p.stdout, p.stderr)
    return p


def read_safetensors(path):
    """-> name: array. FP8 and bf16 come as their codes."""
    raw = np.fromfile(path, np.uint8)
    length = struct.unpack("<Q", raw[:8].tobytes())[0]
    header = json.loads(raw[8:8 + length].tobytes())
    data = raw[8 + length:]
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            out[name] = data[begin:end].view(DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def golden(model):
    folder = os.path.join(FIXTURES, model, "golden")
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as f:
        return json.load(f)["prompts"], read_safetensors(os.path.join(folder, "logits.safetensors"))


def environ(pid):
    """A running process' environment as text; "" for one that ended."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as f:
            return f.read().decode(errors="replace")
    except OSError:
        return ""


class Leftovers:
    """What clusters may leave on a host. left = Leftovers(); ...; left.check(cluster) after its end."""

    FOLDERS = ("/var/run/dpdk", "/dev/shm", "/dev/hugepages", "/tmp/duckllm-%d" % os.getuid())

    def __init__(self):
        self.before = self.look()

    @classmethod
    def look(cls):
        found = set()
        for folder in cls.FOLDERS:
            if os.access(folder, os.R_OK):
                found.update(os.path.join(folder, f) for f in os.listdir(folder))
        return found

    @staticmethod
    def foreign(path):
        """Files of programs that other users of the host run meanwhile have those programs' process ids in their names."""
        return any(os.path.exists("/proc/" + n) for n in re.findall(r"[0-9]+", os.path.basename(path)))

    def of(self, c):
        """Everything of cluster c, and new files that belong to no running program."""
        found = {p for p in self.look() - self.before if not self.foreign(p)}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if c.runtime in environ(int(pid)) and int(pid) != os.getpid():
                found.add("process " + pid)
        if os.path.isdir(c.runtime):
            found.update(os.path.join(folder, f) for folder, _, files in os.walk(c.runtime) for f in files)
        for table in ("/proc/net/unix", "/proc/mounts"):
            with open(table, errors="replace") as f:
                found.update(line.strip() for line in f if c.runtime in line)
        if os.path.isdir("/var/run/netns"):
            found.update("netns " + n for n in os.listdir("/var/run/netns") if n.startswith("dk-%s-" % c.name))
        return found

    def check(self, c):
        found = self.of(c)
        for _ in range(100):      # the kernel closes an ended process' sockets a little later
            if not found:
                return
            time.sleep(0.05)
            found = self.of(c)
        raise AssertionError("left behind: %s" % sorted(found))


class Cluster:
    """with Cluster(model, ducks=2) as c: c.generate("--ids", "1,2,3")"""

    def __init__(self, model, ducks=1, *options):
        self.model = model if os.path.isabs(model) else os.path.join(FIXTURES, model)
        self.ducks, self.options = ducks, [str(o) for o in options]
        self.runtime = tempfile.mkdtemp(prefix="dk", dir="/tmp")
        self.env = dict(os.environ, XDG_RUNTIME_DIR=self.runtime)
        for sanitizer in ("ASAN", "UBSAN", "TSAN"):     # a finding in any process fails the test
            self.env[sanitizer + "_OPTIONS"] = "log_path=%s/found" % self.runtime
        self.env["LSAN_OPTIONS"] = "print_suppressions=0:suppressions=" + SUPPRESSIONS
        self.name = "t%d-%d" % (os.getpid() % 100000, next(numbers))
        self.leftovers = Leftovers()

    def ctl(self, *args, **kw):
        args = [a if isinstance(a, bytes) else str(a) for a in args]
        name = [] if "--name" in args else ["--name", self.name]
        return run([os.path.join(BIN, "duckctl"), *args, *name], env=self.env, **kw)

    def json(self, *args):
        return json.loads(self.ctl(*args, "--json").stdout)

    def refused(self, *args, expect=1, **kw):
        """The command must fail with one JSON object {"error": {"code", "text"}}. -> code, text"""
        p = self.ctl(*args, "--json", expect=expect, **kw)
        e = json.loads(p.stdout)
        assert list(e) == ["error"] and sorted(e["error"]) == ["code", "text"] and not p.stderr, p
        assert e["error"]["text"], p
        return e["error"]["code"], e["error"]["text"]

    def __enter__(self):
        try:
            self.ctl("local", "up", "--model", self.model, "--ducks", self.ducks, *self.options)
        except Exception:
            self.clean()
            raise
        return self

    def __exit__(self, *exc):
        if exc[0]:
            self.show_logs()
        try:
            self.ctl("local", "down")
            left = os.listdir(self.runtime)
            for f in left:
                if f.startswith("found."):
                    with open(os.path.join(self.runtime, f), errors="replace") as finding:
                        print("".join(finding.readlines()[:60]), file=sys.stderr)
            assert not left, "left behind: %s" % left
            self.leftovers.check(self)
        finally:
            self.clean()

    def clean(self):
        """After a failure programs may run that were started by hand."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if self.runtime in environ(int(pid)) and int(pid) != os.getpid():
                os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def folder(self):
        return os.path.join(self.runtime, "duckllm", self.name)

    def show_logs(self):
        folder = self.folder()
        for f in sorted(os.listdir(folder) if os.path.isdir(folder) else []):
            if f.endswith(".log"):
                with open(os.path.join(folder, f), errors="replace") as log:
                    print("---- %s\n%s" % (f, "".join(log.readlines()[-15:])), file=sys.stderr)

    def processes(self):
        """name -> pid"""
        with open(os.path.join(self.folder(), "cluster.json")) as f:
            return {p["name"]: p["pid"] for p in json.load(f)["processes"]}

    def alive(self, pid):
        """Whether that process of the cluster runs."""
        return self.runtime in environ(pid)

    def generate(self, *args):
        return self.json("generate", *args)

    def greedy(self, ids, tokens, *args):
        return self.generate("--ids", ",".join(map(str, ids)), "--max-tokens", tokens, "--temperature", 0, "--ignore-eos",
                             *args)["token_ids"]

    def logits(self, ids, *args):
        """All prompt positions: [T, V]"""
        path = os.path.join(self.runtime, "logits.safetensors")
        self.generate("--ids", ",".join(map(str, ids)), "--max-tokens", 1, "--temperature", 0, "--logits-out", path, *args)
        out = read_safetensors(path)["logits"].copy()
        os.unlink(path)
        return out

    def stats(self):
        return self.json("stats")

    def total(self, counter):
        """A transport counter summed over all nodes."""
        return sum(n.get("transport", {}).get(counter, 0) for n in self.stats()["nodes"])

    def duck_rows(self):
        """name -> hidden rows computed"""
        return {n["node"]["name"]: n.get("duck", {}).get("rows", 0) for n in self.stats()["nodes"]
                if n["node"]["kind"] == "DUCK"}

    def wait_for(self, what, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("did not happen within %d s: %s" % (seconds, what))
            time.sleep(0.05)


def check_logits(what, found, wanted, most):
    difference = float(np.abs(found - wanted).max())
    print("  %-40s largest logit difference %.2e" % (what, difference))
    assert np.isfinite(found).all() and difference <= most, "%s: %g is more than %g" % (what, difference, most)
    return difference
