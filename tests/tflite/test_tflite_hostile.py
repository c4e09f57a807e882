"""Files made to cost more than their size, or to point where nothing may."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import BudgetError, ModelError, UnsupportedError
from tflgpu.ir import budget
from tflgpu.ir.budget import Budget
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph
from tflgpu.ops.base import Fields
from tflgpu.ops.flexible import read_map, write_map
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes import fold_constants
from tflgpu.passes.base import PassContext
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.flat import FlatFile
from tflgpu.tflite.read import read_model
from tflgpu.tflite.schema import layout
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, raising
from tests.small_models import small_model, tensor_of
from tests.tflite import fuzz, samples


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


@pytest.mark.parametrize("byte", [0, 1, 2, 255])
def test_any_byte_but_0_is_true(byte: int) -> None:
    """As in C++."""
    # The offset to the table; a vtable with one field; the table, 8 bytes behind it.
    data = struct.pack("<I3HxxiB", 12, 6, 5, 4, 8, byte)
    table = FlatFile(memoryview(data)).root("options", "ReducerOptions")
    assert table.scalar("keep_dims") is (byte != 0)


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
    with pytest.raises(BudgetError, match="the file asks for more than") as error:
        read_model(data)
    assert time.process_time() - start < 30
    tracemalloc.start()  # by which the same takes five times as long
    try:
        with pytest.raises(BudgetError):
            read_model(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(error.value)) < 500
    assert peak < 200 * len(data)


# What small files ask for before a run: refused by one error where it is more than any model
# needs.


ROOT = Path(__file__).parents[2]
BOOL, I32 = DType.BOOL, DType.I32
PACKED = (DType.I2, DType.I4, DType.U4)
HELD_BY_NO_ARRAY = (DType.BF16, DType.RESOURCE)


def _laughs(levels: int, width: int = 8) -> bytes:
    """A flexbuffer of vectors whose elements all are the vector before: width ** levels numbers."""
    found = bytearray([1, 7, 4])  # a vector of one number
    child = 1
    for _ in range(levels):
        found.append(width)
        at = len(found)
        found += bytes(at + i - child for i in range(width)) + bytes([40] * width)
        child = at
    return bytes(found) + bytes([len(found) - child, 40, 1])


@pytest.mark.timeout(60)
def test_options_whose_values_share_one_another() -> None:
    options = _laughs(12)
    assert len(options) < 230
    with pytest.raises(
        BudgetError, match=r"Op: the custom options: the file asks for more than \d+ op"
    ):
        read_map(Fields("Op", {}, options))
    with pytest.raises(ModelError, match="are list, not a map"):
        read_map(Fields("Op", {}, _laughs(0)))


@pytest.mark.timeout(60)
def test_options_whose_keys_are_one_long_text() -> None:
    text, count = b"k" * (8 << 20) + bytes(4), 16000
    end = len(text) + 4
    keys = b"".join(struct.pack("<I", end + 4 * i) for i in range(count))
    values = struct.pack("<III", 4 * count, 4, count) + bytes(4 * count) + bytes([6] * count)
    options = text + struct.pack("<I", count) + keys + values
    with pytest.raises(BudgetError, match=r"Op: the custom options: the file asks for more than"):
        read_map(Fields("Op", {}, options + struct.pack("<I", 5 * count) + bytes([38, 4])))


def test_options_that_are_read() -> None:
    values = {
        "a": 1,
        "b": [1, "two", 3.5],
        "c": {"d": True},
        "e": [1, 2, 3],
        "f": None,
        "g": "text",
    }
    assert {n: read_map(Fields("Op", {}, write_map(values))).values[n] for n in values} == values


def test_no_byte_of_options_is_trusted() -> None:
    """Any other exception would come out here."""
    good = write_map({"a": 1, "text": "x", "v": [1, 2, 3], "w": ["a", 2.5]})
    refused = 0
    for at in range(len(good)):
        for value in range(256):
            bad = bytearray(good)
            bad[at] = value
            try:
                read_map(Fields("Op", {}, bytes(bad)))
            except ModelError:
                refused += 1
    assert refused > 1000


def _fan(levels: int, width: int) -> bytes:
    """Each level runs the next by ``width`` branches, one after another."""
    bodies = []
    for level in range(levels):
        tensors = [TensorSpec("c", (), BOOL)] + [
            TensorSpec(f"x{i}", (2,)) for i in range(width + 1)
        ]
        inside = {"then_subgraph_index": level + 1, "else_subgraph_index": level + 1}
        given = [0, 0] if level < levels - 1 else [0]
        operators = [OperatorSpec("IF", inside, [*given, i + 1], [i + 2]) for i in range(width)]
        bodies.append(SubgraphSpec(tensors, operators, [0, 1], [width + 1]))
    last = [TensorSpec("x", (2,)), TensorSpec("y", (2,))]
    bodies.append(SubgraphSpec(last, [OperatorSpec("NEG", {}, [0], [1])], [0], [1]))
    main, *others = bodies
    return write_model(
        ModelSpec(main.tensors, main.operators, main.inputs, main.outputs, subgraphs=others)
    )


def test_branches_that_run_branches(tmp_path: Path) -> None:
    """In a process of its own: LiteRT would prepare 20 ** 8 of them, in one call."""
    path = tmp_path / "fan.tflite"
    path.write_bytes(_fan(8, 20))
    program = "import sys, tflgpu; tflgpu.Interpreter(sys.argv[1]).allocate_tensors()"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "BudgetError" in done.stderr
    assert "subgraph 0, with the subgraphs that it runs: the file asks for more than" in done.stderr
    with Interpreter(model_content=_fan(3, 4)) as interpreter:
        allocate_and_run(interpreter, {1: np.ones(2, np.float32)})
        np.testing.assert_array_equal(interpreter.get_tensor(5), [1, 1])


def test_work_is_counted_where_operators_are_built() -> None:
    """Of a model that is planned by the piece the rest is built again for each."""
    model = read_model(write_model(samples.conv()))
    token = budget._current.set(Budget(nodes=3, rounds=0, nbytes=0))
    try:
        with pytest.raises(BudgetError, match="asks for more than 3 operators, tensors"):
            build_graph(model, 0, builtin_ops())
    finally:
        budget._current.reset(token)
    build_graph(model, 0, builtin_ops())  # no budget: a run's


def test_values_of_options_are_counted_with_the_files() -> None:
    options = Fields("Op", {}, write_map({"a": [1, 2], "b": 3}))
    token = budget._current.set(Budget(nodes=7, rounds=0, nbytes=0))
    try:
        read_map(options)
        with pytest.raises(BudgetError, match=r"Op: the custom options: .* more than 7 op"):
            read_map(options)
    finally:
        budget._current.reset(token)


def test_constants_are_folded_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not folded runs."""
    monkeypatch.setattr(budget, "MAX_BYTES", 1 << 20)
    graph = Graph("constants")
    for _ in range(40):
        made = graph.add_value((1 << 14,), DType.F32)
        graph.add_node("NEG", None, [graph.add_const(np.ones(1 << 14, np.float32))], [made])
        graph.outputs.append(made)
    with budget.budget_of(0):
        folded = fold_constants.PASS.run(graph, PassContext(builtin_ops()))
    assert (folded, len(graph.nodes)) == (16, 24)


