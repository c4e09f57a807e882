"""Shapes that follow from contents: what depends on them is compiled when these come, wherever in a
model it stands, and nothing after it is taken from a placeholder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from shape_models import BACKENDS, I32, const, contents, free, net
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import TflgpuError, UnsupportedError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph
from tflgpu.ir.quant import Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.base import Pass, run_passes
from tflgpu.passes.context import PassContext
from tflgpu.passes.registry import builtin_passes
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import TensorSpec

WANTED = TensorSpec("n", (2,), I32)
Y = TensorSpec("y", (2, 3))
QUANT = Quantization((0.5,), (3,))
CONTEXT = PassContext(builtin_ops())

DYNAMIC: dict[str, tuple[list[TensorSpec], list[tuple[Any, ...]], str]] = {
    "output": ([Y], [("RESHAPE", "x n", "y")], "y"),
    "open output": ([free("y", (2, 3))], [("RESHAPE", "x n", "y")], "y"),
    "shape of it": (
        [Y, TensorSpec("z", (2,), I32)],
        [("RESHAPE", "x n", "y"), ("SHAPE", "y", "z", {"out_type": 2})],
        "z",
    ),
    "rank of it": (
        [Y, TensorSpec("z", (), I32)],
        [("RESHAPE", "x n", "y"), ("RANK", "y", "z")],
        "z",
    ),
    "shape of what follows": (
        [Y, TensorSpec("r", (2, 3)), TensorSpec("z", (2,), I32)],
        [("RESHAPE", "x n", "y"), ("RELU", "y", "r"), ("SHAPE", "r", "z", {"out_type": 2})],
        "z",
    ),
    "reshaped like it": (
        [Y, TensorSpec("z", (2,), I32), TensorSpec("w", (2, 3))],
        [
            ("RESHAPE", "x n", "y"),
            ("SHAPE", "y", "z", {"out_type": 2}),
            ("RESHAPE", "x z", "w"),
        ],
        "w",
    ),
    "a second op": (
        [Y, TensorSpec("z", (2, 3))],
        [("RESHAPE", "x n", "y"), ("RELU", "y", "z")],
        "z",
    ),
    "does not fit what follows": (
        [TensorSpec("y", (1,)), const("p", [1, 0]), TensorSpec("z", (3, 2))],
        [("RESHAPE", "x n", "y"), ("TRANSPOSE", "y p", "z")],
        "z",
    ),
    "twice": (
        [Y, TensorSpec("z", (2, 3))],
        [("TILE", "x n", "y"), ("TILE", "y n", "z")],
        "z",
    ),
    "contents of a sum": (
        [TensorSpec("m", (2,), I32), Y],
        [("ADD", "n n", "m"), ("BROADCAST_TO", "x m", "y", {}, 2)],
        "y",
    ),
    "filled": (
        [const("v", 1.5, DType.F32), Y, TensorSpec("z", (2, 3))],
        [("FILL", "n v", "y"), ("ADD", "x y", "z")],
        "z",
    ),
    "quantized": (
        [
            TensorSpec("q", (2, 3), DType.I8, quantization=QUANT),
            TensorSpec("r", (2, 3), DType.I8, quantization=QUANT),
            TensorSpec("y", (2, 3)),
        ],
        [
            ("QUANTIZE", "x", "q"),
            ("TILE", "q n", "r"),
            ("DEQUANTIZE", "r", "y"),
        ],
        "y",
    ),
    "an op that nobody defines": (
        [Y, TensorSpec("z", (2,), I32)],
        [("Mystery", "x n", "y"), ("SHAPE", "y", "z", {"out_type": 2})],
        "z",
    ),
}


def dynamic(name: str) -> bytes:
    tensors, operators, outputs = DYNAMIC[name]
    return net([TensorSpec("x", (2, 3)), WANTED, *tensors], operators, "x n", outputs)


def results(make: Callable[..., Any], content: bytes, asked: Sequence[Sequence[int]]) -> list[Any]:
    """The output and its shape by the details, run after run."""
    interpreter = make(model_content=content)
    interpreter.allocate_tensors()
    (x, n), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    found = []
    for wanted in asked:
        interpreter.set_tensor(x["index"], contents(x))
        interpreter.set_tensor(n["index"], np.array(wanted, np.int32))
        interpreter.invoke()
        (details,) = interpreter.get_output_details()
        found += [interpreter.get_tensor(y["index"]), tuple(details["shape"])]
    return found


RUN = [n for n in DYNAMIC if n not in ("an op that nobody defines", "contents of a sum")]


@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize("preserve", [False, True])
def test_shapes_that_follow_from_contents(
    name: str, preserve: bool, delegates: list[GpuDelegate] | None
) -> None:
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
    if preserve and delegates and delegates[0].options.backend != "cpu_ref":
        pytest.skip("once with a device is enough")
    asked = [(2, 3), (3, 2), (2, 3)]
    if name in ("filled", "twice", "quantized"):
        asked = [(2, 3), (1, 3), (2, 3)]

    def ours(model_content: bytes) -> Interpreter:
        return Interpreter(
            model_content=model_content,
            experimental_delegates=delegates,
            experimental_preserve_all_tensors=preserve,
        )

    content = dynamic(name)
    for mine, theirs in zip(
        results(ours, content, asked), results(litert.Interpreter, content, asked), strict=True
    ):
        assert np.shape(mine) == np.shape(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_contents_that_do_not_work_out(delegates: list[GpuDelegate] | None) -> None:
    """What LiteRT says at the same time, with words."""
    with Interpreter(
        model_content=dynamic("contents of a sum"), experimental_delegates=delegates
    ) as interpreter:
        interpreter.allocate_tensors()
        interpreter.set_tensor(1, np.array([2, 3], np.int32))
        with pytest.raises(RuntimeError, match=r"operator 1 \(BROADCAST_TO\).*\[4, 6\]") as caught:
            interpreter.invoke()
        assert isinstance(caught.value, TflgpuError)


def test_an_op_that_nobody_defines_is_refused(delegates: list[GpuDelegate] | None) -> None:
    content = dynamic("an op that nobody defines")
    interpreter = Interpreter(model_content=content, experimental_delegates=delegates)
    with interpreter, pytest.raises(UnsupportedError, match="Mystery"):
        interpreter.allocate_tensors()


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_allow_fallback_off_refuses_them_too(
    backend: str, require_backend: Callable[[str], object]
) -> None:
    require_backend(backend)
    with GpuDelegate(backend=backend, allow_fallback=False) as delegate:
        for name in DYNAMIC:
            interpreter = Interpreter(
                model_content=dynamic(name), experimental_delegates=[delegate]
            )
            with pytest.raises(UnsupportedError):
                interpreter.allocate_tensors()


def graph_of(content: bytes) -> Graph:
    return build_graph(read_model(content), 0, builtin_ops())


def test_no_pass_not_even_a_careless_one_sees_a_placeholder() -> None:
    def believe(graph: Graph, context: PassContext) -> int:
        """Takes every node out whose result is shaped like its operand."""
        edits = 0
        for node in list(graph):
            if node.input(0).shape == node.outputs[0].shape:
                edits += graph.replace_uses(node.outputs[0], node.input(0))
                graph.remove(node)
        return edits

    for name in DYNAMIC:
        graph = graph_of(dynamic(name))
        before = graph.dump()
        run_passes(graph, [Pass("believe", believe), *builtin_passes()], CONTEXT)
        assert graph.dump() == before, name


@pytest.mark.parametrize("item", builtin_passes(), ids=lambda p: p.name)
def test_no_pass_touches_nodes_of_unknown_shape(item: Pass) -> None:
    """Even where it is run on its own."""
    for name in DYNAMIC:
        graph = graph_of(dynamic(name))
        assert item.run(graph, CONTEXT) == 0, name


def test_what_nobody_needs_does_not_stand_in_the_way() -> None:
    content = net(
        [TensorSpec("x", (2, 3)), WANTED, Y, TensorSpec("z", (2, 3))],
        [("RESHAPE", "x n", "y"), ("RELU", "x", "z")],
        "x n",
        "z",
    )
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.array([[1, -2, 3], [-4, 5, -6]], np.float32))
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(3), [[1, 0, 3], [0, 5, 0]])
