# SPDX-License-Identifier: Apache-2.0
"""Renders the cases of tests/fixtures/tokenizers/chat_variants.json again with the released templates, in jinja2.

usage: chat_variants.py FOLDER [FORMAT...]     (needs jinja2; default: every format that has a FOLDER/FORMAT.jinja)

The templates are texts of the model releases and are not kept here; README.md says where public copies are. The
environment is the one that transformers renders chats in, without strftime_now, so that Llama 3.1 has the date of its
template and not today's. Prints each case that differs; the exit status is 1 if one does, or if nothing was compared.
"""
import collections
import copy
import json
import os
import sys

import jinja2
import jinja2.sandbox

CASES = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures", "tokenizers",
                     "chat_variants.json")
# Formats whose tool arguments a server parses before it renders: their templates print them as JSON themselves.
PARSED = ("qwen2", "qwq", "llama3_1", "mistral_nemo", "qwen3_5_thinking_off")
ENDS = {"deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"), "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
        "mistral": ("<s>", "</s>"), "qw": (None, "<|im_end|>")}


def environment():
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def with_objects(messages):
    """The same messages; arguments of tool calls that are JSON texts are objects."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls") or []:
            arguments = call["function"]["arguments"]
            if isinstance(arguments, str):
                call["function"]["arguments"] = json.loads(arguments)
    return messages


def render(template, case):
    """-> text, error; one of them is None"""
    name = case["family"]
    bos, eos = next(ends for start, ends in ENDS.items() if name.startswith(start))
    messages = with_objects(case["messages"]) if name in PARSED else case["messages"]
    try:
        return template.render(messages=messages, tools=case["tools"], bos_token=bos, eos_token=eos, **case["args"]), None
    except Exception as e:      # a template that adds a text and None fails with a TypeError
        return None, "%s: %s" % (type(e).__name__, e)


def differs(template, case):
    text, error = render(template, case)
    if ("error" in case) == (error is not None) and text == case.get("text"):
        return False
    print("%s, %s, %s:\n  expected %r\n  rendered %r" % (case["family"], case["case"], json.dumps(case["args"]),
                                                        case.get("text", case.get("error")), text or error))
    return True


def main():
    folder, only = sys.argv[1], sys.argv[2:]
    env, counts = environment(), collections.defaultdict(lambda: [0, 0])
    with open(CASES, encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    templates = {}
    for name in only or sorted({c["family"] for c in cases}):
        path = os.path.join(folder, name + ".jinja")
        if only or os.path.exists(path):
            with open(path, encoding="utf-8", newline="") as f:
                templates[name] = env.from_string(f.read())
        else:
            print("%s: no template in %s" % (name, folder))
    for case in cases:
        if case["family"] in templates:
            count = counts[case["family"]]
            count[0] += 1
            count[1] += differs(templates[case["family"]], case)
    for name, (compared, different) in counts.items():
        print("%s: %d cases, %d differ" % (name, compared, different))
    return 0 if counts and not any(c[1] for c in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
