"""What small files ask for before a run: refused by one error where it is more than any model
needs."""

from __future__ import annotations

import struct
import subprocess
import sys
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
from tflgpu.passes.context import PassContext
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.tflite import samples

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
        interpreter.allocate_tensors()
        interpreter.set_tensor(1, np.ones(2, np.float32))
        interpreter.invoke()
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
    tensors = [TensorSpec("x", (4,), given), TensorSpec("p", (1, 2), I32),
               TensorSpec("y", (4,), given), TensorSpec("z", (4,), made)]  # fmt: skip
    steps = [OperatorSpec("PAD", {}, [0, 1], [2]), OperatorSpec("CAST", {}, [2], [3])]
    return write_model(ModelSpec(tensors, steps, [0, 1], [3]))


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
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.float32([1, 0, 1, 1]))
        interpreter.set_tensor(1, np.int32([[1, 0]]))
        interpreter.invoke()
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
