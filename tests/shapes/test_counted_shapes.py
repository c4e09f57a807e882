"""Operands that are computed from shapes are evaluated as LiteRT does, at every shape of the
input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from shape_models import I32, const, contents, free, net
from tflgpu import GpuDelegate, Interpreter
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import TensorSpec


def answers(make: Callable[..., Any], content: bytes, shape: Sequence[int]) -> list[Array]:
    """The outputs at another shape of input 0, and their shapes by the details."""
    interpreter = make(model_content=content)
    interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], shape)
    interpreter.allocate_tensors()
    for details in interpreter.get_input_details():
        interpreter.set_tensor(details["index"], contents(details))
    interpreter.invoke()
    found = []
    for details in interpreter.get_output_details():
        found += [interpreter.get_tensor(details["index"]), details["shape"]]
    return found


X = free("x", (1, 3, 2, 4))
SHAPE = ("SHAPE", "x", "s", {"out_type": 2})
S = TensorSpec("s", (4,), I32)
COUNTED: dict[str, tuple[list[TensorSpec], list[tuple[Any, ...]]]] = {
    "RESHAPE": (
        [const("p", [4, 1, 2, 3]), TensorSpec("n", (4,), I32), const("a", [0, 3, 2, 1])],
        [("GATHER", "s a", "n"), ("RESHAPE", "x n", "y")],
    ),
    "PAD": (
        [TensorSpec("n", (4, 2), I32)],
        [("PACK", "s s", "n", {"values_count": 2, "axis": 1}), ("PAD", "x n", "y")],
    ),
    "MIRROR_PAD": (
        [const("one", 1), TensorSpec("n", (4,), I32), TensorSpec("p", (4, 2), I32)],
        [
            ("SUB", "s one", "n"),
            ("PACK", "n n", "p", {"values_count": 2, "axis": 1}),
            ("MIRROR_PAD", "x p", "y"),
        ],
    ),
    "TILE": ([], [("TILE", "x s", "y")]),
    "SLICE": (
        [const("two", 2), TensorSpec("n", (4,), I32), TensorSpec("b", (4,), I32)],
        [("FLOOR_DIV", "s two", "n"), ("SUB", "s n", "b"), ("SLICE", "x n b", "y")],
    ),
    "STRIDED_SLICE": (
        [const("two", 2), TensorSpec("n", (4,), I32), const("ones", [1, 1, 1, 1])],
        [("FLOOR_DIV", "s two", "n"), ("STRIDED_SLICE", "x n s ones", "y")],
    ),
    "RESIZE_BILINEAR": (
        [const("b", [1]), const("c", [2]), TensorSpec("n", (2,), I32)],
        [("SLICE", "s b c", "n"), ("ADD", "n n", "m"), ("RESIZE_BILINEAR", "x m", "y")],
    ),
    "RESIZE_NEAREST_NEIGHBOR": (
        [const("b", [1]), const("c", [2]), TensorSpec("n", (2,), I32)],
        [("SLICE", "s b c", "n"), ("ADD", "n n", "m"), ("RESIZE_NEAREST_NEIGHBOR", "x m", "y")],
    ),
    "BROADCAST_TO": (
        [const("b", [2, 1, 1, 1, 1][:1]), TensorSpec("n", (5,), I32)],
        [
            ("CONCATENATION", "b s", "n", {"axis": 0}),
            ("BROADCAST_TO", "x n", "y", {}, 2),
        ],
    ),
    "FILL": ([const("v", 2.5, DType.F32)], [("FILL", "s v", "f"), ("ADD", "x f", "y")]),
    "RANGE": (
        [const("b", 0), const("at", 3), const("one", 1), TensorSpec("n", (), I32)],
        [
            ("GATHER", "s at", "n"),
            ("RANGE", "b n one", "r"),
            ("CAST", "r", "f", {"in_data_type": 2, "out_data_type": 0}),
            ("ADD", "x f", "y"),
        ],
    ),
    "EXPAND_DIMS": (
        [TensorSpec("n", (), I32)],
        [("RANK", "x", "n"), ("EXPAND_DIMS", "x n", "y")],
    ),
    "MEAN": (
        [TensorSpec("n", (), I32), const("one", 1), TensorSpec("k", (), I32)],
        [("RANK", "x", "n"), ("SUB", "n one", "k"), ("MEAN", "x k", "y")],
    ),
    "ARG_MAX": (
        [TensorSpec("n", (), I32), const("one", 1), TensorSpec("k", (), I32)],
        [
            ("RANK", "x", "n"),
            ("SUB", "n one", "k"),
            ("ARG_MAX", "x k", "z", {"output_type": 2}),
            ("CAST", "z", "y", {"in_data_type": 2, "out_data_type": 0}),
        ],
    ),
    "CUMSUM": (
        [TensorSpec("n", (), I32), const("one", 1), TensorSpec("k", (), I32)],
        [("RANK", "x", "n"), ("SUB", "n one", "k"), ("CUMSUM", "x k", "y")],
    ),
    "REVERSE_V2": (
        [TensorSpec("n", (), I32), const("one", [1]), TensorSpec("k", (1,), I32)],
        [("RANK", "x", "n"), ("SUB", "n one", "k"), ("REVERSE_V2", "x k", "y")],
    ),
    "TRANSPOSE": (
        [TensorSpec("n", (), I32), const("down", [1, 2, 3, 4]), TensorSpec("k", (4,), I32)],
        [("RANK", "x", "n"), ("SUB", "n down", "k"), ("TRANSPOSE", "x k", "y")],
    ),
    "ONE_HOT": (
        [
            const("at", 3), TensorSpec("n", (), I32), const("on", 2.0, DType.F32),
            const("off", -1.0, DType.F32), const("i", [0, 2, 1]),
        ],
        [
            ("GATHER", "s at", "n"),
            ("ONE_HOT", "i n on off", "h", {"axis": -1}),
            ("SUM", "h zero", "f"),
            ("ADD", "x f", "y"),
        ],
    ),
    "TOPK_V2": (
        [const("at", 2), TensorSpec("n", (), I32), free("i", (1, 3, 2, 2), I32)],
        [("GATHER", "s at", "n"), ("TOPK_V2", "x n", "y i")],
    ),
    "SPACE_TO_BATCH_ND": (
        [
            const("b", [1]), const("c", [2]), TensorSpec("n", (2,), I32),
            const("none", [[0, 0], [0, 0]]),
        ],
        [("SLICE", "s b c", "n"), ("SPACE_TO_BATCH_ND", "x n none", "y")],
    ),
    "SPLIT_V": (
        [
            const("at", [3]), TensorSpec("n", (1,), I32), const("axis", 3), const("one", 1),
            const("ones", [1]), TensorSpec("k", (1,), I32), TensorSpec("z", (2,), I32),
            free("w", (1, 3, 2, 1)),
        ],
        [
            ("GATHER", "s at", "n"),
            ("SUB", "n one", "k"),
            ("CONCATENATION", "k ones", "z", {"axis": 0}),
            ("SPLIT_V", "x z axis", "y w", {"num_splits": 2}),
        ],
    ),
    "TRANSPOSE_CONV": (
        [
            const("by", [1, 2, 2, 1]), TensorSpec("n", (4,), I32),
            const("w", np.ones((4, 2, 2, 4)), DType.F32),
        ],
        [
            ("MUL", "s by", "n"),
            ("TRANSPOSE_CONV", "n w x", "y", {"stride_h": 2, "stride_w": 2, "padding": 0}),
        ],
    ),
}  # fmt: skip


def counted(op: str) -> bytes:
    """``op`` of x, with an operand that is computed from the shape of x."""
    tensors, operators = COUNTED[op]
    named = {t.name for t in tensors} | {"x", "s"}
    open_i32 = {"m": (2,), "r": (4,), "z": (1, 3, 2)}
    made = []
    for name in dict.fromkeys(" ".join(o[2] for o in operators).split()):
        if name not in named:
            dtype = I32 if name in open_i32 else DType.F32
            made.append(TensorSpec(name, open_i32.get(name, ()), dtype, has_rank=False))
            if name in open_i32:
                made[-1] = free(name, open_i32[name], I32)
    every = [X, S, const("zero", [0]), *tensors, *made]
    outputs = [n for n in operators[-1][2].split() if n != "i"]
    return net(every, [SHAPE, *operators], "x", " ".join(outputs))


@pytest.mark.parametrize("op", COUNTED)
def test_operands_computed_from_shapes_follow_a_resize(
    op: str, delegates: list[GpuDelegate] | None
) -> None:
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
    content = counted(op)
    for shape in ((1, 3, 2, 4), (2, 6, 4, 4)):

        def ours(model_content: bytes) -> Interpreter:
            return Interpreter(model_content=model_content, experimental_delegates=delegates)

        got = answers(ours, content, shape)
        want = answers(litert.Interpreter, content, shape)
        for mine, theirs in zip(got, want, strict=True):
            assert np.shape(mine) == np.shape(theirs)
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
