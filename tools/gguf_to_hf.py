#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn a GGUF file of the llama architecture into a Hugging Face folder.

Weights are widened to float32, put into Hugging Face's row order and rounded to bfloat16. With --fp8 the linear layers
are then quantised to FP8 (e4m3) with one bfloat16 scale for each block of 128 x 128, as the FP8 releases of large
models have them. Needs the Python packages numpy and gguf.
"""
import argparse
import json
import os
import re
import sys

try:
    import numpy as np
    import gguf
    from gguf.quants import dequantize
except ImportError as missing:
    sys.exit("gguf_to_hf.py needs the Python packages numpy and gguf (%s): pip install numpy gguf" % missing)

BLOCK = 128
E4M3_MAX = 448.0

# Token types of GGUF that are matched as a whole before the text is split.
CONTROL, USER_DEFINED = 3, 4

# GGUF's tensor names -> Hugging Face's, without the ".weight" that both have.
OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Unsupported(Exception):
    """The file is fine, but this tool does not convert files like it."""


# --- numbers ---------------------------------------------------------------------------------------------------------

def bf16_bits(values):
    """float32 -> the upper 16 bits after rounding to nearest, ties to even. All values are finite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def e4m3_table():
    """The values of the codes 0x00 to 0x7e: 4 bits of exponent with bias 7, 3 bits of mantissa."""
    code = np.arange(0x7F)
    exponent, mantissa = code >> 3, code & 7
    normal = np.ldexp((8.0 + mantissa), exponent - 10)
    return np.where(exponent == 0, np.ldexp(mantissa.astype(np.float64), -9), normal).astype(np.float32)


E4M3 = e4m3_table()
E4M3_MIDDLES = (E4M3[:-1] + E4M3[1:]) / np.float32(2)   # exact in float32


def e4m3_codes(values):
    """Nearest codes, ties to the even one. |values| are at most 448."""
    size = np.abs(values)
    code = np.searchsorted(E4M3_MIDDLES, size, side="left")
    tie = np.take(E4M3_MIDDLES, code, mode="clip") == size
    code += tie & (code & 1 == 1)
    return code.astype(np.uint8) | (np.signbit(values).astype(np.uint8) << 7)


