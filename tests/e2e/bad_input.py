# SPDX-License-Identifier: Apache-2.0
"""Damaged models and wrong requests against one running cluster: a typed error that names the place, and all goes on.

After each failed load the cluster still serves what it had, or takes the next good model; after each wrong request it gives
the golden answer. `local up` with a model that cannot be loaded leaves nothing behind.
"""
import os
import shutil
import struct
import tempfile

from cluster import FIXTURES, Cluster, Leftovers, golden
from model_copy import ModelCopy

MODEL = "qwen3-moe-fp8-tiny"
GOOD = os.path.join(FIXTURES, MODEL)
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
Q = "model.layers.1.self_attn.q_proj.weight"
EXPERT = "model.layers.1.mlp.experts.3.gate_proj.weight"
LAST_EXPERT = "model.layers.2.mlp.experts.15.down_proj.weight"
NAN, INFINITE = b"\xc0\x7f", b"\x80\x7f"     # bf16
BAD, MISSING, UNKNOWN, DAMAGED = "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "DATA_LOSS"


def config(*without, **fields):
    return lambda m: m.config(*without, **fields)


def remove(*names):
    return lambda m: m.remove(*names)


def cut(name, size):
    return lambda m: m.cut(name, size)


def text(name, content):
    return lambda m: m.text(name, content)


def field(name, edit):
    return lambda m: m.json(name, edit)


def raw(name, content):
    def damage(m):
        with open(m.path(name), "wb") as f:
            f.write(content)
    return damage


def entry(tensor, **fields):
    return lambda m: m.edit(tensor, **fields)


def moved(tensor, begin, end):
    def damage(m):
        def edit(h):
            o = h[tensor]["data_offsets"]
            h[tensor]["data_offsets"] = [o[0] + begin, o[1] + end]
        m.header(m.find(tensor)[0], edit)
    return damage


def drop(tensor):
    return lambda m: m.drop(tensor)


def poke(tensor, offset, content):
    return lambda m: m.poke(tensor, offset, content)


def appended(name, content):
    def damage(m):
        with open(m.path(name), "ab") as f:
            f.write(content)
    return damage


def fp8(**fields):
    return config(quantization_config=dict({"quant_method": "fp8", "weight_block_size": [128, 128]}, **fields))


