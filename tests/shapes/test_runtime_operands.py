"""Every constant operand of every op, given only when the model runs: right, or, where a device may
leave nothing to the CPU, refused in words.

What a file holds as the result's shape is then a placeholder, here in the three forms that
converters leave: the operand's shape, another one, and an open one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from file_fields import file_fields
from tflgpu import GpuDelegate, Interpreter
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.base import OpDef, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.schema import BUILTIN_CODES
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model


def _cases() -> Iterator[object]:
    """Each op with each of its operands that some sample has as a constant."""
    for op in builtin_ops().values():
        if op.stateful or (not op.is_custom and op.name not in BUILTIN_CODES):
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
    with Interpreter(model_content=content, experimental_delegates=delegates) as interpreter:
        interpreter.allocate_tensors()
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
