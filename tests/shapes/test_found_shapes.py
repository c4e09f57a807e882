"""Ops of which only a run tells how much they make, held against LiteRT, run after run; and what
follows them, which is compiled when the shape has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocated, delegates_on, first_results
from tests.shapes.shape_models import const as constant
from tests.shapes.shape_models import net

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

I32, I64, BOOL = DType.I32, DType.I64, DType.BOOL
#: A model's tensors, operators (name, options, operands, results), inputs and outputs.
Net = tuple[
    list[TensorSpec], list[tuple[str, dict[str, Any], list[int], list[int]]], list[int], list[int]
]


def free(name: str, rank: int, dtype: DType = DType.F32) -> TensorSpec:
    return TensorSpec(name, (1,) * rank, dtype, shape_signature=(-1,) * rank)


def const(data: Any, dtype: DType = I32) -> TensorSpec:
    array = np.asarray(data, dtype.numpy)
    return TensorSpec("c", array.shape, dtype, array)


def where() -> Net:
    """The rows of a tensor that are positive in their first column."""
    tensors = [
        TensorSpec("x", (5, 3)), const([0, 0]), const([5, 1]), TensorSpec("first", (5, 1)),
        const(0.0, DType.F32), TensorSpec("chosen", (5, 1), BOOL), const([5]),
        TensorSpec("flat", (5,), BOOL), free("at", 2, I64), free("rows", 2), free("y", 2),
    ]  # fmt: skip
    ops = [
        ("SLICE", {}, [0, 1, 2], [3]), ("GREATER", {}, [3, 4], [5]), ("RESHAPE", {}, [5, 6], [7]),
        ("WHERE", {}, [7], [8]), ("GATHER_ND", {}, [0, 8], [9]), ("EXP", {}, [9], [10]),
    ]  # fmt: skip
    return tensors, ops, [0], [8, 10]


def unique() -> Net:
    tensors = [TensorSpec("x", (7,), I32), free("values", 1, I32), TensorSpec("i", (7,), I32),
               free("y", 1, I32)]  # fmt: skip
    ops = [("UNIQUE", {"idx_out_type": 2}, [0], [1, 2]), ("NEG", {}, [1], [3])]
    return tensors, ops, [0], [2, 3]


def counted() -> Net:
    """RANGE whose limit is an input."""
    tensors = [TensorSpec("n", (), I32), const(1), const(2), free("r", 1, I32), free("y", 1, I32)]
    return tensors, [("RANGE", {}, [1, 0, 2], [3]), ("ADD", {}, [3, 3], [4])], [0], [4]


def suppressed(*, soft: bool) -> Net:
    """The count is an input: results are cut to what was selected. Of V4 LiteRT reads nowhere
    then."""
    tensors = [
        TensorSpec("boxes", (6, 4)), TensorSpec("scores", (6,)), TensorSpec("n", (), I32),
        const(0.5, DType.F32), const(0.2, DType.F32), const(0.4, DType.F32),
        free("at", 1, I32), free("s", 1), TensorSpec("count", (), I32), free("y", 1),
    ]  # fmt: skip
    if soft:
        ops = [("NON_MAX_SUPPRESSION_V5", {}, [0, 1, 2, 3, 4, 5], [6, 7, 8]), ("EXP", {}, [7], [9])]
        return tensors, ops, [0, 1, 2], [6, 8, 9]
    ops = [("NON_MAX_SUPPRESSION_V4", {}, [0, 1, 2, 3, 4], [6, 8])]
    return tensors, ops, [0, 1, 2], [6, 8]


def summed() -> Net:
    tensors = [TensorSpec("x", (4, 3)), TensorSpec("ids", (4,), I32), free("s", 2), free("y", 2)]
    return tensors, [("SEGMENT_SUM", {}, [0, 1], [2]), ("ABS", {}, [2], [3])], [0, 1], [3]


def written(net: Net) -> bytes:
    tensors, ops, inputs, outputs = net
    return write_model(ModelSpec(tensors, [OperatorSpec(*op) for op in ops], inputs, outputs))


def runs(make: Callable[..., Any], content: bytes, feeds: Sequence[Sequence[Any]]) -> list[Array]:
    interpreter = make(model_content=content)
    interpreter.allocate_tensors()
    found = []
    for feed in feeds:
        for details, data in zip(interpreter.get_input_details(), feed, strict=True):
            interpreter.set_tensor(details["index"], np.asarray(data, details["dtype"]))
        interpreter.invoke()
        for details in interpreter.get_output_details():
            found += [interpreter.get_tensor(details["index"]), details["shape"]]
    return found


_RNG = np.random.default_rng(3)
_BOXES = np.concatenate([c := _RNG.uniform(0, 1, (6, 2)), c + _RNG.uniform(0.2, 0.6, (6, 2))], 1)
_SCORES = [0.9, 0.1, 0.6, 0.8, 0.3, 0.7]
_ROWS = _RNG.uniform(-1, 1, (5, 3))
CASES: dict[str, tuple[Net, list[list[Any]]]] = {
    "WHERE": (where(), [[_ROWS], [-_ROWS], [np.abs(_ROWS)]]),
    "UNIQUE": (unique(), [[[3, 1, 3, 2, 1, 9, 3]], [[5] * 7]]),
    "RANGE": (counted(), [[9], [4], [9]]),
    # With room for 6, which are not all taken.
    "NON_MAX_SUPPRESSION_V5": (
        suppressed(soft=True), [[_BOXES, _SCORES, 6], [_BOXES, _SCORES, 2], [_BOXES, _SCORES, 1]],
    ),
    "SEGMENT_SUM": (
        summed(), [[np.ones((4, 3)), [0, 0, 1, 2]], [np.ones((4, 3)), [0, 0, 0, 0]]],
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=["none", "cpu_ref", "opencl"])
def delegates(
    request: pytest.FixtureRequest, require_backend: Callable[[str], object]
) -> Iterator[list[GpuDelegate]]:
    yield from delegates_on(request.param, require_backend)


@pytest.mark.parametrize("name", CASES)
def test_as_litert(name: str, delegates: list[GpuDelegate]) -> None:
    net, feeds = CASES[name]
    content = written(net)

    def ours(model_content: bytes) -> Interpreter:
        return Interpreter(model_content=model_content, experimental_delegates=delegates)

    got, want = runs(ours, content, feeds), runs(litert.Interpreter, content, feeds)
    assert len({np.shape(a) for a in want[::2]}) > 1, "the runs make nothing of different shapes"
    for mine, theirs in zip(got, want, strict=True):
        assert np.shape(mine) == np.shape(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def test_nothing_is_there_before_a_run(delegates: list[GpuDelegate]) -> None:
    content = written(unique())
    with (
        allocated(
            Interpreter(model_content=content, experimental_delegates=delegates)
        ) as interpreter,
        pytest.raises((ValueError, RuntimeError)),
    ):
        interpreter.get_tensor(3)


def test_boxes_of_version_4_with_a_count_that_comes(delegates: list[GpuDelegate]) -> None:
    """LiteRT ends the process here, so that V5 without a sigma has to do for it."""
    soft = suppressed(soft=True)
    soft[0][5] = const(0.0, DType.F32)
    feeds = [[_BOXES, _SCORES, 4], [_BOXES, _SCORES, 1]]

    def ours(model_content: bytes) -> Interpreter:
        return Interpreter(model_content=model_content, experimental_delegates=delegates)

    got = runs(ours, written(suppressed(soft=False)), feeds)
    want = runs(litert.Interpreter, written(soft), feeds)
    for mine, theirs in zip(got, [*want[:4], *want[6:10]], strict=True):
        np.testing.assert_array_equal(mine, theirs)


# Constants that say a shape, of models whose inputs are resized: TRANSPOSE_CONV's output shape.


def upsampling(padding: int, told: tuple[int, ...], taps: int = 3) -> bytes:
    """Doubles 3 x 4 pixels; ``padding`` 0 is SAME, 1 VALID."""
    weights = np.random.default_rng(1).standard_normal((2, taps, taps, 3)).astype(np.float32)
    tensors = [
        constant("shape", told), TensorSpec("w", weights.shape, data=weights),
        TensorSpec("x", (1, 3, 4, 3)),
        TensorSpec("y", told), TensorSpec("z", told),
    ]  # fmt: skip
    options = {"stride_h": 2, "stride_w": 2, "padding": padding}
    return net(
        tensors, [("TRANSPOSE_CONV", "shape w x", "y", options), ("NEG", "y", "z")], "x", "z"
    )


def ran(interpreter: Any, x: Array) -> Array:
    interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], list(x.shape))
    return np.array(first_results(interpreter, {interpreter.get_input_details()[0]["index"]: x})[0])


@pytest.mark.parametrize("backend", [None, "cpu_ref"])
@pytest.mark.parametrize(
    ("padding", "told", "taps"),
    [(0, (1, 6, 8, 2), 3), (0, (1, 5, 7, 2), 4), (0, (1, 6, 8, 2), 2), (1, (1, 7, 10, 2), 3)],
    ids=["same", "same_odd", "taps2", "valid"],
)
def test_as_litert_by_default(
    padding: int, told: tuple[int, ...], taps: int, backend: str | None
) -> None:
    """XNNPACK, which has seen the file's shapes, makes the output of the input. (What is refitted
    is the graph, which is the same for all devices.)"""
    delegates = None if backend is None else [GpuDelegate(backend=backend)]
    content = upsampling(padding, told, taps)
    theirs = litert.Interpreter(model_content=content)
    with Interpreter(model_content=content, experimental_delegates=delegates) as ours:
        for shape in ((1, 3, 4, 3), (3, 3, 4, 3), (2, 5, 3, 3), (1, 3, 4, 3)):
            x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
            expected, found = ran(theirs, x), ran(ours, x)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        empty = ran(ours, np.zeros((0, 3, 4, 3), np.float32))  # LiteRT's shape is accidental
        assert empty.shape == (0, *told[1:])


def test_a_shape_that_was_computed_is_taken_as_it_is() -> None:
    """As LiteRT's kernels do, which refuse one that does not fit."""
    tensors = [
        constant("batch", [1]), constant("rest", [6, 8, 2]), TensorSpec("shape", (4,), DType.I32),
        TensorSpec("w", (2, 3, 3, 3), data=np.ones((2, 3, 3, 3), np.float32)),
        TensorSpec("x", (1, 3, 4, 3)), TensorSpec("y", (1, 6, 8, 2)),
    ]  # fmt: skip
    options = {"stride_h": 2, "stride_w": 2, "padding": 0}
    operators = [
        ("CONCATENATION", "batch rest", "shape", {"axis": 0}),
        ("TRANSPOSE_CONV", "shape w x", "y", options),
    ]
    content = net(tensors, operators, "x", "y")
    for module, error in ((litert.Interpreter, RuntimeError), (Interpreter, TflgpuError)):
        interpreter = module(model_content=content)
        assert ran(interpreter, np.ones((1, 3, 4, 3), np.float32)).shape == (1, 6, 8, 2)
        for shape in ((2, 3, 4, 3), (1, 3, 5, 3)):
            with pytest.raises(error):
                ran(interpreter, np.ones(shape, np.float32))
