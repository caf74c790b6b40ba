# SPDX-License-Identifier: Apache-2.0
"""The golden comparison can fail: each deliberate mistake, made in a copy of a fixture, must move the logits.

A mistake in the math is made by giving the right math other files: a rotation of other pairs is the same as rows in
another order, and so on. What files cannot say was tried in the source; docs/fidelity.md has both.

usage: mistakes.py BIN FIXTURES MODEL
"""
import re
import sys

import numpy as np

from cluster import Cluster, golden
from model_copy import EditedModel

MODEL = sys.argv[3]
PROMPTS = ("short", "multi_turn", "hundred")
CLOSE = 1e-3            # what the right weights may differ by
LEAST, TIMES = 0.05, 50     # how far each mistake must move, absolutely and compared with the right weights
EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")


# ---- Orders: row i of the changed tensor is row order[i] of the right one.

def halves_as_pairs(rotated, whole):
    """The code rotates halves (i, i + rotated / 2); with this order it rotates the pairs (2i, 2i + 1)."""
    return [*range(0, rotated, 2), *range(1, rotated, 2), *range(rotated, whole)]


def pairs_as_halves(rotated, begin, whole):
    """The code rotates the pairs (2i, 2i + 1) from row `begin` on; with this order it rotates halves."""
    half = rotated // 2
    pairs = [begin + i for j in range(half) for i in (j, j + half)]
    return [*range(begin), *pairs, *range(begin + rotated, whole)]


def per_head(order, heads):
    return [h * len(order) + i for h in range(heads) for i in order]


def of_heads(order, size):
    """Whole heads of `size` rows, in that order."""
    return [h * size + i for h in order for i in range(size)]


def reorder(m, pattern, order, axis=0):
    m.change(pattern, lambda w: w.take(order, axis))


# ---- Every family

def unchanged(m):
    """Not a mistake: the weights as numbers, each with its scale multiplied in."""
    m.change(r"self_attn\..*proj\w*\.weight$|linear_attn\.\w+proj\w*\.weight$", lambda w: w)


def theta(m):
    c = m.text_config()
    nested = "rope_theta" in c.get("rope_parameters", {})
    old = (c["rope_parameters"] if nested else c).get("rope_theta", 10000)
    new = {"rope_theta": 1000000 if old == 10000 else 10000}
    m.text_fields(**({"rope_parameters": dict(c["rope_parameters"], **new)} if nested else new))


def gate_up_swapped(m):
    other = {"gate": "up", "up": "gate"}
    m.rename(r"mlp\..*(gate|up)_proj\.", lambda n: re.sub("(gate|up)(?=_proj)", lambda k: other[k[1]], n))


def scale_transposed(m):
    """As if the scales were stored column by column."""
    for n in m.names(r"weight_scale_inv$"):
        s = m.stored[n].data
        m.stored[n].data = np.ascontiguousarray(s.reshape(s.shape[::-1]).T)


def scale_shifted(m):
    """Each block with the scale of the block before; seen also where a matrix is one block wide."""
    m.change(r"weight_scale_inv$", lambda s: np.roll(s, 1))


def scale_ignored(m):
    m.change(r"weight_scale_inv$", lambda s: np.full_like(s, s.mean()))


# ---- Grouped-query attention

def rotated_dims(c):
    return int(c["head_dim"] * c.get("rope_parameters", {}).get("partial_rotary_factor", 1))


