# SPDX-License-Identifier: Apache-2.0
"""Editable copies of a fixture's model folder: damaged files, or other weights in good ones."""
import json
import os
import re
import shutil
import struct
import sys
import tempfile

from cluster import FIXTURES

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
from tensor_file import Tensor, read_folder, scale_name, weight, write


class ModelCopy:
    """with ModelCopy("qwen3-tiny") as m: m.config(rope_theta=1)"""

    def __init__(self, model):
        self.folder = tempfile.mkdtemp(prefix="dkm", dir="/tmp")
        for f in os.listdir(os.path.join(FIXTURES, model)):
            path = os.path.join(FIXTURES, model, f)
            if os.path.isfile(path):
                shutil.copy(path, self.folder)
                os.chmod(self.path(f), 0o644)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        shutil.rmtree(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def remove(self, *names):
        for n in names:
            os.unlink(self.path(n))

    def text(self, name, content):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(content)

    def json(self, name, edit):
        """edit(object) changes it."""
        with open(self.path(name), encoding="utf-8") as f:
            value = json.load(f)
        edit(value)
        self.text(name, json.dumps(value))

    def config(self, *without, **fields):
        def edit(c):
            c.update(fields)
            for name in without:
                del c[name]
        self.json("config.json", edit)

    # ---- safetensors

    def shards(self):
        return sorted(f for f in os.listdir(self.folder) if f.endswith(".safetensors"))

    def header(self, shard, edit):
        """edit(header) changes the header of a shard; the data stay as they are."""
        with open(self.path(shard), "rb") as f:
            length = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(length))
            data = f.read()
        edit(header)
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        with open(self.path(shard), "wb") as f:
            f.write(struct.pack("<Q", len(raw)) + raw + data)

    def headers(self):
        """shard -> header, offset of the data"""
        out = {}
        for shard in self.shards():
            with open(self.path(shard), "rb") as f:
                length = struct.unpack("<Q", f.read(8))[0]
                out[shard] = json.loads(f.read(length)), 8 + length
        return out

    def tensors(self):
        """name -> shape"""
        return {name: t["shape"] for h, _ in self.headers().values() for name, t in h.items() if name != "__metadata__"}

    def find(self, tensor):
        """-> shard, first byte in the file, bytes"""
        for shard, (header, base) in self.headers().items():
            if tensor in header:
                begin, end = header[tensor]["data_offsets"]
                return shard, base + begin, end - begin
        raise KeyError(tensor)

    def read(self, tensor):
        shard, begin, size = self.find(tensor)
        with open(self.path(shard), "rb") as f:
            f.seek(begin)
            return f.read(size)

    def edit(self, tensor, **fields):
        """Changes a tensor's entry: dtype, shape, data_offsets."""
        self.header(self.find(tensor)[0], lambda h: h[tensor].update(fields))

    def drop(self, tensor):
        """Takes a tensor with its bytes out of its shard, and out of the index."""
        shard, begin, size = self.find(tensor)
        with open(self.path(shard), "rb") as f:
            raw = f.read()

        def edit(header):
            first = header.pop(tensor)["data_offsets"][0]
            for name, t in header.items():
                if name != "__metadata__" and t["data_offsets"][0] >= first:
                    t["data_offsets"] = [o - size for o in t["data_offsets"]]
        with open(self.path(shard), "wb") as f:
            f.write(raw[:begin] + raw[begin + size:])
        self.header(shard, edit)
        if os.path.exists(self.path("model.safetensors.index.json")):
            self.json("model.safetensors.index.json", lambda i: i["weight_map"].pop(tensor))

    def poke(self, tensor, offset, raw):
        shard, begin, size = self.find(tensor)
        assert offset + len(raw) <= size
        with open(self.path(shard), "r+b") as f:
            f.seek(begin + offset)
            f.write(raw)

    def cut(self, name, size):
        os.truncate(self.path(name), size if size >= 0 else os.path.getsize(self.path(name)) + size)


class EditedModel(ModelCopy):
    """A copy whose weights are changed as numbers. with EditedModel(name) as m: m.put(tensor, values); m.save()

    save() writes one shard without an index. Names are the checkpoint's own; layers for multi-token prediction and the
    vision tower stay as they are.
    """

    def __init__(self, model):
        super().__init__(model)
        self.stored = read_folder(self.folder)

    def text_config(self):
        with open(self.path("config.json"), encoding="utf-8") as f:
            c = json.load(f)
        return c.get("text_config", c)

    def text_fields(self, *without, **fields):
        """Changes fields of the language model's config, wherever that is."""
        def edit(c):
            text = c.get("text_config", c)
            text.update(fields)
            for name in without:
                del text[name]
        self.json("config.json", edit)

    def names(self, pattern):
        """Tensors of the layers that are run whose names match. At least one."""
        layers = self.text_config()["num_hidden_layers"]
        found = [n for n in self.stored if re.search(pattern, n) and not re.search(r"^mtp\.|visual\.", n)]
        found = [n for n in found if ".layers." not in n or int(n.split(".layers.")[1].split(".")[0]) < layers]
        assert found, pattern
        return found

    def values(self, name):
        """f32; FP8 times its scales."""
        return weight(self.stored, name)

    def put(self, name, values):
        """f32, without scales."""
        self.stored[name] = Tensor("F32", values)
        if scale_name(name) != name:
            self.stored.pop(scale_name(name), None)

    def change(self, pattern, function):
        """Each matching tensor becomes function(its values)."""
        for name in self.names(pattern):
            self.put(name, function(self.values(name)))

    def rename(self, pattern, function):
        """Each matching tensor, as it is stored, goes under the name function(its name)."""
        moved = {n: self.stored.pop(n) for n in self.names(pattern)}
        self.stored.update({function(n): t for n, t in moved.items()})

    def save(self):
        self.remove(*(f for f in os.listdir(self.folder) if ".safetensors" in f))
        write(self.path("model.safetensors"), self.stored)
