"""Operators for rules to be asked about, without a file around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from tflgpu.ir.dtypes import DType
from tflgpu.profiles.file_operator import FileOperator, FileSubgraph
from tflgpu.profiles.rules import RuleTable
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo, TensorInfo


@attrs.frozen
class T:
    """A tensor: ``T(1, 5, 5, 8)``, of ``dtype``, constant where it has ``data``."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    data: Any = None

    def __init__(self, *shape: int, dtype: str = "f32", data: Any = None) -> None:
        self.__attrs_init__(shape, dtype, data)  # type: ignore[attr-defined]


def const(*shape: int, dtype: str = "f32", data: Any = None) -> T:
    """A constant tensor, of zeros unless ``data`` is given."""
    numbers = np.zeros(shape, np.float32) if data is None else np.array(data)
    return T(*(numbers.shape if data is not None else shape), dtype=dtype, data=numbers)


def graph(
    *operators: tuple[str, Sequence[int], Sequence[int]],
    tensors: Sequence[T],
    fields: Mapping[str, Any] | None = None,
    version: int = 1,
    custom: bool = False,
) -> SubgraphInfo:
    """A subgraph of operators by name, indices of inputs and of outputs."""
    infos = tuple(
        TensorInfo(i, f"t{i}", t.shape, t.shape, DType(t.dtype), t.data)
        for i, t in enumerate(tensors)
    )
    ops = tuple(
        OperatorInfo(
            i, name, custom, version, tuple(reads), tuple(makes),
            fields=dict(fields or {}) if not custom else {},
        )
        for i, (name, reads, makes) in enumerate(operators)
    )  # fmt: skip
    return SubgraphInfo("main", infos, (), (), ops)


def answer(
    rules: RuleTable,
    op: str,
    inputs: Sequence[T | None],
    outputs: Sequence[T],
    /,
    *,
    version: int = 1,
    custom: bool = False,
    reader: str = "",
    quantized: bool = True,
    **fields: Any,
) -> str:
    """Why an operator alone is refused, "" where it is taken; ``reader`` reads its first result."""
    present = [t for t in inputs if t is not None]
    places = iter(range(len(present)))
    reads = [-1 if t is None else next(places) for t in inputs]
    makes = list(range(len(present), len(present) + len(outputs)))
    operators = [(op, reads, makes)]
    if reader:
        operators.append((reader, makes[:1], [makes[-1] + 1]))
    made = graph(
        *operators, tensors=[*present, *outputs, *([T(1)] if reader else [])], fields=fields,
        version=version, custom=custom,
    )  # fmt: skip
    subgraph = FileSubgraph.of(made, rules.half_constants)
    return rules.refusal(FileOperator(made.operators[0], subgraph), quantized=quantized)
