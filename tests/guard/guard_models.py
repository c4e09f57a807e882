"""Small models that f16 spoils in one place, or not at all; and a delegate whose device lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

SHAPE = (1, 5, 7)


def model(
    shapes: Sequence[tuple[int, ...]],
    operators: Sequence[tuple[str, Sequence[int], int]],
    outputs: Sequence[int],
    inputs: Sequence[int] = (0,),
    constants: Mapping[int, Array] | None = None,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    types: Mapping[int, DType] | None = None,
) -> bytes:
    """Tensors by shape, and operators as (op, operands, result)."""
    constants, types = constants or {}, types or {}
    tensors = [
        TensorSpec(
            f"t{i}",
            s,
            types.get(i) or (DType.from_numpy(constants[i].dtype) if i in constants else DType.F32),
            constants.get(i),
        )
        for i, s in enumerate(shapes)
    ]
    made = [OperatorSpec(op, (fields or {}).get(op, {}), i, (o,)) for op, i, o in operators]
    return write_model(ModelSpec(tensors, made, inputs, outputs))


def norm(axis: int = 2) -> bytes:
    """NEG, then every row (or column) over its length, then TANH: #1 SQUARE overflows in f16 at
    256, and only what reads its result has to follow: #2 SUM and #3 RSQRT. #0, #4 and #5 are
    innocent."""
    row = tuple(1 if i == axis else n for i, n in enumerate(SHAPE))
    return model(
        [SHAPE, SHAPE, SHAPE, (1,), row, row, SHAPE, SHAPE],
        [
            ("NEG", (0,), 1), ("SQUARE", (1,), 2), ("SUM", (2, 3), 4), ("RSQRT", (4,), 5),
            ("MUL", (1, 5), 6), ("TANH", (6,), 7),
        ],
        (7,),
        constants={3: np.array([axis], np.int32)},
        fields={"SUM": {"keep_dims": True}},
    )  # fmt: skip


def norm_of(x: Array, axis: int = 2) -> Array:
    """What `norm` computes, in 64 bits."""
    x = -x.astype(np.float64)
    return np.tanh(x / np.sqrt(np.square(x).sum(axis, keepdims=True)))


def large(seed: int = 0) -> Array:
    """Numbers of a few hundred: they fit into f16, and their squares do not."""
    return np.random.default_rng(seed).normal(0, 400, SHAPE).astype(np.float32)


def small(seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 1, SHAPE).astype(np.float32)


def chain(*ops: str, shape: tuple[int, ...] = SHAPE) -> bytes:
    """Operators of one operand, one after another."""
    steps = [(op, (i,), i + 1) for i, op in enumerate(ops)]
    return model([shape] * (len(ops) + 1), steps, (len(ops),))


class Spoilt:
    """A device that returns ``factor`` times what it computed, for outputs of one name."""

    def __init__(self, device: Any, name: str, factor: float) -> None:
        self._device, self._name, self._factor = device, name, factor
        self.loads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def load(self, plan: Any, *, guard_bands: bool = False) -> Any:
        self.loads += 1
        recording = self._device.load(plan, guard_bands=guard_bands)
        places = [i for i, output in enumerate(plan.outputs) if output.name == self._name]
        run = recording.run

        def spoil() -> None:
            run()
            for place in places:
                recording.outputs[place][...] *= self._factor

        recording.run = spoil
        return recording


def spoilt(name: str, factor: float = 1.5, **options: Any) -> tflgpu.GpuDelegate:
    delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1, **options)
    opened = delegate.provider.opened
    opened.device = Spoilt(opened.device, name, factor)
    return delegate


class Ours:
    """tflgpu's interpreter with a delegate, as a function of arrays."""

    def __init__(self, content: bytes, delegate: tflgpu.GpuDelegate) -> None:
        self.interpreter = tflgpu.Interpreter(
            model_content=content, experimental_delegates=[delegate]
        )
        self.interpreter.allocate_tensors()
        self.inputs = [d["index"] for d in self.interpreter.get_input_details()]
        self.outputs = [d["index"] for d in self.interpreter.get_output_details()]

    def __call__(self, *arrays: Array) -> list[Array]:
        for index, array in zip(self.inputs, arrays, strict=True):
            self.interpreter.set_tensor(index, array)
        self.interpreter.invoke()
        return [self.interpreter.get_tensor(index) for index in self.outputs]

    @property
    def report(self) -> Any:
        return self.interpreter.report

    @property
    def session(self) -> Any:
        return self.interpreter._main._memory.session

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *exc: object) -> None:
        self.interpreter.close()
