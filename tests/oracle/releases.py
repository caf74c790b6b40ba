# SPDX-License-Identifier: Apache-2.0
"""The files of tests/fixtures/releases that come from transformers, made again and compared with what is there.

usage: releases.py [--write] [NAME...]     (default: every release; without --write nothing is changed)

NAME-transformers5/config.json: config.json of NAME as transformers writes it after reading it. "elements" of
parameters.json: how many weights the causal language model of that config.json has, counted on torch's meta device
(tied weights once; routers' correction biases too; no FP8 scales, no layers for multi-token prediction). Its other fields, and the config.json
files of the releases themselves, come from the sources that parameters.json names. The exit status is 1 if anything differs.
"""
import difflib
import json
import os
import sys
import tempfile

import torch
import transformers

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures", "releases")
SUFFIX = "-transformers5"
# The small models of the family have tied embeddings; the release that the file is made from has not.
CHANGED = {"Qwen3.5-27B-tied" + SUFFIX: ("Qwen3.5-27B", {"tie_word_embeddings": True})}


def read_text(*path):
    with open(os.path.join(FOLDER, *path), encoding="utf-8") as f:
        return f.read()


def read_config(name, fields=None):
    """The release's config.json, with some fields changed, as transformers reads it."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump({**json.loads(read_text(name, "config.json")), **(fields or {})}, f)
        return transformers.AutoConfig.from_pretrained(folder)


def written(name):
    """The text of config.json as transformers writes it."""
    config = read_config(*CHANGED.get(name, (name.removesuffix(SUFFIX),)))
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            return f.read()


def elements(name):
    config = read_config(name)
    text = config.get_text_config()
    if text is not config:      # transformers reads the field outside text_config for the whole model
        text.tie_word_embeddings = config.tie_word_embeddings
    text.quantization_config = None
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(text)
    stored = model.state_dict()
    tensors = [*model.parameters(), *(b for n, b in model.named_buffers() if n in stored)]   # routers' biases are buffers
    return type(model).__name__, sum(t.numel() for t in tensors)


def config_check(name, write):
    made, kept = written(name), read_text(name, "config.json")
    if made == kept:
        return True
    sys.stdout.writelines(difflib.unified_diff(kept.splitlines(True), made.splitlines(True), name, "made now"))
    if write:
        with open(os.path.join(FOLDER, name, "config.json"), "w", encoding="utf-8") as f:
            f.write(made)
    return False


def main():
    write = "--write" in sys.argv[1:]
    about = json.loads(read_text("parameters.json"))
    names = [a for a in sys.argv[1:] if a != "--write"] or list(about)
    same = True
    for name in names:
        files = config_check(name, write) if name.endswith(SUFFIX) else True
        kind, count = elements(name)
        alike = count == about[name]["elements"] and files
        print("%s: %s, %d elements%s" % (name, kind, count, "" if alike else ": DIFFERS"), flush=True)
        about[name]["elements"] = count
        same = same and alike
    if write and not same:
        with open(os.path.join(FOLDER, "parameters.json"), "w", encoding="utf-8") as f:
            f.write(json.dumps(about, indent=2, ensure_ascii=False) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
