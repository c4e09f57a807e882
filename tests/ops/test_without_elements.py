"""References of tensors without elements: of the shape that inference says, or refused in words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tflgpu.conformance.samples import materialize
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import OpDef, Operand, Sample
from tflgpu.ops.registry import builtin_ops

#: Samples of an op: its shapes differ more than its options.
_MOST = 3


def emptied(
    op: OpDef, sample: Sample
) -> Iterator[tuple[object, list[Operand | None], list[Array | None]]]:
    """Attributes and operands of a sample, with a size of an operand, and of those shaped like it,
    0."""
    case = materialize(op, sample)
    node = case.node
    for value in node.inputs:
        if value is None or value.data is not None or value.is_variable:
            continue
        for axis in range(len(value.shape)):
            operands: list[Operand | None] = []
            arrays: list[Array | None] = []
            for other in node.inputs:
                if other is None:
                    operands.append(None)
                    arrays.append(None)
                    continue
                array = case.arrays.get(other.id, other.data)
                if array is None:
                    array = np.zeros(other.shape, other.dtype.numpy)
                if other.data is None and other.shape == value.shape:
                    array = np.zeros(
                        [0 if i == axis else d for i, d in enumerate(array.shape)], array.dtype
                    )
                operands.append(Operand(TensorSpec(array.shape, other.dtype), other.data))
                arrays.append(array)
            yield node.attrs, operands, arrays


@pytest.mark.parametrize("op", builtin_ops().values(), ids=lambda op: op.name)
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_a_reference_agrees_with_its_inference(op: OpDef) -> None:
    for sample in list(op.samples())[:_MOST]:
        for attributes, operands, arrays in emptied(op, sample):
            try:
                specs = op.infer(attributes, operands)
                with np.errstate(all="ignore"):
                    results = op.reference(attributes, arrays)
            except TflgpuError as error:
                assert str(error)
                continue
            for result, spec in zip(results, specs, strict=False):  # then the state, if it has one
                assert result.shape == spec.shape, (sample.id, arrays)
                assert result.dtype == spec.dtype.numpy


@pytest.mark.parametrize(
    "name", ["CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "MAX_POOL_2D", "FULLY_CONNECTED"]
)
def test_no_items(name: str) -> None:
    """A batch of none, which LiteRT runs."""
    op = builtin_ops()[name]
    attributes, operands, arrays = next(emptied(op, op.samples()[0]))
    (spec,) = op.infer(attributes, operands)
    (result,) = op.reference(attributes, arrays)
    assert result.shape == spec.shape
    assert spec.shape[0] == 0
    assert 0 not in spec.shape[1:]
