"""An operator of a file with its tensors, which the rules of a profile judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs

from tflgpu.ir.dtypes import DType
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo, TensorInfo


@attrs.frozen(eq=False, slots=False)
class FileSubgraph:
    """A subgraph of a file, with the readers of each tensor and its 16-bit constants.

    Attributes:
        info: Its operators and tensors.
        half: The 16-bit constants that a delegate reads in the place of f32 tensors that operators
            make of them, by the index of the f32 tensor.
        halving: The operators that make these f32 tensors, by index.
    """

    info: SubgraphInfo
    half: Mapping[int, int]
    halving: frozenset[int]

    @classmethod
    def of(cls, subgraph: SubgraphInfo, half_constants: str) -> FileSubgraph:
        """``half_constants`` names the op that makes f32 of 16-bit constants; "" for none."""
        half: dict[int, int] = {}
        halving = set()
        for op in subgraph.operators:
            if op.name != half_constants or len(op.inputs) != 1 or len(op.outputs) != 1:
                continue
            source = subgraph.tensors[op.inputs[0]] if op.inputs[0] >= 0 else None
            if source is not None and source.is_constant and source.dtype is DType.F16:
                half[op.outputs[0]] = source.index
                halving.add(op.index)
        return cls(subgraph, half, frozenset(halving))

    @cached_property
    def readers(self) -> Mapping[int, Sequence[OperatorInfo]]:
        """The operators that read a tensor, by its index."""
        found: dict[int, list[OperatorInfo]] = {}
        for op in self.info.operators:
            for index in set(op.inputs):
                found.setdefault(index, []).append(op)
        return found


@attrs.frozen(eq=False, slots=False)
class FileOperator:
    """One operator, with its operands and results.

    Attributes:
        info: As the file has it.
        subgraph: Its subgraph.
    """

    info: OperatorInfo
    subgraph: FileSubgraph

    @cached_property
    def inputs(self) -> tuple[TensorInfo | None, ...]:
        """Its operands, None for an absent one; 16-bit constants in the place of what is made of
        them."""
        tensors, half = self.subgraph.info.tensors, self.subgraph.half
        return tuple(None if i < 0 else tensors[half.get(i, i)] for i in self.info.inputs)

    @cached_property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Its results."""
        return tuple(self.subgraph.info.tensors[i] for i in self.info.outputs)

    @cached_property
    def runtime(self) -> tuple[TensorInfo, ...]:
        """The operands that are not constant."""
        return tuple(t for t in self.inputs if t is not None and not t.is_constant)

    @cached_property
    def constants(self) -> tuple[TensorInfo, ...]:
        """The operands that are."""
        return tuple(t for t in self.inputs if t is not None and t.is_constant)

    def input(self, position: int) -> TensorInfo | None:
        """An operand, None where there is none."""
        return self.inputs[position] if position < len(self.inputs) else None

    def number(self, field: str) -> float:
        """An option that is a number or a truth value; 0 where the operator has none of the
        name."""
        value = self.info.fields.get(field, 0)
        return value if isinstance(value, (int, float)) else 0


def shaped(tensor: TensorInfo) -> str:
    """A tensor as reasons name it."""
    sizes = ",".join(map(str, tensor.shape))
    return f"tensor {tensor.index}, {tensor.dtype.value}[{sizes}]"
