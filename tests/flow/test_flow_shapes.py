"""Shapes that come when the model runs, in files that lie about them; and tensors without
elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flow_models import (
    BOOL,
    F32,
    I32,
    Feeds,
    branch,
    const,
    loop,
    model,
    number,
    outputs,
    same,
    subgraph,
    tensor,
)
from tflgpu import GpuDelegate, Interpreter
from tflgpu.flow.program import KEPT
from tflgpu.ir.dtypes import DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.watched_device import WatchedDevice

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

I64 = DType.I64
Q = Quantization((0.5,), (3,))
INT_TO_FLOAT = {"in_data_type": 2, "out_data_type": 0}


def _cases() -> dict[str, tuple[bytes, Feeds]]:
    picked = subgraph(
        [
            tensor("x", (2, 3)), const("z", 0.5), tensor("b", (1,), BOOL), tensor("w", (1, 2), I64),
            tensor("g", (1,)), tensor("y", (1,)),
        ],
        [("GREATER", "x z", "b"), ("WHERE", "b", "w"), ("GATHER_ND", "x w", "g"), ("NEG", "g",
        "y")],
        "x", "y",
    )  # fmt: skip
    summed = subgraph(
        [tensor("n", (), I32), number("one", 1), number("z", 0), tensor("r", (1,), I32),
         tensor("f", (1,)), tensor("s", ())],
        [("RANGE", "z n one", "r"), ("CAST", "r", "f", INT_TO_FLOAT), ("SUM", "f z", "s")], "n",
        "s",
    )  # fmt: skip
    filled = subgraph(
        [tensor("n", (2,), I32), tensor("v", ()), tensor("r", (1, 1)), tensor("x", (1, 3)),
         tensor("s", (9,))],
        [("FILL", "n v", "r"), ("MUL", "r x", "s")], "n v x", "s",
    )  # fmt: skip
    padded = subgraph(
        [tensor("x", (2, 3), DType.I8, Q), tensor("p", (2, 2), I32), tensor("y", (2, 3), DType.I8,
        Q),
         tensor("z", (2, 3), DType.I8, Q)],
        [("PAD", "x p", "y"), ("RELU", "y", "z")], "x p", "z",
    )  # fmt: skip
    # Grows until it is long enough: the condition is about a shape.
    growing = [
        subgraph([tensor("x", (1,)), tensor("y", (1,))], [("WHILE", "x", "y", loop(1, 2))], "x",
        "y"),
        subgraph(
            [tensor("x", (1,)), tensor("s", (1,), I32), number("m", 9), tensor("q", (), I32),
             tensor("c", (), BOOL)],
            [("SHAPE", "x", "s", {"out_type": 2}), ("SQUEEZE", "s", "q"), ("LESS", "q m", "c")],
            "x", "c",
        ),
        subgraph(
            [tensor("x", (1,)), tensor("y", (2,))], [("CONCATENATION", "x x", "y", {"axis": 0})],
            "x", "y",
        ),
    ]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((3, 2, 3)).tolist()
    stored = [[1, 2, 3], [4, 5, 6]]
    return {
        "picked": (model(picked), [[v] for v in x]),
        "summed": (model(summed), [[5], [3], [5]]),
        "filled": (model(filled), [[[2, 3], 1.5, [[1, 2, 3]]], [[1, 1], 2, [[1, 2, 3]]]]),
        "stored numbers": (
            model(padded), [[stored, [[1, 0], [0, 2]]], [stored, [[0, 0], [0, 1]]]]),
        "a loop that grows": (model(*growing), [[[3.0]], [[4.0]]]),
    }  # fmt: skip


CASES = _cases()


@pytest.mark.parametrize("name", CASES)
def test_like_litert(name: str, delegates: list[GpuDelegate]) -> None:
    content, feeds = CASES[name]

    def ours(model_content: bytes) -> Interpreter:
        return Interpreter(model_content=model_content, experimental_delegates=delegates)

    same(outputs(ours, content, feeds), outputs(litert.Interpreter, content, feeds))


def _one(op: str, given: Sequence[TensorSpec], fields: dict[str, Any], inputs: int) -> bytes:
    """An operator whose file has other shapes than it will be given."""
    operator = OperatorSpec(op, fields, range(len(given)), [len(given)])
    result = TensorSpec("y", (7, 1))
    return write_model(ModelSpec([*given, result], [operator], range(inputs), [len(given)]))


WINDOW = {"padding": 0, "stride_w": 1, "stride_h": 1, "filter_width": 2, "filter_height": 2}
#: An operator, its tensors as the file has them, and shapes without elements for its inputs.
EMPTY: dict[str, tuple[bytes, list[tuple[int, ...]], tuple[int, ...]]] = {
    "CONV_2D": (
        _one("CONV_2D", [tensor("x", (1, 3, 3, 2)), const("w", np.ones((3, 2, 2, 2))),
                         const("b", [1, 2, 3])], {"padding": 1, "stride_w": 1, "stride_h": 1}, 1),
        [(0, 4, 4, 2)], (0, 3, 3, 3),
    ),
    "MAX_POOL_2D": (
        _one("MAX_POOL_2D", [tensor("x", (1, 3, 3, 2))], {**WINDOW, "padding": 1}, 1),
        [(0, 4, 4, 2)], (0, 3, 3, 2),
    ),
    "FULLY_CONNECTED": (
        _one("FULLY_CONNECTED", [tensor("x", (1, 3)), const("w", np.ones((4, 3))),
                                 const("b", [1, 2, 3, 4])], {}, 1),
        [(0, 3)], (0, 4),
    ),
    "BATCH_MATMUL": (
        _one("BATCH_MATMUL", [tensor("x", (1, 2)), tensor("z", (2, 1))], {}, 2),
        [(2, 3, 0), (2, 0, 4)], (2, 3, 4),
    ),
    "SOFTMAX": (_one("SOFTMAX", [tensor("x", (1, 2))], {"beta": 1.0}, 1), [(2, 2, 0)], (2, 2, 0)),
}  # fmt: skip


@pytest.mark.parametrize("op", EMPTY)
def test_tensors_without_elements(op: str, delegates: list[GpuDelegate]) -> None:
    """LiteRT's Python takes and gives none, and some of its kernels end the process."""
    content, shapes, wanted = EMPTY[op]
    with Interpreter(model_content=content, experimental_delegates=delegates) as interpreter:
        for details, shape in zip(interpreter.get_input_details(), shapes, strict=True):
            interpreter.resize_tensor_input(details["index"], shape)
        interpreter.allocate_tensors()
        interpreter.invoke()
        (details,) = interpreter.get_output_details()
        found = interpreter.get_tensor(details["index"])
        assert tuple(details["shape"]) == found.shape == wanted
        assert not found.any()  # a sum of nothing is nothing