def gqa_sizes(m):
    c = m.text_config()
    c.setdefault("head_dim", c["hidden_size"] // c["num_attention_heads"])
    return c, c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"]), c["head_dim"]


def rope_interleaved(m):
    c, heads, kv_heads, dim = gqa_sizes(m)
    order = halves_as_pairs(rotated_dims(c), dim)
    gated = order + [dim + i for i in range(dim)] if c.get("attn_output_gate") else order
    reorder(m, r"self_attn\.q_proj\.weight$", per_head(gated, heads))
    reorder(m, r"self_attn\.k_proj\.weight$", per_head(order, kv_heads))
    if c["model_type"] == "qwen2":
        reorder(m, r"self_attn\.q_proj\.bias$", per_head(order, heads))
        reorder(m, r"self_attn\.k_proj\.bias$", per_head(order, kv_heads))
    if c["model_type"].startswith("qwen3"):
        reorder(m, r"self_attn\.[qk]_norm\.weight$", order)


def gqa_modulo(m):
    """Query head h reads key head h modulo their number."""
    c, heads, kv_heads, dim = gqa_sizes(m)
    order = sorted(range(heads), key=lambda h: h % kv_heads)
    reorder(m, r"self_attn\.q_proj\.(weight|bias)$", of_heads(order, dim))
    reorder(m, r"self_attn\.o_proj\.weight$", of_heads(order, dim), 1)


def qk_norm_weights_ignored(m):
    m.change(r"self_attn\.[qk]_norm\.weight$", np.ones_like)


def no_bias_of(parts):
    def mistake(m):
        m.change(r"self_attn\.[%s]_proj\.bias$" % parts, np.zeros_like)
    mistake.__name__ = "no_bias_of_" + parts
    return mistake


def rope_scaling(*without, **fields):
    """Fields of the scaling, in both spellings."""
    def mistake(m):
        c = m.text_config()
        key = "rope_scaling" if "rope_scaling" in c else "rope_parameters"
        m.text_fields(**{key: {k: v for k, v in dict(c[key], **fields).items() if k not in without}})
    mistake.__name__ = "_".join("%s_%g" % f for f in fields.items())
    return mistake


def no_rope_scaling(m):
    c = m.text_config()
    m.text_fields("rope_scaling" if "rope_scaling" in c else "rope_parameters",
                  rope_theta=c.get("rope_theta") or c.get("rope_parameters", {}).get("rope_theta", 10000))


# ---- Softmax router

def expert_off_by_one(m):
    """Expert e has the weights of expert e + 1."""
    experts = m.text_config().get("num_experts") or m.text_config()["n_routed_experts"]

    def previous(name):
        head, expert, tail = EXPERT.match(name).groups()
        return "%s%d%s" % (head, (int(expert) - 1) % experts, tail)
    m.rename(r"\.experts\.", previous)


def one_expert_less(m):
    m.text_fields(num_experts_per_tok=m.text_config()["num_experts_per_tok"] - 1)


def no_topk_norm(m):
    m.text_fields(norm_topk_prob=False)


# ---- Qwen3.5

def norm_without_one(m):
    m.change(r"layernorm\.weight$|language_model\.norm\.weight$|self_attn\.[qk]_norm\.weight$", lambda w: w - 1)


def gated_norm_one_plus(m):
    m.change(r"linear_attn\.norm\.weight$", lambda w: w + 1)


def gate_as_halves(m):
    """q_proj as all queries, then all gates."""
    _, heads, _, dim = gqa_sizes(m)
    reorder(m, r"self_attn\.q_proj\.weight$",
            [part * heads * dim + h * dim + i for h in range(heads) for part in (0, 1) for i in range(dim)])


def gate_before_query(m):
    _, heads, _, dim = gqa_sizes(m)
    reorder(m, r"self_attn\.q_proj\.weight$", per_head([*range(dim, 2 * dim), *range(dim)], heads))


def full_rotary(m):
    rope = dict(m.text_config()["rope_parameters"], partial_rotary_factor=1.0)
    del rope["mrope_section"]
    m.text_fields(rope_parameters=rope)


def conv_reversed(m):
    m.change(r"conv1d\.weight$", lambda w: w[..., ::-1])


def delta_sizes(m):
    c = m.text_config()
    return (c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"],
            c["linear_value_head_dim"])


def value_heads_modulo(m):
    """Value head h reads key head h modulo their number."""
    key_heads, value_heads, key_dim, value_dim = delta_sizes(m)
    order = sorted(range(value_heads), key=lambda h: h % key_heads)
    values, keys = of_heads(order, value_dim), 2 * key_heads * key_dim
    channels = [*range(keys), *(keys + i for i in values)]
    reorder(m, r"in_proj_qkv\.weight$|conv1d\.weight$", channels)
    reorder(m, r"in_proj_z\.weight$", values)
    reorder(m, r"in_proj_[ab]\.weight$|A_log$|dt_bias$", order)
    reorder(m, r"linear_attn\.out_proj\.weight$", values, 1)


def query_key_exchanged(m):
    key_heads, value_heads, key_dim, value_dim = delta_sizes(m)
    keys = key_heads * key_dim
    reorder(m, r"in_proj_qkv\.weight$|conv1d\.weight$",
            [*range(keys, 2 * keys), *range(keys), *range(2 * keys, 2 * keys + value_heads * value_dim)])


def decay_negated(m):
    """exp(-A_log)."""
    m.change(r"A_log$", np.negative)


def decay_heads_shifted(m):
    m.change(r"A_log$", lambda a: np.roll(a, 1))


def no_dt_bias(m):
    m.change(r"dt_bias$", np.zeros_like)


def beta_decay_exchanged(m):
    m.rename(r"in_proj_[ab]\.", lambda n: re.sub("_([ab])(?=\\.)", lambda k: {"a": "_b", "b": "_a"}[k[1]], n))


def shared_gate_half(m):
    """sigmoid(0)"""
    m.change(r"shared_expert_gate\.weight$", np.zeros_like)


def shared_gate_step(m):
    """A gate that is 0 or 1."""
    m.change(r"shared_expert_gate\.weight$", lambda w: w * np.float32(1e6))


def no_shared_expert(m):
    m.change(r"shared_experts?\.down_proj\.weight$", np.zeros_like)


# ---- DeepSeek

def no_mscale(m):
    """The softmax scale without YaRN's factor; cosines and sines as before."""
    m.text_fields(rope_scaling=dict(m.text_config()["rope_scaling"], mscale=1e-6, mscale_all_dim=1e-6))


def no_routed_scale(m):
    m.text_fields(routed_scaling_factor=1.0)


def no_groups(m):
    m.text_fields(n_group=1, topk_group=1)


def no_bias(m):
    m.change(r"e_score_correction_bias$", np.zeros_like)


def mla_sizes(m):
    c = m.text_config()
    return c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]