# what is done to the copy, code, what the text must name. The coordinator sees these: the old model goes on.
SEEN_AT_ONCE = [
    (lambda m: m.remove(*os.listdir(m.folder)), MISSING, "config.json"),
    (remove("config.json"), MISSING, "config.json"),
    (text("config.json", ""), BAD, "config.json", "not valid JSON"),
    (text("config.json", "[]"), BAD, "config.json", "object"),
    (cut("config.json", 100), BAD, "config.json", "line 6"),
    (text("generation_config.json", "{"), BAD, "generation_config.json"),
    (field("generation_config.json", lambda g: g.update(temperature="hot")), BAD, "generation_config.json",
     'temperature is "hot"'),
    (field("generation_config.json", lambda g: g.update(eos_token_id=5000)), BAD, "eos_token_id 5000", "1024"),
    (remove("tokenizer.json"), MISSING, "tokenizer.json"),
    (cut("tokenizer.json", -100), BAD, "tokenizer.json", "line"),
    (field("tokenizer.json", lambda t: t["model"].update(type="WordPiece")), UNKNOWN, "tokenizer.json", "WordPiece"),
    (field("tokenizer.json", lambda t: t["model"]["merges"].append("zz zzz")), BAD, "tokenizer.json", "merges", "zz zzz"),
    (remove(INDEX), MISSING, INDEX),
    (cut(INDEX, 200), BAD, INDEX, "line"),
    (field(INDEX, lambda i: i["weight_map"].update({Q: "../../secret"})), BAD, INDEX, Q),
    (field(INDEX, lambda i: i["weight_map"].update({Q: TWO})), BAD, INDEX, Q, TWO),
    (remove(TWO), MISSING, TWO, "missing"),
    # weight files
    (cut(TWO, -1), BAD, TWO, "cut short", "download"),
    (cut(TWO, 100), BAD, TWO, "cut short"),
    (cut(TWO, 4), BAD, TWO),
    (cut(TWO, 0), BAD, TWO, "empty"),
    (raw(TWO, struct.pack("<Q", 1 << 40) + b"{}"), BAD, TWO),
    (raw(TWO, struct.pack("<Q", 8) + b"not json"), BAD, TWO),
    (raw(TWO, bytes(1000)), BAD, TWO),
    (appended(TWO, b"rest"), BAD, TWO, "longer"),
    (moved(Q, -100, -100), BAD, ONE, Q, "overlap"),
    (moved(Q, 1 << 30, 1 << 30), BAD, ONE),
    (moved(Q, 0, -4), BAD, ONE, Q, "65536", "65532"),
    (entry(Q, data_offsets=[100, 50]), BAD, ONE, Q, "data_offsets"),
    (entry(Q, shape=[-1, 256]), BAD, ONE, Q, "dimension 0"),
    (entry(Q, shape=[25.6, 256]), BAD, ONE, Q, "dimension 0"),
    # fields that change the math
    (config("model_type"), BAD, "config.json", "model_type"),
    (config(model_type="gpt_neox"), UNKNOWN, "model_type", "gpt_neox", "qwen3_moe"),
    (config(model_type=3), BAD, "model_type is 3"),
    (config(architectures=["Qwen3MoeForSequenceClassification"]), UNKNOWN, "architectures"),
    (config(attention_bias=True), UNKNOWN, "attention_bias is true"),
    (config(mlp_bias=True), UNKNOWN, "mlp_bias is true"),
    (config(hidden_act="gelu"), UNKNOWN, "hidden_act", "gelu"),
    (config(rope_scaling={"rope_type": "dynamic", "factor": 4.0}), UNKNOWN, "rope_scaling", "dynamic"),
    (config(rope_scaling={"rope_type": "yarn"}), BAD, "rope_scaling", "factor"),
    (config("rope_theta", rope_parameters={"rope_type": "longrope", "factor": 2, "rope_theta": 1e6}), UNKNOWN,
     "rope_parameters", "longrope"),
    (config(use_sliding_window=True, sliding_window=4096), UNKNOWN, "use_sliding_window"),
    (config(layer_types=["full_attention", "sliding_attention", "full_attention"]), UNKNOWN, "layer_types"),
    (config(partial_rotary_factor=0.5), UNKNOWN, "partial_rotary_factor is 0.5"),
    (config(shared_expert_intermediate_size=64), UNKNOWN, "shared_expert_intermediate_size is 64"),
    (fp8(quant_method="awq"), UNKNOWN, "quant_method", "awq"),
    (fp8(fmt="e5m2"), UNKNOWN, "fmt", "e5m2"),
    (fp8(weight_block_size=[64, 64]), UNKNOWN, "weight_block_size", "64"),
    (fp8(activation_scheme="static"), UNKNOWN, "activation_scheme", "static"),
    # numbers
    (config(hidden_size=0), BAD, "hidden_size is 0", "from 1"),
    (config(hidden_size=-1), BAD, "hidden_size is -1"),
    (config(hidden_size="256"), BAD, 'hidden_size is "256"'),
    (config(hidden_size=1e9), BAD, "hidden_size is 1000000000"),
    (config("num_hidden_layers"), BAD, "num_hidden_layers is missing"),
    (config("rope_theta"), BAD, "rope_theta is missing"),
    (config(num_experts_per_tok=17), BAD, "num_experts_per_tok is 17"),
    (config(num_key_value_heads=3), BAD, "num_key_value_heads is 3"),
    (config(head_dim=33), BAD, "head_dim is 33"),
    (config(rms_norm_eps=0), BAD, "rms_norm_eps is 0"),
]

# The same in models of other families.
LAYERS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
QWEN3_5, DEEPSEEK, INDEXED = "qwen3_5-fp8-tiny", "deepseek_v3-fp8-tiny", "deepseek_v32-fp8-tiny"


def text_field(**fields):
    return lambda m: m.json("config.json", lambda c: c["text_config"].update(fields))