def fp8_quantise(bits):
    """bf16 matrix -> e4m3 codes of the same shape, bf16 scales [ceil(rows / 128), ceil(cols / 128)].

    The scale is rounded before it divides, so that codes and stored scales belong together."""
    rows, cols = bits.shape
    down, across = -(-rows // BLOCK), -(-cols // BLOCK)
    padded = np.zeros((down * BLOCK, across * BLOCK), dtype=np.float32)
    padded[:rows, :cols] = bf16_values(bits)
    blocks = padded.reshape(down, BLOCK, across, BLOCK)
    largest = np.abs(blocks).max(axis=(1, 3))
    scales = bf16_bits(np.maximum(largest / np.float32(E4M3_MAX), np.float32(1e-12)))
    scaled = np.clip(blocks / bf16_values(scales)[:, None, :, None], -E4M3_MAX, E4M3_MAX)
    return e4m3_codes(scaled.reshape(padded.shape)[:rows, :cols]), scales


# --- the GGUF side ---------------------------------------------------------------------------------------------------

class Source:
    """What this tool needs of a GGUF file."""

    def __init__(self, path):
        try:
            self.reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as e:
            raise Unsupported("cannot be read as GGUF: %s" % e)
        architecture = self.get("general.architecture")
        if architecture != "llama":
            raise Unsupported("its architecture is %s; only llama is converted" % architecture)
        if any(key.startswith("llama.rope.scaling") for key in self.reader.fields):
            raise Unsupported("it uses rope scaling, which is not converted")
        if self.get("llama.expert_count"):
            raise Unsupported("it is a mixture of experts, which is not converted")

    def get(self, key, default=None):
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def need(self, key):
        value = self.get(key)
        if value is None:
            raise Unsupported("it has no field %s" % key)
        return value

    def decimal(self, key):
        """A float32 as the shortest decimal that means it: 1e-05, not 9.999999747378752e-06."""
        return float(str(np.float32(self.need(key))))

    def model_tensors(self):
        """Hugging Face's name -> tensor of the reader."""
        return {hf_name(t.name): t for t in self.reader.tensors}

    @staticmethod
    def values(tensor):
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        shape = shape_of(tensor)
        if list(values.shape) != shape:
            raise Unsupported("tensor %s: shape %s, expected %s" % (tensor.name, list(values.shape), shape))
        if not np.isfinite(values).all():
            raise Unsupported("tensor %s has values that are not finite" % tensor.name)
        return values


def shape_of(tensor):
    return [int(n) for n in reversed(tensor.shape)]     # GGUF lists the fastest dimension first


def hf_name(name):
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    layer, part = match.groups() if match else (None, None)
    known = (OUTER_NAMES if layer is None else LAYER_NAMES).get(part)
    if known is None:
        raise Unsupported("tensor %s is not part of a plain llama model" % name)
    return known + ".weight" if layer is None else "model.layers.%d.%s.weight" % (int(layer), known)


def rope_halves(values, heads):
    """GGUF keeps the rows of q and k so that rotation turns (2i, 2i + 1); Hugging Face turns (i, i + d/2)."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(values.shape)


# --- the Hugging Face side -------------------------------------------------------------------------------------------

def model_config(source, tied, fp8):
    hidden = source.need("llama.embedding_length")
    heads = source.need("llama.attention.head_count")
    head_dim = source.get("llama.attention.key_length", hidden // heads)
    if source.get("llama.rope.dimension_count", head_dim) != head_dim:
        raise Unsupported("it rotates only a part of each head, which is not converted")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "bos_token_id": source.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": source.need("tokenizer.ggml.eos_token_id"),
        "pad_token_id": source.get("tokenizer.ggml.padding_token_id"),
        "hidden_size": hidden,
        "intermediate_size": source.need("llama.feed_forward_length"),
        "num_hidden_layers": source.need("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": source.need("llama.context_length"),
        "rms_norm_eps": source.decimal("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": source.decimal("llama.rope.freq_base"),
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": len(source.need("tokenizer.ggml.tokens")),
    }
    if fp8:
        config["quantization_config"] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [BLOCK, BLOCK],
        }
    return config


def pre_tokenizer(name):
    """How text is cut before merging, by GGUF's name for it."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if name == "gpt-2":
        return byte_level
    if name == "smollm":
        return {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]}
    raise Unsupported("its pre-tokenizer is %s; only gpt-2 and smollm are converted" % name)


def tokenizer_files(source):
    """-> contents of tokenizer.json and tokenizer_config.json"""
    if source.need("tokenizer.ggml.model") != "gpt2":
        raise Unsupported("its tokenizer is %s; only byte-level BPE is converted" % source.get("tokenizer.ggml.model"))
    for flag in ("add_bos_token", "add_space_prefix"):
        if source.get("tokenizer.ggml." + flag):
            raise Unsupported("its tokenizer has %s set, which is not converted" % flag)
    tokens = source.need("tokenizer.ggml.tokens")
    added = []
    for token_id, (text, kind) in enumerate(zip(tokens, source.need("tokenizer.ggml.token_type"))):
        if kind in (CONTROL, USER_DEFINED):
            added.append({"id": token_id, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": kind == CONTROL})
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer(source.get("tokenizer.ggml.pre")),
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token_id for token_id, text in enumerate(tokens)},
            "merges": source.need("tokenizer.ggml.merges"),
        },
    }
    described = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(a["id"]): {key: a[key] for key in described} for a in added},
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token_id = source.get("tokenizer.ggml.%s_token_id" % key)
        config[name + "_token"] = None if token_id is None else tokens[token_id]
    config["chat_template"] = source.get("tokenizer.chat_template")
    config["clean_up_tokenization_spaces"] = False
    config["model_max_length"] = source.need("llama.context_length")
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    return tokenizer, config


