"""NaN and infinities in the kernels that only a GPU gets, run on the kernel interpreter.

Many ops choose a kernel by what the device can do: other tiles, several pixels an invocation, a
team for each result, matrix tiles. The devices of a machine without a GPU never ask for those, so
here the interpreter pretends to be such a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.conformance.op_checks import Question, ask, judge
from tflgpu.conformance.run import Tensors, prepare
from tflgpu.conformance.special import SpecialKind, SpecialNumbers, special_samples
from tflgpu.conformance.target import DeviceUnderTest
from tflgpu.ir.dtypes import Array
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import has_matrices
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import OpDef, Sample
from tflgpu.ops.conv import conv_sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.plugins.registry import registry
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

OPS = builtin_ops()
CAPS = {
    "large": DeviceCaps(
        f16_arithmetic=True, int8_storage=True, max_workgroup=1024,
        max_workgroup_size=(1024, 1024, 64), shared_bytes=48 << 10, max_buffer_bytes=1 << 31,
        max_bindings=1 << 20, subgroup=32, subgroup_shuffle=32, matrix_tiles=True,
        cache_bytes=50 << 20, compute_units=132, is_gpu=True, vendor="nvidia",
    ),
    # Invocations take several pixels where processors are few; no more than every API promises.
    "small": DeviceCaps(f16_arithmetic=True, is_gpu=True),
}  # fmt: skip
#: Ops whose kernels depend on the device, and those that differ once more on a small one.
LARGE = (
    "ADD_N", "AVERAGE_POOL_2D", "BATCH_MATMUL", "CONCATENATION", "CONV_2D",
    "Convolution2DTransposeBias", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "L2_POOL_2D", "LSTM",
    "MAX_POOL_2D", "MEAN", "MEAN_STDDEV_NORMALIZATION", "REDUCE_MAX", "SOFTMAX", "SUM",
    "TRANSPOSE_CONV",
)  # fmt: skip
SMALL = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")
DEVICES = [("large", op) for op in LARGE] + [("small", op) for op in SMALL]
#: Which operand is the filter or matrix of a product.
FILTERS = {"CONV_2D": 1, "DEPTHWISE_CONV_2D": 1, "FULLY_CONNECTED": 1, "TRANSPOSE_CONV": 1}
#: On matrix tiles, of depths that fill their stages and that do not.
DEEP = [
    conv_sample("matrix", (1, 5, 7, 37), (21, 3, 3, 37)),
    conv_sample("matrix_aligned", (1, 4, 8, 64), (32, 1, 1, 64)),
]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], DeviceUnderTest]]:
    opened: list[DeviceUnderTest] = []

    def make(name: str) -> DeviceUnderTest:
        opened.append(DeviceUnderTest.open(registry(), "cpu_ref", 1))
        monkeypatch.setattr(opened[-1].device, "caps", CAPS[name])
        return opened[-1]

    yield make
    for target in opened:
        target.close()


@attrs.frozen
class _Corner(SpecialNumbers):
    """A special number in the first or the last element of an operand."""

    last: bool = True

    def plant(self, index: int, data: Array, rng: np.random.Generator) -> Array:
        if index != self.operand:
            return data
        planted = np.array(data)
        planted.reshape(-1)[-1 if self.last else 0] = (
            np.inf if self.kind is SpecialKind.INF else np.nan
        )
        return planted


def _corners(op: OpDef, operand: int) -> list[tuple[Sample, SpecialNumbers]]:
    """Infinities at either end of an operand, which kernels read beside what is padding."""
    return [
        (sample, _Corner(SpecialKind.INF, operand, last=i % 3 > 0))
        for i, sample in enumerate(op.samples())
        if operand < len(sample.args) and sample.args[operand] is not None
    ]


def _check(target: DeviceUnderTest, questions: Sequence[Question]) -> int:
    """How many were answered; all of them rightly."""
    wrong, answered = [], 0
    for question, (case, answer) in zip(questions, ask(target, questions), strict=True):
        try:
            answered += judge(target, case, answer, half=question.half) is None
        except AssertionError as error:
            wrong.append(f"{question.name}: {error}")
    assert not wrong, "\n".join(wrong)
    return answered


@pytest.mark.parametrize(("caps", "op"), DEVICES)
def test_special_numbers_reach_what_they_should(
    pretend: Callable[[str], DeviceUnderTest], caps: str, op: str
) -> None:
    found = special_samples(OPS[op])
    if op in FILTERS:
        found = found + _corners(OPS[op], FILTERS[op])
    asked = [Question(OPS[op], s, Precision.F32, Tensors.INTERNAL, planted=p) for s, p in found]
    assert _check(pretend(caps), asked) >= len(asked) // 3


@pytest.mark.parametrize("precision", [Precision.F16, Precision.F32_F16], ids=lambda p: p.value)
def test_special_numbers_on_matrix_tiles(
    pretend: Callable[[str], DeviceUnderTest], precision: Precision
) -> None:
    target, op = pretend("large"), OPS["CONV_2D"]
    planted = [
        plant
        for kind in (SpecialKind.NAN, SpecialKind.INF, SpecialKind.MINUS_INF, SpecialKind.HUGE)
        for plant in (SpecialNumbers(kind, 0, 6e4), SpecialNumbers(kind, 1, 6e4))
    ]
    planted += [_Corner(kind, 1) for kind in (SpecialKind.INF, SpecialKind.NAN)]
    asked = [Question(op, s, precision, Tensors.INTERNAL, planted=p) for s in DEEP for p in planted]
    case = Question(op, DEEP[0], precision, Tensors.INTERNAL).case()
    prepared = prepare(case, target.compiled_for(precision), Tensors.INTERNAL)
    assert not isinstance(prepared, Unsupported)
    assert any(has_matrices(d.kernel) for d in prepared.plan.dispatches)
    assert _check(target, asked) == len(asked)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("op", ["ADD", "FULLY_CONNECTED"])
def test_a_constant_beyond_f16_is_infinite_without_a_word_of_numpys(op: str) -> None:
    """It would be an exception of NumPy's where warnings are errors."""
    constant = np.full((3, 4) if op == "FULLY_CONNECTED" else (4,), 1e6, np.float32)
    tensors = [
        TensorSpec("x", (1, 4)), TensorSpec("c", constant.shape, data=constant),
        TensorSpec("y", (1, 3 if op == "FULLY_CONNECTED" else 4)),
    ]  # fmt: skip
    given = (0, 1, -1) if op == "FULLY_CONNECTED" else (0, 1)
    content = write_model(ModelSpec(tensors, [OperatorSpec(op, {}, given, (2,))], (0,), (2,)))
    with (
        GpuDelegate(backend="cpu_ref", device=1, precision="f16", enable_serialization=False) as it,
        Interpreter(model_content=content, experimental_delegates=[it]) as interpreter,
    ):
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.ones((1, 4), np.float32))
        interpreter.invoke()
        assert np.isposinf(interpreter.get_tensor(2)).all()