SEEN_IN_FAMILIES = [
    (QWEN3_5, config("text_config"), BAD, "text_config is missing"),
    (QWEN3_5, text_field(layer_types=LAYERS), BAD, "layer_types"),
    (QWEN3_5, text_field(layer_types=["sliding_attention"] * 8), UNKNOWN, "layer_types", "sliding_attention"),
    (QWEN3_5, text_field(linear_num_value_heads=3), BAD, "linear_num_value_heads"),
    (QWEN3_5, text_field(linear_conv_kernel_dim=0), BAD, "linear_conv_kernel_dim is 0"),
    (QWEN3_5, text_field(attn_output_gate=False), UNKNOWN, "attn_output_gate"),
    (DEEPSEEK, config("kv_lora_rank"), BAD, "kv_lora_rank is missing"),
    (DEEPSEEK, config(scoring_func="softmax"), UNKNOWN, "scoring_func", "softmax"),
    (DEEPSEEK, config(topk_method="greedy"), UNKNOWN, "topk_method", "greedy"),
    (DEEPSEEK, config(n_group=5), BAD, "n_group is 5"),
    (DEEPSEEK, config(topk_group=9), BAD, "topk_group is 9"),
    (DEEPSEEK, config(qk_rope_head_dim=33), BAD, "qk_rope_head_dim is 33"),
    (INDEXED, config(index_topk=0), BAD, "index_topk is 0"),
    (INDEXED, config("index_n_heads"), BAD, "index_n_heads is missing"),
]

# The worker or a duck finds these: the load fails, the state is FAILED until the next load.
SEEN_WHILE_LOADING = [
    (entry("model.layers.1.self_attn.k_proj.weight", shape=[256, 128]), BAD, ONE, "k_proj", "[256, 128]", "[128, 256]"),
    (entry(EXPERT, shape=[256, 192]), BAD, ONE, EXPERT, "[192, 256]"),
    (entry("model.norm.weight", shape=[16, 16]), BAD, TWO, "model.norm.weight", "[256]"),
    (entry(EXPERT + "_scale_inv", shape=[1, 4]), BAD, EXPERT + "_scale_inv", "[1, 4]", "[2, 2]"),
    (entry(Q, dtype="F8_E5M2"), UNKNOWN, ONE, Q, "F8_E5M2"),
    (entry(EXPERT, dtype="I8"), UNKNOWN, ONE, EXPERT, "I8"),
    (entry("model.norm.weight", dtype="I16"), UNKNOWN, TWO, "model.norm.weight", "I16"),
    (entry(Q + "_scale_inv", dtype="I16"), UNKNOWN, Q + "_scale_inv", "I16"),
    (drop(Q), MISSING, Q),
    (drop(Q + "_scale_inv"), MISSING, Q + "_scale_inv"),
    (drop(EXPERT), MISSING, EXPERT),
    (drop(EXPERT + "_scale_inv"), MISSING, EXPERT + "_scale_inv"),
    (drop("model.layers.1.mlp.gate.weight"), MISSING, "model.layers.1.mlp.gate.weight"),
    (drop("lm_head.weight"), MISSING, "lm_head.weight"),
    (config(hidden_size=128), BAD, "model.embed_tokens.weight", "[1024, 256]", "[1024, 128]"),
    (config(vocab_size=1000), BAD, "model.embed_tokens.weight", "[1000, 256]"),
    (config(num_attention_heads=16), BAD, "q_proj", "[512, 256]"),
    (config(num_experts=17), BAD, "mlp.gate.weight", "[17, 256]"),
    (config(moe_intermediate_size=160), BAD, "experts.0.gate_proj", "[160, 256]"),
    (config(num_hidden_layers=4), MISSING, "model.layers.3."),
    (config(mlp_only_layers=[1]), MISSING, "model.layers.1.mlp.gate_proj.weight"),
    (config(model_type="qwen3", architectures=["Qwen3ForCausalLM"]), MISSING, "model.layers.0.mlp.gate_proj.weight"),
    # found by the duck that packs them, or by the worker
    (poke(EXPERT, 3 * 256 + 9, b"\x7f"), BAD, "$M", "layer 1 expert 3: gate", "row 3, column 9", "NaN", "duck-0"),
    (poke(LAST_EXPERT, 256 * 192 - 1, b"\xff"), BAD, "layer 2 expert 15: down", "row 255, column 191", "duck-1"),
    (poke(EXPERT + "_scale_inv", 2, NAN), BAD, "layer 1 expert 3: gate", "scale", "nan"),
    (poke(EXPERT + "_scale_inv", 2, INFINITE), BAD, "layer 1 expert 3: gate", "scale", "inf"),
    (poke(Q, 256 + 44, b"\x7f"), BAD, ONE, Q, "row 1, column 44", "NaN"),
    (poke(Q + "_scale_inv", 2, NAN), BAD, ONE, Q, "scale", "nan"),
]

