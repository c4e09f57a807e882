"""Pieces of real models: a few operators of one, made small, with random weights in place of its
own. Made when the fuzzer runs; nothing of the models is kept."""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec, spec_of
from tflgpu.tflite.write import write_model

#: Constants up to this many whole numbers are shapes, axes and paddings, and keep their values.
_SMALL = 16
#: Operators whose int32 constants name sizes, which shrink with the tensors.
_SIZES = {"RESHAPE": (1,), "STRIDED_SLICE": (1, 2), "SLICE": (1, 2), "RESIZE_BILINEAR": (1,),
          "RESIZE_NEAREST_NEIGHBOR": (1,), "TRANSPOSE_CONV": (0,), "SPLIT_V": (1,),
          "BROADCAST_TO": (1,), "TILE": ()}  # fmt: skip
_TRIES = 12


def small(size: int) -> int:
    """A size that stands for a large one; equal sizes stay equal, multiples of 4 stay such."""
    if size <= 8:
        return size
    return 4 * (1 + (size // 4) % 3) if size % 4 == 0 else 3 + 2 * (size % 4)


def cuts(folder: Path | None = None, per_model: int = 6) -> dict[str, ModelSpec]:
    """Pieces by name; none where there is no folder of models (TFLGPU_MODELS)."""
    given = os.environ.get("TFLGPU_MODELS")
    folder = folder or (Path(given) if given else None)
    if folder is None or not folder.is_dir():
        return {}
    found: dict[str, ModelSpec] = {}
    for path in sorted(folder.glob("*.tflite")):
        try:
            spec = spec_of(read_model(path))
        except TflgpuError:
            continue
        rng = random.Random(path.name)
        made = 0
        for number in range(_TRIES * per_model):
            piece = _piece(spec, rng)
            if piece is not None and _works(piece):
                found[f"{path.stem}:{number}"] = piece
                made += 1
                if made == per_model:
                    break
    return found


def _works(piece: ModelSpec) -> bool:
    try:
        graph = build_graph(read_model(write_model(piece)), 0, builtin_ops())
    except TflgpuError:
        return False
    # Where shrinking left a shape that is not what the operator makes, the next piece will do.
    if any(
        v.shape != piece.tensors[i].shape
        for i, v in graph.values.items()
        if piece.tensors[i].has_rank and -1 not in (piece.tensors[i].shape_signature or ())
    ):
        return False
    return sum(int(np.prod(v.shape)) for v in graph.values.values()) < 60_000


def _piece(spec: ModelSpec, rng: random.Random) -> ModelSpec | None:
    makers = {o: op for op in spec.operators for o in op.outputs}
    constant = {i for i, t in enumerate(spec.tensors) if t.data is not None}
    # A DEQUANTIZE of f16 weights belongs to whatever reads it.
    for op in spec.operators:
        if all(i < 0 or i in constant for i in op.inputs):
            constant.update(op.outputs)
    real = [op for op in spec.operators if not all(o in constant for o in op.outputs)]
    length = rng.randint(3, 15)
    start = rng.randrange(max(1, len(real) - length + 1))
    chosen = real[start : start + length]
    prepared: list[OperatorSpec] = []
    for op in chosen:
        for i in op.inputs:
            if i in constant and i in makers and makers[i] not in prepared:
                prepared.append(makers[i])
    operators = [*prepared, *chosen]
    used = sorted(
        {i for op in operators for i in (*op.inputs, *op.outputs, *op.intermediates) if i >= 0}
    )
    if len(used) > 80:
        return None
    made = {o for op in operators for o in op.outputs}
    read = {i for op in chosen for i in op.inputs}
    variables = {i for i in used if spec.tensors[i].is_variable}
    inputs = [
        i for i in used if i not in made and spec.tensors[i].data is None and i not in variables
    ]
    later = {i for op in spec.operators for i in op.inputs if op not in operators}
    outputs = [o for op in chosen for o in op.outputs
               if o not in read or o in later or o in spec.outputs]  # fmt: skip
    sizes = {
        op.inputs[p] for op in operators for p in _SIZES.get(op.name, ()) if p < len(op.inputs)
    }
    place = {old: new for new, old in enumerate(used)} | {-1: -1}
    tensors = [_shrink(spec.tensors[i], i in sizes, i) for i in used]
    return ModelSpec(
        tensors,
        [
            attrs.evolve(
                op,
                fields=_fields(op),
                inputs=[place[i] for i in op.inputs],
                outputs=[place[i] for i in op.outputs],
                intermediates=[place[i] for i in op.intermediates],
            )
            for op in operators
        ],
        [place[i] for i in inputs],
        [place[o] for o in dict.fromkeys(outputs)],
    )


def _fields(op: OperatorSpec) -> dict[str, Any]:
    fields = dict(op.fields)
    if isinstance(fields.get("new_shape"), tuple):
        fields["new_shape"] = tuple(small(d) for d in fields["new_shape"])
    return fields


def _shrink(tensor: TensorSpec, is_size: bool, index: int) -> TensorSpec:
    shape = tuple(small(d) for d in tensor.shape)
    quant = tensor.quantization
    if quant is not None and quant.per_axis and quant.axis < len(shape):
        count = shape[quant.axis]
        quant = Quantization(quant.scale[:count], quant.zero_point[:count], quant.axis)
    name = f"t{index}"
    signature = tensor.shape_signature
    if signature is not None:
        signature = tuple(-1 if s < 0 else d for s, d in zip(signature, shape, strict=True))
    common = {"name": name, "quantization": quant, "shape_signature": signature, "sparsity": None}
    if tensor.data is None:
        return attrs.evolve(tensor, shape=shape, **common)
    data = np.asarray(tensor.data)
    if tensor.dtype in (DType.I32, DType.I64) and quant is None and data.size <= _SMALL:
        kept = data
        if is_size:
            kept = np.array([small(int(d)) for d in data.reshape(-1)], data.dtype).reshape(
                data.shape
            )
        return attrs.evolve(tensor, data=kept, **{**common, "sparsity": None})
    rng = np.random.default_rng([index, zlib.crc32(str(shape).encode())])
    drawn: Any
    if tensor.dtype.is_float and tensor.dtype.has_numpy:
        # Small positive numbers where the original has one: an epsilon, a scale.
        single = data.size == 1 and float(data.reshape(-1)[0]) > 0
        drawn = np.full(shape, 1e-3) if single else rng.uniform(-0.5, 0.5, shape)
    elif tensor.dtype in (DType.I8, DType.U8):
        drawn = rng.integers(1, 127, shape)
    elif tensor.dtype.has_numpy:
        drawn = rng.integers(0, 4, shape)
    else:
        drawn = np.zeros(shape)
        return attrs.evolve(
            tensor, shape=shape, dtype=DType.F32, data=drawn.astype(np.float32), **common
        )
    return attrs.evolve(tensor, shape=shape, data=drawn.astype(tensor.dtype.numpy), **common)
