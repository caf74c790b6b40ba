# SPDX-License-Identifier: Apache-2.0
"""safetensors files and checkpoint folders with numpy alone. Elements stay as stored: bf16 as uint16, FP8 as uint8."""
import json
import os
import re
import struct

import numpy

STORED = {"F32": numpy.dtype("<f4"), "BF16": numpy.dtype("<u2"), "F8_E4M3": numpy.dtype("u1"),
          "I32": numpy.dtype("<i4")}
BLOCK = 128


class Tensor:
    """kind: a key of STORED; data: an array of that type, in the tensor's shape."""

    def __init__(self, kind, data):
        self.kind = kind
        self.data = numpy.ascontiguousarray(data, STORED[kind])

    @classmethod
    def bf16(cls, values):
        """Rounds f32 to the nearest, ties to even."""
        bits = numpy.ascontiguousarray(values, "<f4").view("<u4")
        assert numpy.isfinite(values).all()
        return cls("BF16", ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype("<u2"))

    def f32(self):
        if self.kind == "F32":
            return self.data
        if self.kind == "BF16":
            return (self.data.astype("<u4") << 16).view("<f4")
        assert self.kind == "F8_E4M3", self.kind
        return E4M3[self.data]


def e4m3_table():
    """Sign, 4 bits of exponent with bias 7, 3 bits of mantissa; no infinity, 0x7f and 0xff are NaN."""
    out = numpy.empty(256, "<f4")
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = mantissa / 8 * 2.0 ** -6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        out[code] = numpy.nan if code & 127 == 127 else -value if code & 128 else value
    return out


E4M3 = e4m3_table()


def read(path):
    """-> name -> Tensor"""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        raw = f.read()
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            out[name] = Tensor(t["dtype"], numpy.frombuffer(raw[begin:end], STORED[t["dtype"]]).reshape(t["shape"]))
    return out


def write(path, tensors):
    """Wide elements first, so that every tensor is aligned to its elements."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    names = sorted(tensors, key=lambda n: (-tensors[n].data.itemsize, n))
    for name in names:
        t = tensors[name]
        header[name] = {"dtype": t.kind, "shape": list(t.data.shape), "data_offsets": [at, at + t.data.nbytes]}
        at += t.data.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(raw)) + raw)
        for name in names:
            f.write(tensors[name].data.tobytes())


def read_folder(folder):
    """All tensors of a checkpoint, by its index if it has one."""
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index, encoding="utf-8") as f:
            files = sorted(set(json.load(f)["weight_map"].values()))
    out = {}
    for name in files:
        out.update(read(os.path.join(folder, name)))
    return out


def scale_name(name):
    return re.sub(r"\.weight$", ".weight_scale_inv", name)


def block_grid(scales, shape):
    """A scale for each element of a matrix."""
    return scales.repeat(BLOCK, 0).repeat(BLOCK, 1)[:shape[0], :shape[1]]


def weight(tensors, name):
    """The f32 values of a tensor, FP8 times its block scales."""
    t = tensors[name]
    if t.kind != "F8_E4M3":
        return t.f32()
    return t.f32() * block_grid(tensors[scale_name(name)].f32(), t.data.shape)