# bfloat16 weights are not looked at one by one: what they spoil is seen in the first step that uses them.
SEEN_IN_A_STEP = [
    (poke("model.layers.1.input_layernorm.weight", 2, NAN), "layer 1"),
    (poke("model.layers.1.mlp.gate.weight", 2, NAN), "layer 1"),
    (poke("model.embed_tokens.weight", 392 * 512 + 4, NAN), "layer 0"),
    (poke("lm_head.weight", 5 * 512, NAN), "logit"),
]

IDS = ("generate", "--ids", "392")
STATUS = "Client/GetStatus"
# exit code 2: what duckctl sees by itself; 1: what the cluster says
WRONG = [
    (2, BAD, ("generate",), "--prompt", "--ids"),
    (1, BAD, ("generate", "--prompt", ""), "prompt is empty"),
    (2, BAD, ("generate", "--prompt", b"\xff\xfe"), "--prompt", "UTF-8"),
    (2, BAD, ("generate", "--chat", b"\xff\xfe"), "--chat", "UTF-8"),
    (2, BAD, ("generate", "--ids", ""), "--ids"),
    (2, BAD, ("generate", "--ids", "1,,2"), "--ids", "',2'"),
    (2, BAD, ("generate", "--ids", "1,x"), "--ids", "'x'"),
    (2, BAD, ("generate", "--ids", "-1"), "--ids", "'-1'"),
    (2, BAD, ("generate", "--ids", "1,"), "--ids"),
    (2, BAD, ("generate", "--ids", "99999999999"), "--ids", "99999999999"),
    (1, BAD, ("generate", "--ids", "1,1024"), "token 1", "1024", "vocabulary"),
    (1, BAD, ("generate", "--ids", "4294967295"), "token 0", "4294967295"),
    (1, BAD, ("generate", "--ids", ",".join(["1"] * 4096)), "4096 tokens", "context of 4096"),
    (1, BAD, ("generate", "--prompt", "hello " * 5000), "context of 4096"),
    (2, BAD, IDS + ("--max-tokens", "0"), "--max-tokens", "'0'"),
    (2, BAD, IDS + ("--max-tokens", "-1"), "--max-tokens", "'-1'"),
    (2, BAD, IDS + ("--temperature", "nan"), "--temperature", "'nan'"),
    (2, BAD, IDS + ("--temperature", "-1"), "--temperature", "'-1'"),
    (2, BAD, IDS + ("--temperature", "inf"), "--temperature", "'inf'"),
    (2, BAD, IDS + ("--top-p", "1.5"), "--top-p", "'1.5'"),
    (1, BAD, IDS + ("--top-p", "0"), "top_p"),
    (1, BAD, IDS + ("--top-k", "2000"), "top_k", "2000"),
    (2, BAD, IDS + ("--seed", "-1"), "--seed"),
    (2, BAD, IDS + ("--logprobs", "21"), "--logprobs", "20"),
    (2, BAD, IDS + ("--prefill-chunk", "0"), "--prefill-chunk"),
    (1, BAD, IDS + ("--stop", ""), "stop[0]"),
    (1, BAD, IDS + ("--stop", "x" * 257), "stop[0]", "257"),
    (1, BAD, IDS + ("--stop", "x") * 17, "17", "16"),
    (2, BAD, IDS + ("--stop", b"\xff"), "--stop", "UTF-8"),
    (2, BAD, IDS + ("--thinking", "on"), "--thinking"),
    (2, BAD, ("generate", "--chat", "x", "--thinking", "maybe"), "--thinking", "on|off"),
    (2, BAD, IDS + ("--chat", "x"), "exactly one"),
    (2, BAD, IDS + ("--system", "x"), "--system"),
    (2, BAD, IDS + ("--unheard-of",), "--unheard-of"),
    (2, BAD, IDS + ("more",), "more"),
    (1, MISSING, IDS + ("--logits-out", "/nonexistent/x"), "/nonexistent/x"),
    (1, MISSING, IDS + ("--trace-out", "/nonexistent/x"), "--trace-out", "/nonexistent/x"),
    (1, BAD, IDS + ("--trace-out", "$T"), "$T", "directory"),
    (1, BAD, ("generate", "--ids", ",".join(["1"] * 257), "--trace-out", "$T/x"), "257 tokens", "a step takes 256"),
    (1, BAD, IDS + ("--trace-out", "$T/x", "--prefill-chunk", "1", "--ids", "1,2"), "2 tokens", "prefill_chunk 1"),
    (2, BAD, IDS + ("--tools", "/nonexistent"), "--tools goes with"),
    (1, MISSING, ("generate", "--chat", "x", "--tools", "/nonexistent"), "--tools", "/nonexistent"),
    (1, BAD, ("generate", "--chat", "x", "--tools", "$T"), "--tools", "$T", "directory"),
    (2, BAD, ("score",), "--text", "--ids"),
    (1, BAD, ("score", "--text", ""), "prompt is empty"),
    (2, BAD, ("score", "--text", b"\xff\xfe"), "--text", "UTF-8"),
    (2, BAD, ("score", "--ids", "1", "--text", "x"), "exactly one"),
    (2, BAD, ("score", "--ids", "1", "--max-tokens", "3"), "--max-tokens"),
    (1, BAD, ("score", "--ids", "1,1024"), "token 1", "1024", "vocabulary"),
    (1, BAD, ("score", "--ids", ",".join(["1"] * 4097)), "4097 tokens", "context of 4096"),
    (1, MISSING, ("score", "--file", "/nonexistent"), "/nonexistent"),
    (1, BAD, ("score", "--file", "$T"), "$T", "directory"),
    (1, MISSING, ("inspect", "/nonexistent"), "/nonexistent/config.json"),
    (1, MISSING, ("inspect", "$T"), "$T/config.json"),
    (1, BAD, ("inspect", GOOD, "--context", 50000), "50000", "40960"),
    (2, BAD, ("inspect", GOOD, "--multiple-of", 33), "--multiple-of"),
    (2, BAD, ("inspect", GOOD, "--ducks", 0), "--ducks"),
    (1, BAD, IDS + ("--logits-out", "$T"), "$T", "directory"),
    (1, MISSING, ("generate", "--messages", "/nonexistent"), "/nonexistent"),
    (1, BAD, ("generate", "--messages", "$T"), "$T", "directory"),
    (2, BAD, ("call",), "Client/GetStatus"),
    (2, BAD, ("call", "Client/Nothing"), "Client/Nothing", "describe"),
    (2, BAD, ("call", STATUS, "{"), STATUS, "line 1"),
    (2, BAD, ("call", STATUS, "[]"), STATUS, "object"),
    (2, BAD, ("call", STATUS, '{"colour":1}'), "colour", "wait_ms"),
    (2, BAD, ("call", STATUS, '{"wait_ms":-1}'), "wait_ms", "-1"),
    (2, BAD, ("call", STATUS, '{"unlike":"BLUE"}'), "unlike", "BLUE", "READY"),
    (2, BAD, ("call", "Client/Read", "{}"), "handle"),
    (2, BAD, ("call", "Client/Submit", '{"text":"a","ids":{"ids":[1]}}'), "ids", "text"),
    (1, BAD, ("call", "Client/Submit", "{}"), "prompt is missing"),
    (1, BAD, ("call", "Client/Submit", '{"text":"a","max_tokens":0}'), "max_tokens"),
    (1, BAD, ("call", "Client/Submit", '{"text":"a","temperature":-0.5}'), "temperature", "-0.5"),
    (1, BAD, ("call", "Client/Submit", '{"text":"a","prefill_chunk":0}'), "prefill_chunk"),
    (1, BAD, ("call", "Client/Submit", '{"messages_json":"[["}'), "messages_json", "line 1"),
    (1, BAD, ("call", "Client/Submit", '{"text":"a","tools_json":"[]"}'), "tools_json", "chat"),
    (1, BAD, ("call", "Client/Submit", '{"messages_json":"[]","tools_json":"[{"}'), "tools_json", "line 1"),
    (1, BAD, ("call", "Client/Submit", '{"text":"a","score":true,"stop":["x"]}'), "score", "stop"),
    (1, MISSING, ("call", "Client/Read", '{"handle":1}'), "handle 1"),
    (1, MISSING, ("call", "Client/Cancel", '{"handle":1}'), "handle 1"),
    (1, BAD, ("call", "Client/Load", '{"model_dir":"here"}'), "model_dir", "here"),
    (1, BAD, ("call", "Client/Load", '{"model_dir":"/x","backend":"tpu"}'), "backend", "tpu"),
    (1, "FAILED_PRECONDITION", ("call", "Attention/NextStep", '{"worker":"other","instance":1}'), "worker"),
    (1, "FAILED_PRECONDITION", ("call", "Membership/Leave", '{"name":"duck-0","instance":1}'), "duck-0"),
    (2, BAD, ("describe", "Nothing"), "Nothing"),
    (2, BAD, ("load",), "--model"),
    (1, MISSING, ("load", "--model", "/nonexistent"), "/nonexistent/config.json"),
    (1, MISSING, ("load", "--model", "not-here"), "not-here", "absolute"),
    (1, MISSING, ("load", "--model", "/etc/passwd"), "/etc/passwd", "directory"),
    (1, "FAILED_PRECONDITION", ("load", "--model", GOOD, "--tp", 3), "tp 3", "2 are present"),
    (1, BAD, ("load", "--model", GOOD, "--context", 50000), "context", "50000", "40960"),
    (1, BAD, ("load", "--model", GOOD, "--multiple-of", 33), "multiple_of", "33"),
    (1, UNKNOWN, ("load", "--model", GOOD, "--backend", "cuda"), "cuda", "built with: cpu"),
    (2, BAD, ("load", "--model", GOOD, "--attention", "half"), "--attention", "sparse|full"),
    (2, BAD, ("load", "--model", GOOD, "--allow-full"), "--allow-full", "--attention full"),
    (1, BAD, ("load", "--model", GOOD, "--attention", "full"), "qwen3_moe", "indexer", "--attention"),
    (1, BAD, ("call", "Client/Load", '{"model_dir":"%s","allow_full":true}' % GOOD), "allow_full"),
    (2, BAD, ("tokenize",), "--text"),
    (2, BAD, ("tokenize", "--text", b"\xff"), "--text", "UTF-8"),
    (1, MISSING, ("tokenize", "--file", "/nonexistent"), "/nonexistent"),
    (1, BAD, ("tokenize", "--file", "$T"), "$T", "directory"),
    (1, BAD, ("detokenize", "--ids", "7,9999"), "ids[1]", "9999"),
    (2, BAD, ("detokenize", "--ids", "a"), "--ids"),
    (2, BAD, ("status", "more"), "more"),
    (2, BAD, ("status", "--coordinator", "here"), "here", "tcp://"),
    (2, BAD, ("status", "--name", "../x"), "--name", "../x"),
    (2, BAD, ("local", "up", "--name", "a b"), "--name", "a b"),
    (2, BAD, ("local", "down", "--name", ""), "--name"),
    (2, BAD, ("local", "sideways"), "local sideways"),
    (2, BAD, ("local", "up", "--ducks", 0), "--ducks", "31"),
    (2, BAD, ("local", "up", "--tp", 3, "--ducks", 2), "--tp"),
    (1, "FAILED_PRECONDITION", ("local", "up", "--model", GOOD), "is running", "local down", "--name"),
]

