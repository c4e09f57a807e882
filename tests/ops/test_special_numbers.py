"""NaN, infinities and huge numbers in the operands of every float op: references against LiteRT.

LiteRT has two kernels for most ops, XNNPACK's and its own, and they do not always agree. A
reference must do what one of them does, or differ in a way that docs/nan.md gives a reason for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.conformance.special import SpecialNumbers, special_samples
from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ops.axes import integers
from tflgpu.ops.base import Fields, OpDef, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.schema import BUILTIN_CODES

from tests.ops.all_of import all_of
from tests.ops.test_reference_vs_litert import GPU_ONLY, NOT_IN_LITERT, litert, single_op_model
from tests.small_models import small_model

OPS = builtin_ops()
LARGEST = np.finfo(np.float32).max

#: Ours is NaN where LiteRT's kernels, by the order of operands and elements, may lose it.
NAN_STAYS = frozenset(
    {"MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN", "MAX_POOL_2D", "MaxPoolingWithArgmax2D",
     "AudioSpectrogram", "BIDIRECTIONAL_SEQUENCE_LSTM", "LSTM", "RNN", "SVDF",
     "UNIDIRECTIONAL_SEQUENCE_LSTM", "FAKE_QUANT", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN",
     "CONV_3D", "CONV_3D_TRANSPOSE", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM",
     "STABLEHLO_REDUCE_WINDOW", "REDUCE_WINDOW", "STABLEHLO_SCATTER"}
)  # fmt: skip
#: LiteRT's is NaN where ours is a number: a sliding sum does not forget it; inf * 0.
NAN_SPREADS = frozenset({"LOCAL_RESPONSE_NORMALIZATION", "RESIZE_BILINEAR"})
#: LiteRT gives nothing to compare with, by op and sample ("" = all).
NO_ORACLE = {
    ("FLOOR_DIV", ""): "LiteRT refuses a divisor that is zero",
    ("ADD_N", "three"): "LiteRT clamps to the largest number after each sum",
    ("ADD_N", "five"): "LiteRT clamps to the largest number after each sum",
    ("ADD_N", "ten"): "LiteRT clamps to the largest number after each sum",
    (
        "DEPTHWISE_CONV_2D",
        "runtime_filter",
    ): "a filter made at run time is for LiteRT's own kernel, which leaves padding out; with a "
    "constant one XNNPACK makes NaN of padding times infinity, and so do all kernels here",
    ("QUANTIZE", "i16_rank2"): "LiteRT's kernel converts what is out of range by accident",
    (
        "TFLite_Detection_PostProcess",
        "fast_no_background",
    ): "its order of NaN scores is by accident",
    ("RFFT2D", ""): "LiteRT leaves products with zero out, of what is not finite too",
    ("NON_MAX_SUPPRESSION_V4", ""): "overlaps of boxes that are not finite are by accident",
    ("NON_MAX_SUPPRESSION_V5", ""): "overlaps of boxes that are not finite are by accident",
    ("MaxPoolingWithArgmax2D", ""): "places are numbered differently; see the test of its own",
    ("MaxUnpooling2D", ""): "places are numbered differently; see the test of its own",
}

#: By op: its samples, each with what is planted in it.
CASES = {
    op.name: found
    for op in OPS.values()
    if op.is_custom or op.name in BUILTIN_CODES.keys() - GPU_ONLY
    if (
        found := {
            f"{sample.id}-{planted.name}": (sample, planted)
            for sample, planted in special_samples(op)
            if (op.name, sample.id) not in NOT_IN_LITERT
            if not {(op.name, sample.id), (op.name, "")} & NO_ORACLE.keys()
        }
    )
}


def run_litert(case: SampleCase, resolver: object) -> list[Array] | None:
    """What LiteRT computes, None where it has no such kernel."""
    interpreter = litert.Interpreter(
        model_content=single_op_model(case), experimental_op_resolver_type=resolver
    )
    try:
        interpreter.allocate_tensors()
    except RuntimeError as error:
        if "unresolved custom op" in str(error):
            return None
        raise
    for value in case.node.inputs:
        if value is not None and value.id in case.arrays:
            interpreter.set_tensor(value.id, case.arrays[value.id])
    interpreter.invoke()
    return [interpreter.get_tensor(v.id) for v in case.graph.outputs]


def difference(case: SampleCase, theirs: Sequence[Array]) -> str | None:
    """What of the reference has neither LiteRT's value nor a reason."""
    for index, (ours, other) in enumerate(zip(case.expected, theirs, strict=True)):
        if ours.dtype.kind != "f":
            known = ours
            if case.op.name in ("ARG_MAX", "ARG_MIN"):
                # It starts from the first element, or the first few at once, NaN or not.
                known = np.where(_starts_with_nan(case), other, ours).astype(ours.dtype)
            problem = case.tolerance().mismatch(known, other)
        else:
            # LiteRT's own kernels clamp to the largest number where no activation is fused.
            explained = ~np.isfinite(ours) & (np.abs(other) == LARGEST)
            if case.op.name in NAN_STAYS:
                explained |= np.isnan(ours)
            if case.op.name in NAN_SPREADS:
                explained |= np.isnan(other)
            rest = [np.where(explained, a.dtype.type(0), a) for a in (ours, other)]
            problem = case.tolerance().mismatch(*rest)
        if problem is not None:
            return f"output {index}: {problem}"
    return None


