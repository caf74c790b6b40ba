# SPDX-License-Identifier: Apache-2.0
"""Clusters of one name in different run-time folders leave each other alone; the longest names work."""
import os
import shutil
import subprocess
import tempfile

from cluster import Cluster, Leftovers, golden

MODEL = "qwen3-moe-fp8-tiny"
SHORT = golden(MODEL)[0]["short"]
PROBE = "dk-probe-%d" % os.getpid()


def answer(c):
    assert c.greedy(SHORT["ids"], 32) == SHORT["greedy_ids"]


def namespaces():
    return {"netns " + n for n in os.listdir("/var/run/netns")} if os.path.isdir("/var/run/netns") else set()


class LaterLeftovers(Leftovers):
    """Without the namespaces of a cluster of the same name that was there before."""

    def __init__(self):
        super().__init__()
        self.namespaces = namespaces()

    def of(self, c):
        return super().of(c) - self.namespaces


class Elsewhere(Cluster):
    """A cluster in a run-time folder of another name."""

    def __init__(self, name, folder, *args):
        super().__init__(*args)
        shutil.rmtree(self.runtime)
        self.runtime = tempfile.mkdtemp(prefix=folder, dir="/tmp")
        self.env["XDG_RUNTIME_DIR"] = self.runtime
        self.name = name
        self.leftovers = LaterLeftovers()


def longest():
    with Elsewhere("name-of-20-letters-x", "dk-of-31-letters--", MODEL, 2) as c:
        assert len(c.runtime) == 31 and len(c.name) == 20
        assert c.json("local", "list")["clusters"][0]["dir"] == c.folder()
        answer(c)
    print("a name of 20 letters in", c.runtime)


def same_name(port):
    with Elsewhere("same", "dka", MODEL, 2, "--port", port) as a:
        with Elsewhere("same", "dkb", MODEL, 2, "--port", port) as b:
            answer(b)
            answer(a)
            b.ctl("local", "down")
            answer(a)
            b.ctl("local", "up", "--model", b.model, "--ducks", 2, "--port", port)
            answer(b)
        answer(a)
    print("two clusters of one name over", port)


longest()
same_name("vhost")
if os.geteuid() == 0 and subprocess.run(["ip", "netns", "add", PROBE], capture_output=True).returncode == 0:
    subprocess.run(["ip", "netns", "del", PROBE], check=True)
    same_name("af_packet")
else:
    print("not over af_packet: network namespaces need root and iproute2")
