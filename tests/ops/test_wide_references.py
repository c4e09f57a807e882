"""References compute in 64 bits where they are given 64 bits: `tflgpu.conformance.float64` takes
what they make then for the truth between two results of 32 bits."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu.conformance.samples import materialize
from tflgpu.ir.dtypes import Array
from tflgpu.ops.base import OpDef
from tflgpu.ops.registry import builtin_ops

#: What they give changes in steps, which a small change of an operand does not reach.
STEPS = {"CEIL", "FLOOR", "FLOOR_DIV", "ROUND", "SIGN", "ZEROS_LIKE", "FAKE_QUANT",
         "QUANTIZE_AND_DEQUANTIZE", "QUANTIZE_ON_THE_FLY", "QUANTIZED_SOFTMAX",
         "QUANTIZED_TABLE", "ROUND_TO_BF16", "STORED_DIGIT", "STORED_HARD_SWISH", "STORED_PAIR",
         "STORED_PRODUCT",
         "STORED_SUMS", "STORED_TOTAL", "STORED_UNIT"}  # fmt: skip
#: Results of f32 whatever the operands are, which the judge refuses to take for more.
F32 = {"AudioSpectrogram", "BITCAST", "Landmarks2TransformMatrix", "Mfcc", "NON_MAX_SUPPRESSION_V5",
       "Resampler", "TFLite_Detection_PostProcess", "TransformTensor",
       "TransformTensorBilinear"}  # fmt: skip


def results(op: OpDef, index: int) -> tuple[list[Array], list[Array]] | None:
    """Of a sample's operands with digits beyond f32, and without them; None where it has no
    floats."""
    case = materialize(op, op.samples()[index])
    (node, *_) = case.graph
    rng = np.random.default_rng(0)
    wide: list[Array | None] = []
    for value in node.inputs:
        array = None if value is None else case.arrays.get(value.id, value.data)
        if array is not None and array.dtype == np.float32:
            array = array * (1 + 1e-11 * rng.integers(1, 9, array.shape))
        wide.append(array)
    if not any(a is not None and a.dtype == np.float64 for a in wide):
        return None
    narrow = [
        a if a is None or a.dtype != np.float64 else a.astype(np.float32).astype(np.float64)
        for a in wide
    ]
    found = [
        [a for a in op.reference(node.attrs, operands) if a.dtype.kind == "f"]
        for operands in (wide, narrow)
    ]
    return (found[0], found[1]) if found[0] else None


@pytest.mark.parametrize("name", sorted(set(builtin_ops()) - STEPS - F32))
def test_no_digit_is_lost(name: str) -> None:
    op = builtin_ops()[name]
    count = min(len(op.samples()), 4)
    pairs = [pair for i in range(count) if (pair := results(op, i)) is not None]
    if not pairs:
        pytest.skip("no floats go in and come out")
    assert all(a.dtype == np.float64 for wide, _ in pairs for a in wide)
    assert any(
        not np.array_equal(a, b, equal_nan=True)
        for pair in pairs
        for a, b in zip(*pair, strict=True)
    )