@pytest.mark.parametrize("op", ["PAD", "MIRROR_PAD"])
def test_a_scalar_has_no_border(op: str, delegates: list[GpuDelegate]) -> None:
    given = [TensorSpec("x", (), F32), tensor("p", (0, 2), I32)]
    content = _one(op, given, {}, 2)
    with Interpreter(model_content=content, experimental_delegates=delegates) as interpreter:
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.float32(2.5))
        interpreter.invoke()
        assert interpreter.get_tensor(2) == 2.5


def test_shapes_that_come_often_stay_compiled(opened: Any, device: WatchedDevice) -> None:
    main = subgraph(
        [tensor("c", (), BOOL), tensor("n", (1,), I32), tensor("v", ()), tensor("x", (1,)),
         tensor("y", (1,))],
        [("FILL", "n v", "x"), ("IF", "c x", "y", branch(1, 2))], "c n v", "y",
    )  # fmt: skip
    sides = [
        subgraph([tensor("x", (1,)), tensor("y", (1,))], [(op, "x", "y")], "x", "y")
        for op in ("NEG", "EXP")
    ]
    one = opened(model(main, *sides))

    def filled(n: int) -> Any:
        for i, value in enumerate((True, np.array([n], np.int32), np.float32(2))):
            one.set_tensor(i, np.asarray(value))
        one.invoke()
        return one.get_tensor(4).tolist()

    assert filled(1) == [-2.0]
    for n in range(2, KEPT + 4):
        assert filled(n) == [-2.0] * n
        loaded = device.loads
        assert filled(1) == [-2.0]
        assert device.loads == loaded
