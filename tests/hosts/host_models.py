"""Small models, and LiteRT's interpreter with and without a delegate, for the tests of hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tflgpu.conformance.samples import SampleCase
from tflgpu.ir.dtypes import Array
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import results

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

#: Fields that stand for what a file says of an operator's tensors.
_OF_TENSORS = frozenset({"input_quantization", "output_quantization", "output_dtype"})


def host(model: bytes | str, *delegates: Any, allocate: bool = True, **options: Any) -> Any:
    """LiteRT's interpreter."""
    source = {"model_content": model} if isinstance(model, bytes) else {"model_path": model}
    made = litert.Interpreter(**source, experimental_delegates=list(delegates), **options)
    if allocate:
        made.allocate_tensors()
    return made


def plain(model: bytes | str, **options: Any) -> Any:
    """The same without a delegate, not even its own."""
    resolver = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return host(model, experimental_op_resolver_type=resolver, **options)


def run(interpreter: Any, *inputs: Array) -> list[Array]:
    return results(interpreter, inputs)


def chain(
    *ops: str,
    shape: tuple[int, ...] = (2, 5),
    signature: tuple[int, ...] | None = None,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
) -> bytes:
    """Operators of one operand, one after another, all tensors f32 of one shape."""
    tensors = [TensorSpec(f"t{i}", shape, shape_signature=signature) for i in range(len(ops) + 1)]
    operators = [
        OperatorSpec(op, (fields or {}).get(op, {}), (i,), (i + 1,)) for i, op in enumerate(ops)
    ]
    return write_model(ModelSpec(tensors, operators, (0,), (len(ops),)))


def samples_model(cases: Sequence[SampleCase]) -> bytes:
    """A file with the one operator of each sample, side by side."""
    tensors: list[TensorSpec] = []
    operators: list[OperatorSpec] = []
    inputs: list[int] = []
    outputs: list[int] = []
    for case in cases:
        start, graph, sample = len(tensors), case.graph, case.sample
        for key in range(len(graph.values)):
            v = graph.values[key]
            tensors.append(
                TensorSpec(
                    f"{sample.id}/{v.name}", v.shape, v.dtype, v.data, v.quant,
                    is_variable=v.is_variable,
                )
            )  # fmt: skip
        operators.append(
            OperatorSpec(
                case.op.name,
                {k: v for k, v in sample.fields.items() if k not in _OF_TENSORS},
                [-1 if v is None else start + v.id for v in case.node.inputs],
                [start + v.id for v in case.node.outputs],
                version=sample.version,
                custom_options=sample.custom_options,
            )
        )
        inputs += [start + v.id for v in graph.inputs]
        outputs += [start + v.id for v in graph.outputs]
    return write_model(ModelSpec(tensors, operators, inputs, outputs))
