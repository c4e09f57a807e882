"""Replaces the operators by which converters write one item of a list by one operator.

A loop that fills a TensorArray, which most recurrent layers do, has this in its body for
``items[i] = item``, as there is no other operator for it in old versions of TFLite:

    SLICE(items, [0, 0], [i, -1]) -> a
    SLICE(items, [i + 1, 0], [-1, -1]) -> b
    CONCATENATION(a, item, b) -> items

The shapes of a and b differ from round to round, so that every round would be compiled by itself.
The result's does not, and `DYNAMIC_UPDATE_SLICE` says the same with shapes that stay.
"""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo, TensorInfo

_UPDATE = "DYNAMIC_UPDATE_SLICE"


def with_items_written(info: SubgraphInfo) -> SubgraphInfo:
    """The subgraph, with one operator for each such three. The two slices are gone, or one of them
    makes where the item goes; all other operators keep their numbers, and tensors theirs."""
    return _Rewriting(info.whole).run()


@attrs.frozen
class _Start:
    """Where a slice begins or how long it is: a tensor, its first element's, and the others."""

    first: int
    rest: int | None  # a constant tensor; None for a slice of one dimension


class _Rewriting:
    def __init__(self, info: SubgraphInfo) -> None:
        self._info = info
        self._tensors = list(info.tensors)
        self._makers = {i: o for o in info.operators for i in o.outputs}
        self._reads: dict[int, int] = {}  # how often a tensor is read
        for i in (*(i for o in info.operators for i in o.inputs), *info.outputs):
            self._reads[i] = self._reads.get(i, 0) + 1
        self._instead: dict[int, OperatorInfo | None] = {}  # by operator; None where it is gone

    def run(self) -> SubgraphInfo:
        for operator in self._info.operators:
            self._try(operator)
        if not self._instead:
            return self._info
        kept = [self._instead.get(o.index, o) for o in self._info.operators]
        return attrs.evolve(
            self._info,
            tensors=tuple(self._tensors),
            operators=tuple(o for o in kept if o is not None),
        )

    def _try(self, join: OperatorInfo) -> None:
        if not _is(join, "CONCATENATION") or len(join.inputs) != 3 or not _joins(join, 0):
            return
        before, item, behind = join.inputs
        head, tail = self._sole_slice(before), self._sole_slice(behind)
        if head is None or tail is None or head.inputs[0] != tail.inputs[0]:
            return
        items, tensors = head.inputs[0], self._info.tensors
        size, begin = self._start(head.inputs[2]), self._start(tail.inputs[1])
        if (
            not self._constant(head.inputs[1], 0)
            or not self._constant(tail.inputs[2], -1)
            or size is None
            or begin is None
            or not self._constant(size.rest, -1)
            or not self._constant(begin.rest, 0)
            or not self._is_next(begin.first, size.first)
            or not _is_item(tensors[item], tensors[items], tensors[join.outputs[0]])
        ):
            return
        first = head.inputs[2]
        self._instead[tail.index] = self._instead[head.index] = None
        if size.rest is not None and begin.rest is not None:
            # [i, -1] becomes [i, 0], which the slice in front makes in its place.
            first = len(self._tensors)
            rank = (len(tensors[item].shape),)
            self._tensors.append(
                TensorInfo(first, f"{tensors[items].name}/at", rank, rank, DType.I32)
            )
            made = self._makers[head.inputs[2]]
            self._instead[head.index] = attrs.evolve(
                made, index=head.index, inputs=(made.inputs[0], begin.rest), outputs=(first,)
            )
        self._instead[join.index] = OperatorInfo(
            join.index, _UPDATE, False, 1, (items, item, first), join.outputs
        )

    def _sole_slice(self, index: int) -> OperatorInfo | None:
        """The SLICE that makes a tensor which nothing else reads."""
        found = self._makers.get(index)
        is_slice = found is not None and _is(found, "SLICE") and len(found.inputs) == 3
        return found if is_slice and self._reads.get(index) == 1 else None

    def _start(self, index: int) -> _Start | None:
        """A vector of i32 whose first element is computed and whose others are in the file."""
        maker, tensors = self._makers.get(index), self._info.tensors
        if tensors[index].dtype is not DType.I32 or maker is None:
            return None
        if _is(maker, "RESHAPE") and tensors[index].shape == (1,):
            return _Start(self._scalar(index), None)
        if not _is(maker, "CONCATENATION") or len(maker.inputs) != 2 or not _joins(maker, 0):
            return None
        first, rest = maker.inputs
        if tensors[first].shape != (1,) or len(tensors[rest].shape) != 1:
            return None
        return _Start(self._scalar(first), rest)

    def _scalar(self, index: int) -> int:
        """The tensor of one element that another only gives another shape."""
        maker = self._makers.get(index)
        return maker.inputs[0] if maker is not None and _is(maker, "RESHAPE") else index

    def _is_next(self, next_: int, one: int) -> bool:
        """Whether a tensor is another, of one element, and 1."""
        maker, tensors = self._makers.get(next_), self._info.tensors
        if maker is None or not _is(maker, "ADD") or maker.fields.get("fused_activation_function"):
            return False
        if next_ == one or tensors[one].shape not in ((), (1,)):
            return False
        others = [i for i in maker.inputs if i != one]
        return len(others) == 1 and self._constant(others[0], 1)

    def _constant(self, index: int | None, value: int) -> bool:
        """Whether all elements of a tensor are so, in the file; there may be no tensor."""
        if index is None:
            return True
        data = self._info.tensors[index].data
        return data is not None and data.size > 0 and bool(np.all(data == value))


def _is(operator: OperatorInfo, name: str) -> bool:
    return operator.name == name and not operator.is_custom


def _joins(operator: OperatorInfo, axis: int) -> bool:
    fields = operator.fields
    return fields.get("axis") == axis and not fields.get("fused_activation_function")


def _is_item(item: TensorInfo, items: TensorInfo, made: TensorInfo) -> bool:
    """Whether it is one of a list's items, which mean the same in the list that is made."""
    if not item.quantization == items.quantization == made.quantization:
        return False
    one, every = item.shape_signature, items.shape_signature
    return len(one) == len(every) and bool(one) and one[0] == 1 and one[1:] == every[1:]