def _padded(given: DType, made: DType) -> bytes:
    """A model whose shapes come when it runs."""
    return small_model(
        {
            "x": tensor_of((4,), given),
            "p": tensor_of((1, 2), I32),
            "y": tensor_of((4,), given),
            "z": tensor_of((4,), made),
        },
        "y = PAD(x, p)",
        "z = CAST(y)",
    )


@pytest.mark.parametrize("backend", ["", "cpu_ref"])
@pytest.mark.parametrize(
    ("given", "made"),
    [*((t, DType.F32) for t in (*PACKED, *HELD_BY_NO_ARRAY)), *((DType.F32,
    t) for t in HELD_BY_NO_ARRAY)],
    ids=lambda t: t.value,
)  # fmt: skip
def test_edges_of_types_without_arrays(given: DType, made: DType, backend: str) -> None:
    delegates = [GpuDelegate(backend=backend)] if backend else []
    with (
        Interpreter(
            model_content=_padded(given, made), experimental_delegates=delegates
        ) as interpreter,
        pytest.raises(
            (UnsupportedError, ModelError),
            match=f"is (of type )?({given.value}|{made.value}), which",
        ),
    ):
        interpreter.allocate_tensors()


@pytest.mark.parametrize("backend", ["", "cpu_ref"])
@pytest.mark.parametrize("dtype", PACKED, ids=lambda t: t.value)
def test_results_of_types_that_arrays_hold_as_others(dtype: DType, backend: str) -> None:
    delegates = [GpuDelegate(backend=backend)] if backend else []
    content = _padded(DType.F32, dtype)
    with Interpreter(model_content=content, experimental_delegates=delegates) as interpreter:
        allocate_and_run(interpreter, {0: np.float32([1, 0, 1, 1]), 1: np.int32([[1, 0]])})
        found = interpreter.get_tensor(3)
        assert found.dtype == dtype.unpacked.numpy
        np.testing.assert_array_equal(found, [0, 1, 0, 1, 1])


