"""The files of Hugging Face's models and of the references, written by hand."""
import json
import struct

import numpy as np

TYPES = {"F32": "<f4", "I32": "<i4"}


def to_bf16(values):
    """The upper halves of float32 numbers, rounded to the nearest, ties to even."""
    bits = np.asarray(values, "<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def from_bf16(halves):
    return (halves.astype("<u4") << 16).view("<f4")


def write_safetensors(path, tensors, dtype="F32"):
    """Whole numbers become I32, others `dtype`."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(tensors):
        tensor = np.asarray(tensors[name])
        stored = dtype if tensor.dtype.kind == "f" else "I32"
        raw = to_bf16(tensor) if stored == "BF16" else tensor.astype(TYPES[stored])
        raw = np.ascontiguousarray(raw).tobytes()
        header[name] = {"dtype": stored, "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def token_bytes(ids):
    return np.asarray(ids).astype("<u2").tobytes()


def write_json(path, members):
    """A line for each member."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in members.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