def rope_first(m):
    """Query heads as [rope | nope]."""
    heads, nope, rope, _ = mla_sizes(m)
    reorder(m, r"q_b_proj\.weight$", per_head([*range(rope, rope + nope), *range(rope)], heads))


def rope_halves(m):
    heads, nope, rope, rank = mla_sizes(m)
    reorder(m, r"q_b_proj\.weight$", per_head(pairs_as_halves(rope, nope, nope + rope), heads))
    reorder(m, r"kv_a_proj_with_mqa\.weight$", pairs_as_halves(rope, rank, rank + rope))


def kv_norm_weights_ignored(m):
    m.change(r"kv_a_layernorm\.weight$", np.ones_like)


def q_norm_weights_ignored(m):
    m.change(r"q_a_layernorm\.weight$", np.ones_like)


def value_before_key(m):
    """Heads of kv_b_proj as [v | k_nope]; both have the same size here."""
    heads, nope, _, _ = mla_sizes(m)
    assert m.text_config()["v_head_dim"] == nope
    reorder(m, r"kv_b_proj\.weight$", per_head([*range(nope, 2 * nope), *range(nope)], heads))


def dsa_ignored(m):
    m.text_fields(index_topk=2048)


def index_topk_less(m):
    m.text_fields(index_topk=m.text_config()["index_topk"] - 1)


def index_no_bias(m):
    m.change(r"indexer\.k_norm\.bias$", np.zeros_like)


def index_reorder(m, order):
    reorder(m, r"indexer\.wq_b\.weight$", per_head(order, m.text_config()["index_n_heads"]))
    reorder(m, r"indexer\.wk\.weight$|indexer\.k_norm\.(weight|bias)$", order)


def index_rope_pairs(m):
    c = m.text_config()
    index_reorder(m, halves_as_pairs(c["qk_rope_head_dim"], c["index_head_dim"]))


def index_rope_last(m):
    c = m.text_config()
    dim, rope = c["index_head_dim"], c["qk_rope_head_dim"]
    index_reorder(m, [*range(dim - rope, dim), *range(dim - rope)])


