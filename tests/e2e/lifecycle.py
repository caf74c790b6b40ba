# SPDX-License-Identifier: Apache-2.0
"""Starts, ends, crashes and returns of every program: the others live on, errors name who is missing, nothing is left."""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from cluster import BIN, Cluster, Leftovers, golden

MODEL = "qwen3-moe-fp8-tiny"
SHORT = golden(MODEL)[0]["short"]
LONG = ("--ids", ",".join(map(str, golden(MODEL)[0]["long_answer"]["ids"])), "--max-tokens", 4000, "--temperature", 0,
        "--ignore-eos")
HANG = 60       # seconds after which something that should happen counts as hanging


def answer(c):
    found = c.greedy(SHORT["ids"], 32)
    assert found == SHORT["greedy_ids"], found


def state(c):
    return c.json("status")["state"]


def nodes_alive(c):
    p = c.ctl("status", "--json", expect=None)
    return sum(n["alive"] for n in json.loads(p.stdout).get("nodes", [])) if p.returncode == 0 else 0


def wait_state(c, wanted):
    c.wait_for("state " + wanted, lambda: state(c) == wanted, HANG)


class Program:
    """A process of a cluster, with what is needed to start it again by hand."""

    def __init__(self, c, name):
        self.c, self.name, self.pid = c, name, c.processes()[name]
        self.child = None
        with open("/proc/%d/cmdline" % self.pid, "rb") as f:
            self.command = [a.decode() for a in f.read().split(b"\0")[:-1]]

    def signal(self, number):
        os.kill(self.child.pid if self.child else self.pid, number)

    def running(self):
        if self.child:
            return self.child.poll() is None
        return self.c.alive(self.pid)

    def wait_end(self):
        self.c.wait_for("end of " + self.name, lambda: not self.running(), HANG)
        return self.child.returncode if self.child else None

    def kill(self):
        self.signal(signal.SIGKILL)
        self.wait_end()

    def start(self):
        log = open(os.path.join(self.c.folder(), self.name + ".log"), "ab")
        self.child = subprocess.Popen(self.command, env=self.c.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()

    def end(self):
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_end()


class Client:
    """duckctl in the background."""

    def __init__(self, c, *args):
        self.c = c
        self.p = subprocess.Popen([os.path.join(BIN, "duckctl"), *map(str, args), "--name", c.name], env=c.env,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def result(self):
        out, err = self.p.communicate(timeout=HANG)
        return self.p.returncode, out, err

    def error(self):
        code, out, err = self.result()
        assert code == 1, (code, out[-500:], err)
        e = json.loads(out)["error"]
        return e["code"], e["text"]


def generating(c, *args):
    """A long answer that has begun to come."""
    before = c.stats().get("steps", 0)
    g = Client(c, "generate", *LONG, *args)
    c.wait_for("steps of a long answer", lambda: c.stats().get("steps", 0) > before + 5, HANG)
    return g


def others_alive(c, gone):
    for name, pid in c.processes().items():
        assert name in gone or c.alive(pid), "%s ended too" % name


# ---- clusters side by side

def two_clusters():
    with Cluster(MODEL, 1) as a, Cluster("qwen3-tiny", 1) as b:
        b_short = golden("qwen3-tiny")[0]["short"]
        answer(a)
        assert b.greedy(b_short["ids"], 32) == b_short["greedy_ids"]
        answer(a)
        code, text = a.refused("local", "up", "--model", a.model)
        assert code == "FAILED_PRECONDITION" and a.name in text and "local down" in text, text
        answer(a)
        down = a.refused("local", "down", "--name", "no-such-cluster")
        assert down[0] == "NOT_FOUND" and "no-such-cluster" in down[1], down
        listed = a.json("local", "list")["clusters"]
        assert [(x["name"], x["processes"], x["alive"]) for x in listed] == [(a.name, 3, 3)], listed
    print("two clusters side by side; a name that is taken")


def busy_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        url = "tcp://127.0.0.1:%d" % s.getsockname()[1]
        c, left = Cluster(MODEL, 1), Leftovers()
        try:
            code, text = c.refused("local", "up", "--model", c.model, "--ducks", 1, "--listen", url)
            assert code == "FAILED_PRECONDITION" and url in text and "in use" in text, (code, text)
        finally:
            c.clean()
        left.check(c)
    with Cluster(MODEL, 1, "--listen", url) as c:
        answer(c)
        assert c.json("status", "--coordinator", url)["state"] == "READY"
    print("a port that is taken: " + code)


def without_runtime_folder():
    """No XDG_RUNTIME_DIR: the cluster's folder is in /tmp."""
    c = Cluster(MODEL, 1)
    del c.env["XDG_RUNTIME_DIR"]
    try:
        c.ctl("local", "up", "--model", c.model, "--ducks", 1)
        folder = c.json("local", "list")["clusters"][-1]["dir"]
        assert folder.startswith("/tmp/duckllm-%d/" % os.getuid()), folder
        c.ctl("local", "down")
        assert not os.path.exists(folder)
    finally:
        c.clean()
    c.leftovers.check(c)


def crashed_cluster():
    """All processes of a cluster are killed; the same name can be used again at once."""
    with Cluster(MODEL, 2) as c:
        for pid in c.processes().values():
            os.kill(pid, signal.SIGKILL)
        p = c.ctl("status", "--json", expect=3)
        e = json.loads(p.stdout)["error"]
        assert e["code"] == "UNREACHABLE" and c.name in e["text"] and "ended" in e["text"], e
        assert c.json("local", "list")["clusters"][0]["alive"] == 0
        stale = set(os.listdir(c.folder()))
        assert "control" in stale, stale
        c.ctl("local", "up", "--model", c.model, "--ducks", 2)
        answer(c)
    print("a crashed cluster is started again over its own remains")


# ---- one program ends

def duck_killed():
    with Cluster(MODEL, 2) as c:
        for busy in (False, True):
            duck = Program(c, "duck-1")
            if busy:
                g = generating(c, "--json")
            duck.kill()
            if busy:
                code, text = g.error()
                assert code == "UNAVAILABLE" and "duck-1" in text, (code, text)
            wait_state(c, "DEGRADED")
            assert "duck-1" in c.json("status")["error"]["text"]
            others_alive(c, ["duck-1"])
            waiting = Client(c, "generate", "--ids", ",".join(map(str, SHORT["ids"])), "--max-tokens", 32,
                             "--temperature", 0, "--ignore-eos", "--json")
            duck.start()
            wait_state(c, "READY")
            code, out, err = waiting.result()
            assert code == 0 and json.loads(out)["token_ids"] == SHORT["greedy_ids"], (code, out, err)
            answer(c)
            code = duck.end()
            assert code == 0, "duck-firmware ended with %d on SIGTERM" % code
            wait_state(c, "DEGRADED")
            assert "duck-1" in c.json("status")["error"]["text"]
            duck.start()
            wait_state(c, "READY")
            answer(c)
            replace(c, duck)
        duck = Program(c, "duck-0")
        c.ctl("load", "--model", c.model, "--context", 1000, "--no-wait")
        duck.kill()
        wait_state(c, "DEGRADED")
        duck.start()
        wait_state(c, "READY")
        answer(c)
        replace(c, duck)
    print("a duck killed and ended, idle, in an answer and while loading, and back again")


def duck_ended_in_an_answer():
    """A duck that says goodbye ends the answers whose step it is missed in; one that waits for its next step, or for a duck
    that is back before anybody missed it, goes on with the same tokens."""
    with Cluster(MODEL, 2, "--dead-after-ms", 600000) as c:
        whole = c.generate(*LONG, "--max-tokens", 1500)["token_ids"]
        for back in (False, True):
            duck = Program(c, "duck-1")
            g = generating(c, "--json", "--max-tokens", 1500)
            if back:
                duck.kill()
            else:
                assert duck.end() in (None, 0)
                wait_state(c, "DEGRADED")
            duck.start()
            wait_state(c, "READY")
            code, out, err = g.result()
            if code:
                error = json.loads(out)["error"]
                assert not back and error["code"] == "UNAVAILABLE" and "duck-1" in error["text"], (code, error, err)
            else:
                assert json.loads(out)["token_ids"] == whole
            answer(c)
            replace(c, duck)
    print("a duck that left in an answer, and one that was started again")


def replace(c, program):
    """Writes a program started by hand into the cluster's record, so that `local down` ends it too."""
    path = os.path.join(c.folder(), "cluster.json")
    with open(path) as f:
        record = json.load(f)
    with open("/proc/%d/stat" % program.child.pid) as f:
        started = int(f.read().rsplit(")", 1)[1].split()[19])
    for p in record["processes"]:
        if p["name"] == program.name:
            p.update(pid=program.child.pid, started=started)
    with open(path, "w") as f:
        json.dump(record, f)


def worker_killed():
    with Cluster(MODEL, 2) as c:
        worker = Program(c, "worker")
        g = generating(c, "--json", "--max-tokens", 1500)
        worker.kill()
        wait_state(c, "DEGRADED")
        assert "worker" in c.json("status")["error"]["text"]
        others_alive(c, ["worker"])
        worker.start()
        wait_state(c, "READY")
        answer(c)
        # the sequences of a worker that is started again are prefilled again and go on
        code, out, err = g.result()
        assert code == 0, (code, out, err)
        ids = json.loads(out)["token_ids"]
        assert len(ids) == 1500 and ids == c.generate(*LONG, "--max-tokens", 1500)["token_ids"]
        assert worker.end() == 0
        wait_state(c, "DEGRADED")
        worker.start()
        wait_state(c, "READY")
        answer(c)
        replace(c, worker)
    print("the worker killed in an answer and ended, and back again: the answer goes on")


def values_undisturbed():
    """Scores and traces while a node is lost in their steps: each value once, and the same."""
    prompts = golden(MODEL)[0]
    with Cluster(MODEL, 2, "--dead-after-ms", 600000) as c, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace")
        commands = {
            "score": ("score", "--ids", ",".join(map(str, prompts["three_hundred"]["ids"] * 6)), "--prefill-chunk", 1,
                      "--logprobs", 2, "--json"),
            "trace": ("generate", "--ids", ",".join(map(str, prompts["hundred"]["ids"])), "--max-tokens", 8, "--temperature", 0,
                      "--ignore-eos", "--trace-out", path, "--json"),
        }

        def result(name, code, out, err):
            assert code == 0, (name, code, out[-500:], err)
            o = json.loads(out)
            if name == "score":
                return o
            with open(path, "rb") as f:
                values = f.read()
            os.unlink(path)
            return o["token_ids"], values
        for name, command in commands.items():
            p = c.ctl(*command)
            wanted = result(name, 0, p.stdout, p.stderr)
            for victim in ("duck-1", "worker"):
                lost, duck = Program(c, victim), Program(c, "duck-1")
                before = c.stats().get("steps", 0)
                if name == "trace":
                    duck.signal(signal.SIGSTOP)     # its one step cannot end
                g = Client(c, *command)
                if name == "score":
                    c.wait_for("some steps", lambda: c.stats().get("steps", 0) > before + 50, HANG)
                    duck.signal(signal.SIGSTOP)
                c.wait_for("a step under way", lambda: c.json("status").get("running") == 1, HANG)
                lost.kill()
                if victim == "worker":
                    duck.signal(signal.SIGCONT)
                assert g.p.poll() is None, "it had ended before %s was lost" % victim
                lost.start()
                wait_state(c, "READY")
                assert result(name, *g.result()) == wanted, (name, victim)
                answer(c)
                replace(c, lost)
    print("the worker and a duck killed in a score and in a trace: the same values")


def coordinator_killed():
    with Cluster(MODEL, 2) as c:
        coordinator = Program(c, "coordinator")
        g = generating(c)
        coordinator.kill()
        code, _, err = g.result()
        assert code == 3 and "coordinator" in err, (code, err)
        for command in (("status",), ("generate", "--ids", "1"), ("load", "--model", c.model)):
            p = c.ctl(*command, expect=3)
            assert "coordinator" in p.stderr and c.name in p.stderr, p.stderr
        others_alive(c, ["coordinator"])
        coordinator.start()
        c.wait_for("all nodes again", lambda: nodes_alive(c) == 3, HANG)
        wait_state(c, "READY")      # the worker hands its plan to the new coordinator
        answer(c)
        c.ctl("load", "--model", c.model)
        answer(c)
        others_alive(c, ["coordinator"])
        # The worker is back first, the ducks later and with the numbers that they had.
        ducks = sorted((n["member_index"], n["node"]["name"]) for n in c.json("status")["nodes"]
                       if n["node"]["kind"] == "DUCK")
        ducks = [Program(c, name) for _, name in ducks]
        for d in ducks:
            d.signal(signal.SIGSTOP)
        assert coordinator.end() == 0
        others_alive(c, ["coordinator"])
        coordinator.start()
        for i, d in enumerate([None, *ducks]):
            if d:
                d.signal(signal.SIGCONT)
            c.wait_for("return of %d nodes" % (i + 1), lambda: nodes_alive(c) == i + 1, HANG)
            time.sleep(0.5)     # some heartbeats
        wait_state(c, "READY")
        answer(c)
        c.ctl("load", "--model", c.model)
        answer(c)
        replace(c, coordinator)
    print("the coordinator killed and ended, and back again")


def duck_stopped():
    """A duck that is silent for some seconds and comes back with all it held."""
    with Cluster(MODEL, 2, "--dead-after-ms", 500) as c:
        for busy in (False, True):
            duck = Program(c, "duck-0")
            if busy:
                g = generating(c, "--json")
            duck.signal(signal.SIGSTOP)
            if busy:
                code, text = g.error()
                assert code == "UNAVAILABLE" and "duck-0" in text, (code, text)
            wait_state(c, "DEGRADED")
            assert "duck-0" in c.json("status")["error"]["text"]
            duck.signal(signal.SIGCONT)
            wait_state(c, "READY")
            answer(c)
    print("a duck stopped and continued")


# ---- clients

def clients():
    with Cluster(MODEL, 1) as c:
        g = generating(c)
        g.p.send_signal(signal.SIGINT)
        code, _, err = g.result()
        assert code == 130 and "cancelled" in err, (code, err)
        c.wait_for("no running sequence", lambda: c.json("status")["running"] == 0, HANG)
        answer(c)
        g = generating(c, "--json")
        g.p.kill()
        g.result()
        answer(c)       # beside the lost client's sequence, which is cancelled when nobody reads it for a minute
        assert state(c) == "READY"
        with open("/dev/null", "wb") as null:       # a reader that goes away
            p = subprocess.Popen([os.path.join(BIN, "duckctl"), "generate", *map(str, LONG), "--name", c.name],
                                 env=c.env, stdout=subprocess.PIPE, stderr=null)
            p.stdout.read(1)
            p.stdout.close()
            assert p.wait(HANG) != 0, "an answer that nobody reads went on"
        answer(c)
    print("Ctrl-C, a killed client, a closed pipe")


# ---- starts that are interrupted

def interrupted_starts():
    moments = (0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8, 1.2, 1.6)
    ports = [("vhost", moments)]
    if os.geteuid() == 0 and subprocess.run(["ip", "netns", "list"], capture_output=True).returncode == 0:
        ports.append(("af_packet", (0.05, 0.3, 0.8)))
    for port, times in ports:
        for i, after in enumerate(times):
            c = Cluster(MODEL, 2)
            g = Client(c, "local", "up", "--model", c.model, "--ducks", 2, "--port", port)
            time.sleep(after)
            g.p.send_signal((signal.SIGINT, signal.SIGTERM)[i % 2])
            try:
                code, out, err = g.result()
                if code == 0:
                    c.ctl("local", "down")
                else:
                    assert code in (130, -signal.SIGINT, -signal.SIGTERM), (after, code, out, err)
                assert not os.path.exists(os.path.join(c.runtime, "duckllm")), (after, os.listdir(c.runtime))
                c.leftovers.check(c)
            finally:
                c.clean()
        print("starts over %s interrupted at %d moments" % (port, len(times)))


def same_name_at_once():
    """Of several starts with one name one wins; the others say why not, and harm nothing."""
    c = Cluster(MODEL, 1)
    starts = [Client(c, "local", "up", "--model", c.model, "--ducks", 1, "--json") for _ in range(3)]
    try:
        results = [s.result() for s in starts]
        assert sorted(code for code, _, _ in results) == [0, 1, 1], results
        for code, out, _ in results:
            if code:
                error = json.loads(out)["error"]
                assert error["code"] == "FAILED_PRECONDITION" and c.name in error["text"], error
        answer(c)
        c.ctl("local", "down")
        c.leftovers.check(c)
    finally:
        c.clean()
    print("three starts with one name")


def down_while_busy():
    c = Cluster(MODEL, 1)
    with c:
        g = generating(c, "--json")
    code, out, err = g.result()
    error = json.loads(out)["error"]
    assert (code, error["code"]) in ((1, "UNAVAILABLE"), (3, "UNREACHABLE")), (code, out, err)
    print("`local down` in an answer: " + error["text"])


def unwelcome_ducks():
    with Cluster(MODEL, 2) as c:
        duck = Program(c, "duck-1")
        namesake = Program(c, "duck-1")
        namesake.name = "namesake"
        namesake.start()
        log = os.path.join(c.folder(), "namesake.log")
        c.wait_for("refusal of a duck with a taken name", lambda: "another duck is called 'duck-1'" in open(log).read(), HANG)
        assert state(c) == "READY"
        answer(c)
        assert namesake.end() == 0
        assert state(c) == "READY"
        duck.kill()
        duck.command += ["--reserve-mib", "1000000"]
        duck.start()
        wait_state(c, "FAILED")
        for text in (c.json("status")["error"]["text"], c.refused("load", "--model", c.model)[1]):
            assert "layer 0" in text and "duck-1" in text and "more ducks" in text, text
        assert c.refused("generate", "--ids", "1")[0] == "FAILED_PRECONDITION"
        others_alive(c, ["duck-1"])
        assert duck.end() == 0
        duck.command = duck.command[:-2]
        duck.start()
        c.wait_for("return of duck-1", lambda: sum(n["alive"] for n in c.json("status")["nodes"]) == 3, HANG)
        c.ctl("load", "--model", c.model)
        answer(c)
        replace(c, duck)
    print("a duck with a taken name; a duck without memory")


def killed_starts():
    """duckctl itself is killed: `local down` finds what it had started, or there is nothing."""
    for port, after in (("vhost", 0.01), ("vhost", 0.3), ("vhost", 1), ("af_packet", 0.1), ("af_packet", 0.6)):
        if port == "af_packet" and os.geteuid() != 0:
            continue
        c = Cluster(MODEL, 2)
        g = Client(c, "local", "up", "--model", c.model, "--ducks", 2, "--port", port)
        time.sleep(after)
        g.p.kill()
        g.result()
        try:
            if os.path.exists(os.path.join(c.folder(), "cluster.json")):
                c.ctl("local", "down")
            else:
                c.ctl("local", "up", "--ducks", 1)
                c.ctl("local", "down")
            c.leftovers.check(c)
        finally:
            c.clean()
    print("killed starts are cleaned up by `local down`")


CASES = [two_clusters, busy_port, without_runtime_folder, crashed_cluster, duck_killed, duck_ended_in_an_answer,
         worker_killed, values_undisturbed, coordinator_killed,
         duck_stopped, clients, interrupted_starts, killed_starts,
         same_name_at_once, down_while_busy, unwelcome_ducks]
for case in CASES:
    if len(sys.argv) < 4 or case.__name__ in sys.argv[3:]:
        case()
