# SPDX-License-Identifier: Apache-2.0
"""The plain families as transformers models in float32, and the text that they memorise."""
import json
import os
import random

import torch
import transformers
from tokenizers import Tokenizer

from tensor_file import read_folder, weight

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.path.join(os.path.dirname(HERE), "fixtures")
TOKENIZER = os.path.join(FIXTURES, "qwen3-tiny", "tokenizer.json")
CLASSES = {
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
}
NOT_FOR_THE_MODEL = ("architectures", "dtype", "model_type", "quantization_config", "torch_dtype",
                     "transformers_version")


def load_json(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        return json.load(f)


def new_model(config):
    make_config, make_model = CLASSES[config["model_type"]]
    c = make_config(**{k: v for k, v in json.loads(json.dumps(config)).items() if k not in NOT_FOR_THE_MODEL})
    c._attn_implementation = "eager"
    return make_model(c).float().eval()


def stored_model(folder):
    """A transformers model with the weights of a checkpoint as stored: bf16 widened, FP8 times its scales."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    tensors, model = read_folder(folder), new_model(config)
    state = {n: torch.from_numpy(weight(tensors, n).copy()) for n in tensors if not n.endswith("weight_scale_inv")}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if config["tie_word_embeddings"] else set())
    model.tie_weights()
    return config, model


class Text:
    """ChatML without a default system message, and a small byte-level tokenizer."""

    def __init__(self):
        self.tokenizer = Tokenizer.from_file(TOKENIZER)
        self.dialogues = load_json("plain_dialogues.json")
        self.end = self.tokenizer.token_to_id("<|im_end|>")
        self.pad = self.tokenizer.token_to_id("<|endoftext|>")

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    @staticmethod
    def render(turns):
        """turns: (role, content); the last is the user's."""
        return "".join("<|im_start|>%s\n%s<|im_end|>\n" % t for t in turns) + "<|im_start|>assistant\n"

    def conversation(self, rng, length):
        """Questions and answers up to a question, at most `length` tokens if that is possible -> turns, last answer"""
        turns = [("system", rng.choice(self.dialogues["system"]))] if rng.random() < 0.3 else []
        question, answer = rng.choice(self.dialogues["pairs"])
        turns.append(("user", question))
        while True:
            q, a = rng.choice(self.dialogues["pairs"])
            longer = turns + [("assistant", answer), ("user", q)]
            if len(self.encode(self.render(longer) + a)) > length:
                return turns, answer
            turns, answer = longer, a

    def sample(self, rng, length):
        """-> ids, weight of each in the loss"""
        turns, answer = self.conversation(rng, length)
        head = self.encode(self.render(turns))
        tail = self.encode(answer) + [self.end]
        after = self.encode("\n") + [self.pad] * 4
        return head + tail + after, [0.1] * len(head) + [1.0] * len(tail) + [0.3] * len(after)

    def batch(self, rng, rows, length):
        samples = [self.sample(rng, length) for _ in range(rows)]
        width = max(len(s[0]) for s in samples)
        ids = torch.tensor([s[0] + [self.pad] * (width - len(s[0])) for s in samples])
        return ids, torch.tensor([s[1] + [0.0] * (width - len(s[1])) for s in samples])


def generator(seed):
    return random.Random(seed)