class Safetensors:
    """A safetensors file whose tensors are written in any order, one at a time."""

    ELEMENT_BYTES = {"BF16": 2, "F8_E4M3": 1}

    def __init__(self, file, tensors):
        """tensors: name -> (dtype, shape). Wider types come first, then the names rise: the order in which
        the format's own library writes them."""
        header, at = {"__metadata__": {"format": "pt"}}, 0
        self.places = {}
        for name in sorted(tensors, key=lambda n: (-self.ELEMENT_BYTES[tensors[n][0]], n)):
            dtype, shape = tensors[name]
            size = self.ELEMENT_BYTES[dtype] * int(np.prod(shape, dtype=np.int64))
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            self.places[name] = (at, size)
            at += size
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self.file, self.data_start, self.total = file, 8 + len(text), 8 + len(text) + at
        file.write(len(text).to_bytes(8, "little") + text)

    def put(self, name, array):
        begin, size = self.places.pop(name)
        data = array.tobytes()
        assert len(data) == size, name
        self.file.seek(self.data_start + begin)
        self.file.write(data)

    def finish(self):
        assert not self.places, "tensors without data"
        self.file.flush()
        os.fsync(self.file.fileno())


def is_linear(name):
    return name.endswith("_proj.weight")


def scale_name(name):
    return name + "_scale_inv"


def write_weights(source, config, path, fp8, progress):
    tensors = source.model_tensors()
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    layout = {}
    for name, tensor in tensors.items():
        shape = shape_of(tensor)
        layout[name] = ("F8_E4M3" if fp8 and is_linear(name) else "BF16", shape)
        if fp8 and is_linear(name):
            layout[scale_name(name)] = ("BF16", [-(-n // BLOCK) for n in shape])
    with open(path, "wb") as file:
        out = Safetensors(file, layout)
        for done, (name, tensor) in enumerate(tensors.items(), 1):
            values = source.values(tensor)
            turned = heads.get(name.split(".")[-2])
            bits = bf16_bits(rope_halves(values, turned) if turned else values)
            if fp8 and is_linear(name):
                codes, scales = fp8_quantise(bits)
                out.put(name, codes)
                out.put(scale_name(name), scales)
            else:
                out.put(name, bits)
            progress(done, len(tensors))
        out.finish()
    return len(layout), out.total


def convert(gguf_path, folder, fp8, progress):
    """-> number of tensors and bytes of the weights. config.json is written last: a folder that has it is complete."""
    source = Source(gguf_path)
    tied = not any(t.name == "output.weight" for t in source.reader.tensors)
    config = model_config(source, tied, fp8)
    tokenizer, tokenizer_config = tokenizer_files(source)
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    os.makedirs(folder, exist_ok=True)
    weights = os.path.join(folder, "model.safetensors")
    count, size = write_weights(source, config, weights + ".part", fp8, progress)
    os.replace(weights + ".part", weights)
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", tokenizer_config),
                          ("generation_config.json", {"_from_model_config": True} | ends), ("config.json", config)):
        path = os.path.join(folder, name)
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, ensure_ascii=False)
            file.write("\n")
        os.replace(path + ".part", path)
    return count, size


def show_progress(done, total):
    if sys.stderr.isatty():
        print("\r%d of %d tensors" % (done, total), end="\n" if done == total else "", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", help="the file to read")
    parser.add_argument("folder", help="the folder to write; it is made, and files in it are replaced")
    parser.add_argument("--fp8", action="store_true", help="quantise the linear layers to FP8 with block scales")
    args = parser.parse_args()
    try:
        count, size = convert(args.gguf, args.folder, args.fp8, show_progress)
    except Unsupported as e:
        sys.exit("%s: %s" % (args.gguf, e))
    except OSError as e:
        sys.exit(str(e))
    print("%s: %d tensors, %.1f MB" % (args.folder, count, size / 1e6))


if __name__ == "__main__":
    main()