GQA = (theta, rope_interleaved, gate_up_swapped)
FP8 = (scale_shifted, scale_ignored)
QWEN3 = (*GQA, gqa_modulo, qk_norm_weights_ignored)
SOFTMAX = (expert_off_by_one, one_expert_less)
QWEN3_5 = (*GQA, *FP8, norm_without_one, gated_norm_one_plus, gate_as_halves, gate_before_query, full_rotary,
           conv_reversed, value_heads_modulo, query_key_exchanged, decay_negated, decay_heads_shifted, no_dt_bias,
           beta_decay_exchanged)
DEEPSEEK = (scale_transposed, *FP8, theta, no_rope_scaling, rope_scaling(factor=20), no_mscale, rope_first, rope_halves, gate_up_swapped,
            kv_norm_weights_ignored, q_norm_weights_ignored, value_before_key, expert_off_by_one, one_expert_less,
            no_topk_norm, no_routed_scale, no_groups, no_bias, no_shared_expert)
MISTAKES = {
    "qwen2-tiny": (*GQA, gqa_modulo, no_bias_of("qkv"), no_bias_of("q"), no_bias_of("k"), no_bias_of("v")),
    "mistral-tiny": (*GQA, *FP8, gqa_modulo),
    "llama3-rope-tiny": (*GQA, no_rope_scaling, rope_scaling(factor=4), rope_scaling(low_freq_factor=2),
                         rope_scaling(high_freq_factor=8), rope_scaling(original_max_position_embeddings=128)),
    "llama-linear-rope-tiny": (*GQA, no_rope_scaling, rope_scaling(factor=2)),
    "llama-yarn-tiny": (*GQA, gqa_modulo, no_rope_scaling, rope_scaling(factor=2), rope_scaling(attention_factor=1.0),
                        rope_scaling(beta_slow=4), rope_scaling(original_max_position_embeddings=256)),
    "qwen3-tiny": QWEN3,
    "qwen3-fp8-tiny": (*QWEN3, scale_transposed, *FP8),
    "qwen3-moe-fp8-tiny": (*QWEN3, scale_transposed, *FP8, *SOFTMAX, no_topk_norm),
    "qwen3_5-fp8-tiny": (*QWEN3_5, scale_transposed),
    "qwen3_5_moe-fp8-tiny": (*QWEN3_5, *SOFTMAX, shared_gate_half, shared_gate_step, no_shared_expert),
    "deepseek_v3-fp8-tiny": DEEPSEEK,
    "deepseek_v32-fp8-tiny": (*DEEPSEEK, dsa_ignored, index_topk_less, index_no_bias, index_rope_pairs,
                              index_rope_last),
}


def moved(c, edit):
    """Loads the edited copy. -> the largest difference of the last logits to the golden ones."""
    with EditedModel(MODEL) as m:
        edit(m)
        m.save()
        c.ctl("load", "--model", m.folder)
        found = [c.logits(prompts[n]["ids"])[-1] for n in PROMPTS]
    assert all(np.isfinite(f).all() for f in found), edit.__name__
    difference = max(float(np.abs(f - logits[n + ".last"]).max()) for n, f in zip(PROMPTS, found))
    print("%-24s %-36s %.3g" % (MODEL, edit.__name__, difference))
    return difference


def wrong_layers(c):
    """Layers of another kind than the checkpoint has are no silent mistake: the missing tensors are named."""
    for first, text in ((0, "model.layers.0.mlp.gate.weight"), (2, "model.layers.1.mlp.gate_proj.weight")):
        with EditedModel(MODEL) as m:
            m.text_fields(first_k_dense_replace=first)
            m.save()
            _, said = c.refused("load", "--model", m.folder)
            assert text in said, said
            print("%-24s first_k_dense_replace %-14d %s" % (MODEL, first, said))


prompts, logits = golden(MODEL)
with Cluster(MODEL, 2) as c:
    right = moved(c, unchanged)
    assert right <= CLOSE, right
    for mistake in MISTAKES[MODEL]:
        assert moved(c, mistake) > max(LEAST, TIMES * right), "the golden comparison does not see %s" % mistake.__name__
    if MODEL.startswith("deepseek"):
        wrong_layers(c)
    assert moved(c, unchanged) == right, "the load of another model left something behind"