def test_damaged_models_are_refused_or_run() -> None:
    """In a process of its own, for what ends one; ``python -m tests.tflite.fuzz --run`` makes a
    long run."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tflite.fuzz", "--run", "cpu_ref", "--count", "400", "--seed",
        "31",
         "--first", "3600", "--cap", "60"],
        capture_output=True, text=True, timeout=240, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    counts = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()[:3]}
    assert counts["accepted"] > 60
    assert counts["refused"] > 200


# A short run of the fuzzer; ``python -m tests.tflite.fuzz`` makes a long one.


def test_damaged_models_are_refused_or_keep_their_promises() -> None:
    result = fuzz.run(2000, seed=20, models=fuzz.bases())
    assert not result.failures, result.failures[0]
    # Were all refused, or for few reasons, then the cases would not reach past the first checks.
    assert result.accepted > 200
    assert result.refused > 1000
    assert len(result.messages) > 30


def test_damaged_real_models(find_model: Callable[[str], Path]) -> None:
    names = ("tflm_mnist_lstm_fp32", "mp_selfie_segmentation_f16")
    models = fuzz.bases()
    models.files = [find_model(name).read_bytes() for name in names]
    result = fuzz.run(300, seed=21, models=models)
    assert not result.failures, result.failures[0]
    assert result.accepted > 30


def test_cases_are_made_from_seed_and_number_alone() -> None:
    models = fuzz.bases()
    assert fuzz.make_case(3, 14, models) == fuzz.make_case(3, 14, models)
    assert fuzz.make_case(3, 14, models) != fuzz.make_case(4, 14, models)


def test_the_fuzzer_sees_a_crash_and_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzz, "read_model", raising(IndexError("out of range")))
    assert "IndexError" in fuzz.run(1, 0, fuzz.bases()).failures[0]
    if hasattr(fuzz.signal, "setitimer"):
        monkeypatch.setattr(fuzz, "read_model", hang)
        assert "Hang" in fuzz.run(1, 0, fuzz.bases(), cap=0.05).failures[0]


def test_the_fuzzer_sees_a_broken_promise() -> None:
    import attrs

    model = read_model(fuzz.bases().files[0])
    op = attrs.evolve(model.main.operators[0], inputs=(99,))
    broken = attrs.evolve(model, subgraphs=(attrs.evolve(model.main, operators=(op,)),))
    with pytest.raises(fuzz.Broken, match="operator 0 reads"):
        fuzz.check_promises(broken)