MESSAGES = [
    ("[", "line 1"),
    ("{}", "array"),
    ("[]", "message"),
    ("[1]", "messages[0]"),
    ('[{"content": "x"}]', "messages[0].role"),
    ('[{"role": 5, "content": "x"}]', "messages[0].role"),
    ('[{"role": "user", "content": 5}]', "messages[0].content"),
    ('[{"role": "user", "content": "a", "role": "b"}]', "duplicate"),
    ('[{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "image"}]}]', "messages[1].content"),
    (b'[{"role": "user", "content": "\xff"}]', "line 1"),
]


class Bad:
    def __init__(self, cluster):
        self.c = cluster
        self.pids = cluster.processes()
        self.short = golden(MODEL)[0]["short"]
        self.folder = tempfile.mkdtemp(prefix="dkf", dir="/tmp")

    def check(self, found, code, words, what):
        assert found[0] == code, "%s: %s, expected %s" % (what, found, code)
        for w in words:
            assert w in found[1], "%s: %r is not named in: %s" % (what, w, found[1])
        for name, pid in self.pids.items():
            assert self.c.alive(pid), "%s: %s ended" % (what, name)

    def good_answer(self):
        assert self.c.greedy(self.short["ids"], 32) == self.short["greedy_ids"]

    def state(self):
        return self.c.json("status")["state"]

    def models(self):
        for damage, code, *words in SEEN_AT_ONCE:
            with ModelCopy(MODEL) as m:
                damage(m)
                self.check(self.c.refused("load", "--model", m.folder), code, words, words[0])
            assert self.state() == "READY", words
        self.good_answer()
        print("%d damaged models refused at once, the old one is served" % len(SEEN_AT_ONCE))
        for damage, code, *words in SEEN_WHILE_LOADING:
            with ModelCopy(MODEL) as m:
                damage(m)
                words = [w.replace("$M", m.folder) for w in words]
                found = self.c.refused("load", "--model", m.folder)
                self.check(found, code, words, words[0])
                status = self.c.json("status")
                assert status["state"] == "FAILED" and status["error"]["text"] in found[1], status
                self.check(self.c.refused(*IDS), "FAILED_PRECONDITION", words[-1:], "generate after a failed load")
        self.c.ctl("load", "--model", GOOD)
        self.good_answer()
        print("%d damaged models refused while loading, then a good one" % len(SEEN_WHILE_LOADING))
        for damage, *words in SEEN_IN_A_STEP:
            with ModelCopy(MODEL) as m:
                damage(m)
                self.c.ctl("load", "--model", m.folder)
                self.check(self.c.refused(*IDS), DAMAGED, words + ["not a number", m.folder], words[0])
        self.c.ctl("load", "--model", GOOD)
        self.good_answer()
        print("%d models with bfloat16 NaN: the sequences end" % len(SEEN_IN_A_STEP))

    def families(self):
        for model, damage, code, *words in SEEN_IN_FAMILIES:
            with ModelCopy(model) as m:
                damage(m)
                self.check(self.c.refused("load", "--model", m.folder), code, words + ["config.json"], words[0])
            assert self.state() == "READY", words
        self.good_answer()
        print("%d damaged models of other families refused" % len(SEEN_IN_FAMILIES))

    def repaired(self):
        """The same folder is loaded again after its files were changed: nothing of the old ones is used."""
        for name in (EXPERT, Q):
            with ModelCopy(MODEL) as m:
                good = open(m.path(ONE), "rb").read()
                m.poke(name, 0, b"\x7f")
                self.c.refused("load", "--model", m.folder)
                with open(m.path("new"), "wb") as f:
                    f.write(good)
                os.rename(m.path("new"), m.path(ONE))
                self.c.ctl("load", "--model", m.folder)
                self.good_answer()
                m.poke("model.layers.1.input_layernorm.weight", 2, NAN)
                self.c.ctl("load", "--model", m.folder)
                self.check(self.c.refused(*IDS), DAMAGED, ["layer 1"], "damaged again")
        self.c.ctl("load", "--model", GOOD)
        self.good_answer()
        print("a repaired folder loads, a damaged one is seen again")

    def requests(self):
        for code, name, command, *words in WRONG:
            command = [a.replace("$T", self.folder) if isinstance(a, str) else a for a in command]
            words = [w.replace("$T", self.folder) for w in words]
            self.check(self.c.refused(*command, expect=code), name, words, command)
        for content, word in MESSAGES:
            path = os.path.join(self.folder, "messages.json")
            with open(path, "wb") as f:
                f.write(content if isinstance(content, bytes) else content.encode())
            self.check(self.c.refused("generate", "--messages", path), BAD, [word], content)
        status = self.c.json("status")
        assert (status["state"], status["running"], status["queued"]) == ("READY", 0, 0), status
        self.good_answer()
        print("%d wrong requests refused" % (len(WRONG) + len(MESSAGES)))

    def unreachable(self):
        for options in (("--coordinator", "ipc:///nonexistent/x"), ("--name", "no-such-cluster")):
            p = self.c.refused("status", *options, expect=3)
            assert p[0] == "UNREACHABLE" and options[1] in p[1], p


def failing_start(damage, *words):
    left = Leftovers()
    with ModelCopy(MODEL) as m:
        damage(m)
        c = Cluster(m.folder, 2)
        try:
            found = c.refused("local", "up", "--model", m.folder, "--ducks", 2)
        finally:
            c.clean()
    assert all(w in found[1] for w in words), found
    left.check(c)


with Cluster(MODEL, 2) as c:
    b = Bad(c)
    try:
        b.requests()
        b.models()
        b.families()
        b.repaired()
        b.unreachable()
    finally:
        shutil.rmtree(b.folder)
failing_start(remove("config.json"), "config.json")
failing_start(cut(TWO, -1), TWO, "cut short")
failing_start(poke(EXPERT, 0, b"\x7f"), "layer 1 expert 3")
failing_start(poke(Q, 0, b"\x7f"), Q)
print("failed starts leave nothing behind")
