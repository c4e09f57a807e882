"""Files made to cost more than their size, or to point where nothing may."""

from __future__ import annotations

import struct
import time
import tracemalloc

import pytest
from tflgpu.errors import BudgetError, ModelError
from tflgpu.tflite.read import read_model
from tflgpu.tflite.schema import layout
from tflgpu.tflite.write import write_model

from tests.tflite import samples


def _repeat_vector(data: bytearray, name: str, count: int) -> bytes:
    """Move the root's vector of tables to the end, with its first table ``count`` times."""
    root = struct.unpack_from("<I", data)[0]
    vtable = root - struct.unpack_from("<i", data, root)[0]
    slot = layout("Model").fields[name].slot
    at = root + struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0]
    vector = at + struct.unpack_from("<I", data, at)[0]
    table = vector + 4 + struct.unpack_from("<I", data, vector + 4)[0]
    data.extend(bytes(-len(data) % 4))
    end = len(data)
    struct.pack_into("<I", data, at, end - at)
    data += struct.pack("<I", count)
    for i in range(count):
        # Tables lie before the vector; offsets wrap around, as a hostile file may try.
        data += struct.pack("<I", (table - (end + 4 + 4 * i)) % 2**32)
    return bytes(data)


def test_offsets_cannot_wrap_backwards() -> None:
    data = _repeat_vector(bytearray(write_model(samples.conv())), "subgraphs", 3)
    with pytest.raises(ModelError, match="subgraph 0: needs 1 bytes at offset"):
        read_model(data)


def _shared(count: int, tail: bytes) -> bytes:
    """A model of ``count`` subgraphs that are one table, with ``count`` tensors that are one."""
    out = bytearray(b"\0\0\0\0TFL3")

    def vtable(*offsets: int) -> int:
        out.extend(bytes(len(out) % 2))
        out.extend(struct.pack(f"<{2 + len(offsets)}H", 4 + 2 * len(offsets), 16, *offsets))
        return len(out) - 4 - 2 * len(offsets)

    model_vtable = vtable(4, 0, 8, 0, 12)
    subgraph_vtable = vtable(4)
    tensor_vtable = vtable(0, 0, 0, 4) if tail else vtable()
    buffer_vtable = vtable()
    out.extend(bytes(-len(out) % 4))
    model = len(out)
    # Version 3; the subgraphs follow the one buffer, which follows the table.
    out += struct.pack("<iIII", model - model_vtable, 3, 20, 4)
    struct.pack_into("<I", out, 0, model)
    buffer = len(out) + 8
    out += struct.pack("<IIi", 1, 4, buffer - buffer_vtable)

    def vector() -> None:
        """A vector of offsets, all to what follows it."""
        out.extend(struct.pack("<I", count))
        for i in range(count):
            out.extend(struct.pack("<I", 4 * (count - i)))

    vector()
    subgraph = len(out)
    out.extend(struct.pack("<iI", subgraph - subgraph_vtable, 4))
    vector()
    position = len(out)
    out.extend(struct.pack("<iI", position - tensor_vtable, 4))
    out.extend(struct.pack("<I", len(tail)) + tail + b"\0")
    return bytes(out)


def test_small_shared_tables_are_read() -> None:
    model = read_model(_shared(3, b"same"))
    assert [[t.name for t in s.tensors] for s in model.subgraphs] == [["same"] * 3] * 3


@pytest.mark.parametrize("tail", [b"", b"x" * 100_000], ids=["tables", "names"])
def test_shared_tables_cannot_multiply_time_or_memory(tail: bytes) -> None:
    data = _shared(1 << 15, tail)
    start = time.process_time()  # whatever else uses this machine's processors
    tracemalloc.start()
    try:
        with pytest.raises(BudgetError, match="the file asks for more than") as error:
            read_model(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(error.value)) < 500
    assert peak < 200 * len(data)
    assert time.process_time() - start < 30
