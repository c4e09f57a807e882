"""Small models written by hand: a builder that infers shapes, for the recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.base import Fields, Operand
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec


class Net:
    """A model that grows; every method gives the index of the tensor that it made."""

    def __init__(self, seed: int = 0) -> None:
        self.tensors: list[TensorSpec] = []
        self.operators: list[OperatorSpec] = []
        self.inputs: list[int] = []
        self.rng = np.random.default_rng(seed)

    def _add(self, shape: Sequence[int], dtype: DType, data: Any = None, **more: Any) -> int:
        name = f"t{len(self.tensors)}"
        self.tensors.append(TensorSpec(name, tuple(shape), dtype, data, **more))
        return len(self.tensors) - 1

    def input(self, *shape: int, dtype: DType = DType.F32, quant: Any = None) -> int:
        """A graph input."""
        self.inputs.append(self._add(shape, dtype, quantization=_quant(quant)))
        return self.inputs[-1]

    def variable(self, *shape: int) -> int:
        """State, zero at first."""
        return self._add(shape, DType.F32, is_variable=True)

    def const(self, data: Any, dtype: DType = DType.I32, quant: Any = None) -> int:
        """A constant."""
        array: Array = np.asarray(data, dtype.numpy)
        return self._add(array.shape, dtype, array, quantization=_quant(quant))

    def weights(self, *shape: int, dtype: DType = DType.F32, scale: float = 0.5) -> int:
        """Random constants."""
        return self.const(self.rng.uniform(-scale, scale, shape), dtype)

    def whole_weights(
        self, *shape: int, axis: int | None = None, dtype: DType = DType.I8, scale: float = 0.02
    ) -> int:
        """Random 8-bit constants, with one scale or one for each index along ``axis``."""
        low, high = (0, 256) if dtype is DType.U8 else (-127, 128)
        data = self.rng.integers(low, high, shape)
        zero = 128 if dtype is DType.U8 else 0
        count = 1 if axis is None else shape[axis]
        scales = tuple(float(np.float32(scale * (1 + i / 4))) for i in range(count))
        quant = Quantization(scales, (zero,) * count, axis or 0)
        return self._add(shape, dtype, data.astype(dtype.numpy), quantization=quant)

    def whole_bias(self, count: int, x: int, weights: int) -> int:
        """An int32 bias on the scale of its products."""
        a, b = self.tensors[x].quantization, self.tensors[weights].quantization
        assert a is not None and b is not None
        scales = tuple(float(np.float32(a.scale[0]) * np.float32(s)) for s in b.scale)
        quant = Quantization(scales, (0,) * len(scales), 0)
        data = self.rng.integers(-200, 200, count)
        return self._add((count,), DType.I32, data.astype(np.int32), quantization=quant)

    def op(
        self,
        name: str,
        inputs: Sequence[int],
        fields: Mapping[str, Any] | None = None,
        *,
        version: int = 1,
        quant: Any = None,
        dtype: DType | None = None,
        shapes: Sequence[Sequence[int]] | None = None,
    ) -> Any:
        """An operator; the index of its result, or a list of several.

        ``quant`` is that of the results, ``dtype`` their type, ``shapes`` their shapes where the
        op is not to be asked (quantized operands would not do for its inference).
        """
        fields = dict(fields or {})
        if shapes is None:
            definition = builtin_ops()[name]
            operands = []
            for i in inputs:
                t = self.tensors[i] if i >= 0 else None
                # Shapes do not depend on whether numbers are stored as 8 bits.
                real = t is not None and t.quantization is not None
                kind = DType.F32 if real else (t.dtype if t else DType.F32)
                spec = None if t is None else Operand(
                    _spec(t.shape, kind), None if t.data is None or real else np.asarray(t.data)
                )  # fmt: skip
                operands.append(spec)
            found = definition.infer(definition.parse(Fields(name, fields)), operands)
            made = [(s.shape, s.dtype) for s in found]
        else:
            made = [(tuple(s), dtype or DType.F32) for s in shapes]
        outputs = [self._add(s, dtype or d, quantization=_quant(quant)) for s, d in made]
        self.operators.append(OperatorSpec(name, fields, tuple(inputs), outputs, version=version))
        return outputs[0] if len(outputs) == 1 else outputs

    def model(self, *outputs: int) -> ModelSpec:
        """The finished model."""
        return ModelSpec(self.tensors, self.operators, self.inputs, outputs)


def _spec(shape: tuple[int, ...], dtype: DType) -> Any:
    from tflgpu.ir.graph import TensorSpec as GraphSpec

    return GraphSpec(shape, dtype)


def _quant(quant: Any) -> Quantization | None:
    if quant is None or isinstance(quant, Quantization):
        return quant
    scale, zero = quant
    return Quantization((float(np.float32(scale)),), (zero,))
