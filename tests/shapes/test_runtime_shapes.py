"""Shapes that follow from contents: what depends on them is compiled when these come, wherever in a
model it stands, and nothing after it is taken from a placeholder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from file_fields import file_fields
from tflgpu import GpuDelegate, Interpreter
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.errors import TflgpuError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Graph
from tflgpu.ops.base import OpDef, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.base import Pass, PassContext, run_passes
from tflgpu.passes.registry import builtin_passes
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.schema import BUILTIN_CODES
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, allocated, set_and_run
from tests.shapes.shape_models import BACKENDS, I32, const, contents, free, net

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
        set_and_run(interpreter, {x["index"]: contents(x), n["index"]: np.array(wanted, np.int32)})
        (details,) = interpreter.get_output_details()
        found += [interpreter.get_tensor(y["index"]), tuple(details["shape"])]
    return found


RUN = [n for n in DYNAMIC if n not in ("an op that nobody defines", "contents of a sum")]


@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize("preserve", [False, True])
def test_shapes_that_follow_from_contents(
    name: str, preserve: bool, delegates: list[GpuDelegate] | None, litert: Any
) -> None:
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
    with allocated(
        Interpreter(model_content=dynamic("contents of a sum"), experimental_delegates=delegates)
    ) as interpreter:
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
def test_allow_fallback_off_refuses_them_too(backend: str) -> None:
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
    allocate_and_run(interpreter, {0: np.array([[1, -2, 3], [-4, 5, -6]], np.float32)})
    np.testing.assert_array_equal(interpreter.get_tensor(3), [[1, 0, 3], [0, 5, 0]])


# Every constant operand of every op, given only when the model runs: right, or, where a device
# may leave nothing to the CPU, refused in words. What a file holds as the result's shape is then
# a placeholder, here in the three forms that converters leave: the operand's shape, another one,
# and an open one.


def _cases() -> Iterator[object]:
    """Each op with each of its operands that some sample has as a constant."""
    for op in builtin_ops().values():
        if op.state is not None or (not op.is_custom and op.name not in BUILTIN_CODES):
            continue  # drawn with a state that no file has; made by a pass
        seen: dict[int, int] = {}
        for sample in op.samples():
            if "output_shapes" in sample.fields:
                continue  # the file alone says how large its result is
            for index, arg in enumerate(sample.args):
                const = arg is not None and (arg.const or arg.data is not None)
                if const and seen.setdefault(index, 0) < 1:
                    seen[index] += 1
                    yield pytest.param(op, sample, index, id=f"{op.name}-{sample.id}-{index}")


def model(case: SampleCase, at: int, placeholder: str, *, computed: bool) -> bytes:
    """The case's one operator, with operand ``at`` an input of the model, or computed from one."""
    node, graph = case.node, case.graph
    specs = [
        TensorSpec(v.name, v.shape, v.dtype, v.data, v.quant, is_variable=v.is_variable)
        for v in (graph.values[i] for i in range(len(graph.values)))
    ]
    moved = node.input(at)
    specs[moved.id] = TensorSpec("moved", moved.shape, moved.dtype)
    source = next((v for v in node.inputs if v is not None and v is not moved), moved)
    for value in node.outputs:
        shape = {"operand": source.shape, "other": (7, 1)}.get(placeholder, value.shape)
        signature = tuple(-1 for _ in shape) if placeholder == "open" else None
        specs[value.id] = TensorSpec(
            value.name, shape, value.dtype, None, value.quant, shape_signature=signature
        )
    inputs = [v.id for v in graph.inputs]
    operators = []
    if computed:
        given, kept = len(specs), len(specs) + 1
        specs += [
            TensorSpec("given", moved.shape, moved.dtype),
            TensorSpec("kept", (len(moved.shape),), DType.I32, list(moved.shape)),
        ]
        operators.append(OperatorSpec("RESHAPE", {}, (given, kept), (moved.id,)))
        inputs.append(given)
    else:
        inputs.append(moved.id)
    fields, bodies = file_fields(case)
    operators.append(
        OperatorSpec(
            case.op.name, fields, [-1 if v is None else v.id for v in node.inputs],
            [v.id for v in node.outputs], version=case.sample.version,
            custom_options=case.sample.custom_options,
        )
    )  # fmt: skip
    outputs = [v.id for v in graph.outputs]
    return write_model(ModelSpec(specs, operators, inputs, outputs, subgraphs=bodies))


def run(case: SampleCase, at: int, content: bytes, delegate: GpuDelegate | None) -> list[Array]:
    """The model's outputs, with the contents of operand ``at`` given as an input."""
    delegates = None if delegate is None else [delegate]
    with allocated(
        Interpreter(model_content=content, experimental_delegates=delegates)
    ) as interpreter:
        for details in interpreter.get_input_details():
            index = details["index"]
            data = case.arrays.get(index, case.node.input(at).data)
            interpreter.set_tensor(index, data)
        interpreter.invoke()
        outputs = [interpreter.get_tensor(v.id) for v in case.graph.outputs]
        shapes = [tuple(d["shape"]) for d in interpreter.get_output_details()]
        assert shapes == [np.shape(y) for y in outputs]
        return outputs


@pytest.fixture(scope="module", params=["none", "cpu_ref", "opencl"])
def delegate(request: pytest.FixtureRequest, require_backend: object) -> Iterator[object]:
    if request.param == "none":
        yield None
        return
    require_backend(request.param)  # type: ignore[operator]
    with GpuDelegate(backend=request.param, allow_fallback=False) as made:
        yield made


@pytest.mark.parametrize(("op", "sample", "at"), list(_cases()))
def test_an_operand_given_at_run_time_is_honoured_or_refused(
    op: OpDef, sample: Sample, at: int, delegate: GpuDelegate | None,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    case = materialize(op, sample)
    # What the file says of the result's shape must not matter, whether right, open or wrong.
    for placeholder in ("right", "open", "operand", "other"):
        for computed in (False, True):
            if computed and placeholder != "operand":
                continue  # the same for all; one is enough
            if request.node.callspec.params["delegate"] == "opencl" and not computed:
                continue  # what a file says is read before there is a device
            content = model(case, at, placeholder, computed=computed)
            try:
                outputs = run(case, at, content, delegate)
            except UnsupportedError as error:
                assert delegate is not None  # which may leave nothing to the CPU; else it runs
                assert op.name in str(error)  # which operator, at least
            else:
                for got, want in zip(outputs, case.expected, strict=True):
                    assert np.shape(got) == want.shape, placeholder
                    case.tolerance().check(np.asarray(got), want, placeholder)


# Operands that are computed from shapes are evaluated as LiteRT does, at every shape of the
# input.


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
    op: str, delegates: list[GpuDelegate] | None, litert: Any
) -> None:
    content = counted(op)
    for shape in ((1, 3, 2, 4), (2, 6, 4, 4)):

        def ours(model_content: bytes) -> Interpreter:
            return Interpreter(model_content=model_content, experimental_delegates=delegates)

        got = answers(ours, content, shape)
        want = answers(litert.Interpreter, content, shape)
        for mine, theirs in zip(got, want, strict=True):
            assert np.shape(mine) == np.shape(theirs)
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