def _starts_with_nan(case: SampleCase) -> Array:
    (x,) = case.arrays.values()
    (axis,) = integers(case.node.const(1))
    return np.isnan(np.take(x, 0, axis)) if x.dtype.kind == "f" else np.zeros((), bool)


@pytest.mark.parametrize("op", CASES)
def test_reference_does_as_a_kernel_of_litert(op: str) -> None:
    all_of({name: partial(_as_a_kernel, OPS[op], *case) for name, case in CASES[op].items()})


def _as_a_kernel(op: OpDef, sample: Sample, planted: SpecialNumbers) -> None:
    case = materialize(op, sample, planted=planted)
    resolvers = litert.OpResolverType
    problems = {}
    for name in ("BUILTIN_WITHOUT_DEFAULT_DELEGATES", "AUTO"):
        theirs = run_litert(case, getattr(resolvers, name))
        if theirs is None:
            continue
        problem = difference(case, theirs)
        if problem is None:
            return
        problems[name] = problem
    if not problems and op.is_custom:
        pytest.skip("LiteRT has no kernel for it")
    raise AssertionError("\n".join(f"{name}: {text}" for name, text in problems.items()))


def reference(op: str, *operands: object, **fields: object) -> list[Array]:
    definition = OPS[op]
    with np.errstate(all="ignore"):
        return definition.reference(
            definition.parse(Fields(op, fields)), [np.asarray(o) for o in operands]
        )


def test_a_maximum_keeps_a_nan_of_either_operand() -> None:
    a, b = np.float32([[np.nan, 1, np.nan]]), np.float32([[1, np.nan, np.inf]])
    for op in ("MAXIMUM", "MINIMUM"):
        assert np.isnan(reference(op, a, b)[0]).all()


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("window", [(1, 1), (3, 2), (3, 3)])
def test_a_depthwise_filter_sees_its_window_alone(window: tuple[int, int], special: float) -> None:
    x, weights = np.ones((1, 6, 6, 3), np.float32), np.ones((1, *window, 3), np.float32)
    x[0, 2, 2, 1] = special
    bias = np.zeros(3, np.float32)
    fields = {"padding": 1, "stride_h": 1, "stride_w": 1, "depth_multiplier": 1}
    (ours,) = reference("DEPTHWISE_CONV_2D", x, weights, bias, **fields)
    tensors = {"x": x.shape, "w": weights, "b": bias, "y": ours.shape}
    # XNNPACK's answer is NaN beside the windows, too, of filters of 1x1 and 3x2.
    interpreter = litert.Interpreter(
        model_content=small_model(tensors, ("y = DEPTHWISE_CONV_2D(x, w, b)", fields)),
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    theirs = interpreter.get_tensor(3)
    # It clamps what is infinite to the largest number.
    known = np.where(np.isinf(ours), LARGEST, ours).astype(np.float32)
    np.testing.assert_array_equal(known, np.where(np.isnan(ours), np.nan, theirs))
    assert np.count_nonzero(~np.isfinite(ours)) == window[0] * window[1]


def test_positions_of_extremes_pass_over_nan() -> None:
    x = np.float32([[np.nan, 1, 2], [2, np.nan, 1], [np.nan] * 3, [-np.inf, np.nan, -np.inf]])
    axis = np.int32(1)
    np.testing.assert_array_equal(reference("ARG_MAX", x, axis, output_type=2)[0], [2, 0, 0, 0])
    np.testing.assert_array_equal(reference("ARG_MIN", x, axis, output_type=2)[0][:3], [1, 2, 0])


def test_a_pool_with_places_points_at_the_first_nan() -> None:
    op = OPS["MaxPoolingWithArgmax2D"]
    sample = next(s for s in op.samples() if s.id == "even")
    case = materialize(op, sample)
    (x,) = case.arrays.values()
    x[0, :2, :2, 0] = [[5, np.nan], [7, np.nan]]
    pooled, places = op.reference(case.node.attrs, [x])
    assert np.isnan(pooled[0, 0, 0, 0])
    assert int(places[0, 0, 0, 0]) == 1
    assert np.isfinite(pooled).sum() == pooled.size - 1


def test_a_place_that_is_nan_is_nowhere() -> None:
    op = OPS["MaxUnpooling2D"]
    sample = next(s for s in op.samples() if s.id == "plain")
    case = materialize(op, sample)
    x, places = (case.arrays[v.id] for v in case.graph.inputs)
    places[...] = np.nan
    assert not op.reference(case.node.attrs, [x, places])[0].any()


@pytest.mark.parametrize(
    "operands", [(0, np.nan, 1), (np.inf, 1, 1), (0, 1, np.nan), (-3e38, 3e38, 1e-30)]
)
def test_a_range_without_an_end_is_a_model_error(operands: tuple[float, ...]) -> None:
    with pytest.raises(ModelError, match="RANGE"):
        reference("RANGE", *(np.float32(v) for v in operands))
