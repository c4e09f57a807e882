"""Operands on other scales than each other or than the result: comparisons rescale, most that
only move elements take the stored numbers as they are, and so does every device. Held against
LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


#: Scale and zero point as i8.
Scale = tuple[float, int]
A, B, RESULT = (0.03, 3), (0.05, -7), (0.04, 1)
TWICE, HALF = (0.5, 10), (0.25, -128)


@attrs.frozen
class Stored:
    """A tensor of 8-bit numbers; ``data`` makes it a constant."""

    shape: tuple[int, ...]
    scale: Scale
    data: int | None = None


@attrs.frozen
class Case:
    """An operator; an operand that is no `Stored` is an i32 constant, or a shape of booleans."""

    op: str
    operands: tuple[Any, ...]
    results: tuple[Union[Stored, tuple[int, ...]], ...]
    fields: dict[str, Any] = attrs.field(factory=dict, hash=False)
    version: int = 2
    most: int = 0


@attrs.frozen
class Bools:
    """A runtime operand of booleans."""

    shape: tuple[int, ...]


_S = (1, 5, 7, 3)
_X = Stored(_S, A)
_POOL = {"padding": 0, "stride_h": 2, "stride_w": 2, "filter_height": 3, "filter_width": 3}
_COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
SCALES_CASES = (
    *(Case(op, (_X, Stored(_S, B)), (_S,)) for op in _COMPARISONS[2:]),
    # Numbers that meet exactly, and scales so far apart that one operand is all but 0.
    *(Case(op, (Stored((61, 1), TWICE), Stored((67,), HALF)), ((61, 67),)) for op in _COMPARISONS),
    *(Case(op, (Stored(_S, TWICE), Stored(_S, (1e-3, -128))), (_S,)) for op in _COMPARISONS[2:]),
    Case("MAXIMUM", (_X, Stored(_S, B)), (Stored(_S, RESULT),)),
    Case("MINIMUM", (_X, Stored((3,), B)), (Stored(_S, RESULT),)),
    Case("SELECT_V2", (Bools(_S), _X, Stored((3,), B)), (Stored(_S, RESULT),), version=1),
    Case("ONE_HOT", ([0, 2, -1, 7], 4, Stored((), A, 100), Stored((), B, -3)),
         (Stored((4, 4), RESULT),), {"axis": -1}, 1),
    Case("PADV2", (_X, [[0, 0], [1, 1], [2, 0], [0, 0]], Stored((1,), A, 50)),
         (Stored((1, 7, 9, 3), A),)),
    Case("PAD", (_X, [[0, 0], [1, 1], [2, 0], [0, 0]]), (Stored((1, 7, 9, 3), RESULT),)),
    Case("RESHAPE", (_X, [105]), (Stored((105,), RESULT),), {"new_shape": [105]}, 1),
    Case("TRANSPOSE", (_X, [0, 3, 1, 2]), (Stored((1, 3, 5, 7), RESULT),)),
    Case("GATHER", (_X, [1, 0]), (Stored((1, 5, 7, 2), RESULT),), {"axis": 3}),
    Case("SPLIT", (3, Stored((1, 3, 5, 6), A)),
         (Stored((1, 3, 5, 3), RESULT), Stored((1, 3, 5, 3), B)), {"num_splits": 2}),
    Case("DYNAMIC_UPDATE_SLICE", (Stored((5, 7), A), Stored((2, 3), B), [1, 2]),
         (Stored((5, 7), RESULT),), {}, 1),
    Case("MAX_POOL_2D", (_X,), (Stored((1, 3, 4, 3), RESULT),),
         {**_POOL, "fused_activation_function": 3}),
    Case("AVERAGE_POOL_2D", (_X,), (Stored((1, 3, 4, 3), RESULT),), _POOL, most=1),
)  # fmt: skip
#: LiteRT rescales these of u8, and refuses them of i8.
ONLY_U8 = (
    Case("CONCATENATION", (_X, Stored(_S, B)), (Stored((1, 5, 7, 6), RESULT),), {"axis": 3},
         most=1),
)  # fmt: skip


@attrs.define
class Writing:
    """A model of operators beside each other."""

    dtype: DType
    rng: np.random.Generator
    tensors: list[TensorSpec] = attrs.field(factory=list)
    operators: list[OperatorSpec] = attrs.field(factory=list)
    inputs: list[int] = attrs.field(factory=list)
    arrays: list[Array] = attrs.field(factory=list)
    outputs: list[int] = attrs.field(factory=list)

    def tensor(self, *given: Any) -> int:
        self.tensors.append(TensorSpec(f"t{len(self.tensors)}", *given))
        return len(self.tensors) - 1

    def stored(self, what: Stored) -> int:
        scale, zero = what.scale
        shift = 128 if self.dtype is DType.U8 else 0
        data = None
        if what.data is not None:
            data = np.full(what.shape, what.data + shift, self.dtype.numpy)
        quant = Quantization((float(np.float32(scale)),), (zero + shift,))
        return self.tensor(what.shape, self.dtype, data, quant)

    def operand(self, given: Any) -> int:
        if isinstance(given, Bools):
            self.inputs.append(self.tensor(given.shape, DType.BOOL))
            self.arrays.append(self.rng.random(given.shape) < 0.5)
        elif isinstance(given, Stored):
            index = self.stored(given)
            if given.data is not None:
                return index
            info = np.iinfo(self.dtype.numpy)
            self.inputs.append(index)
            self.arrays.append(
                self.rng.integers(info.min, info.max, given.shape, self.dtype.numpy, endpoint=True)
            )
        else:
            array = np.asarray(given, np.int32)
            return self.tensor(array.shape, DType.I32, array)
        return self.inputs[-1]

    def add(self, case: Case) -> None:
        operands = [self.operand(given) for given in case.operands]
        results = [
            self.stored(r) if isinstance(r, Stored) else self.tensor(r, DType.BOOL)
            for r in case.results
        ]
        self.operators.append(
            OperatorSpec(case.op, case.fields, operands, results, version=case.version)
        )
        self.outputs += results

    def content(self) -> bytes:
        return write_model(ModelSpec(self.tensors, self.operators, self.inputs, self.outputs))


def run(
    interpreter: Any, inputs: Sequence[int], arrays: Sequence[Array], outputs: Sequence[int]
) -> list[Array]:
    interpreter.allocate_tensors()
    for index, array in zip(inputs, arrays, strict=True):
        interpreter.set_tensor(index, array)
    interpreter.invoke()
    return [np.array(interpreter.get_tensor(index)) for index in outputs]


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8], ids=["i8", "u8"])
@pytest.mark.parametrize(("backend", "index"), [("cpu_ref", 0), ("cpu_ref", 1), ("vulkan", 0)])
def test_as_the_reference_kernels(backend: str, index: int, dtype: DType) -> None:
    cases = SCALES_CASES + (ONLY_U8 if dtype is DType.U8 else ())
    writing = Writing(dtype, np.random.default_rng(2))
    for case in cases:
        writing.add(case)
    content, given = writing.content(), (writing.inputs, writing.arrays, writing.outputs)
    kind = litert.OpResolverType.BUILTIN_REF
    wanted = run(
        litert.Interpreter(model_content=content, experimental_op_resolver_type=kind), *given
    )
    with tflgpu.GpuDelegate(backend=backend, device=index, allow_fallback=False) as delegate:
        interpreter = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        found = run(interpreter, *given)
        interpreter.close()
    owners = [case for case in cases for _ in case.results]
    for case, got, want in zip(owners, found, wanted, strict=True):
        steps = np.abs(got.astype(np.int32) - want.astype(np.int32)).max()
        assert steps <= case.most, f"{case.op}: {steps} steps"
        assert len(np.unique(want)) > 1, f"{case.op}: the results say nothing"
