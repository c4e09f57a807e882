"""CACHE_UPDATE: puts new keys and values into their caches, as the composite "odml.cache_update".

Not a TFLite op: it stands for composites of a file (`tflgpu.ops.base.Composed`). Operands: new keys
[B, H, T, D] and values, seven whole numbers, the caches of keys [B, H, S, D] and of values (either
with its last two axes swapped, as the attributes say), and where the new ones begin in each.
Results: the caches with the new tokens in them. Tokens go to where the last two operands say, moved
so that all lie inside; or, of a ring, one after another from the first of the seven numbers on and
around the end, as many as the fourth says.

Source: litert-torch's `cache_update.py` of its GPU composites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape, TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Composed,
    Contents,
    Fields,
    FileForm,
    Movement,
    OpDef,
    Operands,
    Reading,
    Sample,
    graph_attributes,
)
from tflgpu.ops.composed import draw_all, there
from tflgpu.ops.elementwise import FLOATS, check_dtype
from tflgpu.values import frozen

NAME = "CACHE_UPDATE"

#: Of the seven numbers: where a ring's new tokens begin, and how many there are.
START, COUNT = 0, 3


@frozen
class CacheUpdate:
    """The axis of the tokens, 2 or 3, in caches and in what is new; whether the caches are rings,
    and whether of a ring's new tokens only some count."""

    key_axis: int = 2
    value_axis: int = 3
    new_key_axis: int = 2
    new_value_axis: int = 2
    ring: bool = False
    counted: bool = True

    def axes(self, which: int) -> tuple[int, int]:
        """Those of a cache (0 keys, 1 values) and of what is new in it."""
        if which:
            return self.value_axis, self.new_value_axis
        return self.key_axis, self.new_key_axis


def _infer(attributes: CacheUpdate, operands: Operands) -> list[TensorSpec]:
    found = take_operands(NAME, operands, 7)
    numbers = found[2]
    check_dtype(NAME, numbers.dtype, frozenset({DType.I32}))
    if int(np.prod(numbers.shape)) <= COUNT:
        raise ModelError(f"{NAME}: {list(numbers.shape)} numbers, and {COUNT + 1} are needed")
    for which in (0, 1):
        new, cache, start = found[which], found[3 + which], found[5 + which]
        check_dtype(NAME, cache.dtype, FLOATS)
        check_dtype(NAME, start.dtype, frozenset({DType.I32}))
        if new.dtype is not cache.dtype or new.rank != 4 or cache.rank != 4 or start.shape != (4,):
            raise ModelError(f"{NAME}: {new.spec} into {cache.spec} at {start.spec}")
        axis, new_axis = attributes.axes(which)
        if {axis, new_axis} - {2, 3}:
            raise ModelError(f"{NAME}: tokens along axes {axis} and {new_axis}; 2 or 3 is known")
        inside = swapped(new.shape, axis != new_axis)
        fits = inside[:2] == cache.shape[:2] and inside[5 - axis] == cache.shape[5 - axis]
        if not fits or not 0 < inside[axis] <= cache.shape[axis]:
            raise ModelError(f"{NAME}: {new.spec} does not fit into {cache.spec}")
    return [found[3].spec, found[4].spec]


def swapped(shape: Shape, swap: bool) -> Shape:
    """A shape with its last two axes in the other order."""
    return (*shape[:2], shape[3], shape[2]) if swap else shape


def _reference(attributes: CacheUpdate, arrays: Arrays) -> list[Array]:
    found = [present(a) for a in arrays]
    numbers = found[2].reshape(-1).astype(np.int64)
    results = []
    for which in (0, 1):
        new, cache, start = found[which], found[3 + which].copy(), found[5 + which]
        axis, new_axis = attributes.axes(which)
        new = new.swapaxes(2, 3) if axis != new_axis else new
        tokens = np.arange(new.shape[axis])
        if attributes.ring:
            if attributes.counted:
                tokens = tokens[tokens < numbers[COUNT]]
            places = (numbers[START] + tokens) % cache.shape[axis]
        else:
            room = cache.shape[axis] - new.shape[axis]
            places = np.clip(int(start[axis]), 0, room) + tokens
        along: tuple[Any, ...] = (slice(None),) * axis
        into, taken = (*along, places), (*along, tokens)
        cache[into] = new[taken]
        results.append(cache)
    return results


def _read(fields: Fields, operands: Operands) -> list[Reading]:
    ring, which = fields.flag("is_ring_buffer"), tuple(range(7))
    if len(operands) == 7 and operands[2] is None and not ring:
        # Nothing is made of the numbers; an operand that has as many stands in their place.
        which = (0, 1, 5, 3, 4, 5, 6)
        operands = [operands[i] for i in which]
    there(operands, 7, 7)
    given = [
        fields.get(name)
        for name in ("k_cache_ts_idx", "v_cache_ts_idx", "k_update_ts_idx", "v_update_ts_idx")
    ]
    if any(g is not None for g in given):
        if None in given:
            raise UnsupportedError("it names the axis of some tokens and not of others")
        layouts = [[int(str(g)) for g in given]]
    else:  # the last two: caches that lie alike
        layouts = [[2, 3, 2, 2], [2, 3, 2, 3], [2, 2, 2, 2], [2, 2, 2, 3]]
    rings = [(True, True), (True, False)] if ring else [(False, True)]
    return [
        Reading(CacheUpdate(k, v, new_k, new_v, ring, counted), which)
        for k, v, new_k, new_v in layouts
        for ring, counted in rings
    ]


def _draw(rng: np.random.Generator, operands: Operands) -> list[Array | None]:
    """Where the new tokens go: anywhere, at times beyond the end or around it."""
    drawn = draw_all(rng, operands)
    caches = [o for o in operands[3:5] if o is not None]
    size, tokens = max(o.shape[2] for o in caches), 3
    for at, (low, high) in {START: (0, 2 * size), COUNT: (1, tokens + 1)}.items():
        numbers = drawn[2]
        if numbers is None:
            break
        numbers.reshape(-1)[at : at + 1] = rng.integers(low, high)
    for place in (5, 6):
        start, cache = drawn[place], operands[place - 2]
        assert start is not None
        assert cache is not None
        start[...] = 0
        if start.shape == (4,) and cache.rank == 4:
            start[2:] = [rng.integers(0, s + 2) if s > 1 else 0 for s in cache.shape[2:]]
    return drawn


def _samples() -> list[Sample]:
    def sample(
        name: str,
        tokens: int,
        size: int,
        width: int,
        value_axis: int = 3,
        new_axis: int = 2,
        numbers: Sequence[int] | None = None,
        **more: bool,
    ) -> Sample:
        values = (2, 3, size, width) if value_axis == 2 else (2, 3, width, size)
        new = (2, 3, tokens, width) if new_axis == 2 else (2, 3, width, tokens)
        start = Arg((4,), DType.I32, -1, size + 1)
        seven = Arg((1, 1, 1, 7), DType.I32, 0, size)
        if numbers is not None:
            seven = Arg.of(np.reshape([*numbers, 0, 0, 0], (1, 1, 1, 7)), DType.I32)
        attributes = CacheUpdate(value_axis=value_axis, new_value_axis=new_axis, **more)
        return Sample.of(
            name,
            attributes,
            Arg((2, 3, tokens, width)),
            Arg(new),
            seven,
            Arg((2, 3, size, width)),
            Arg(values),
            start,
            start,
        )

    return [
        sample("linear", 3, 7, 5),
        sample("aligned", 1, 8, 12, 3, 3),
        sample("alike", 2, 5, 6, 2),
        sample("ring", 3, 7, 5, numbers=(6, 0, 0, 2), ring=True),
        sample("ring_all", 1, 9, 4, numbers=(20, 0, 0, 0), ring=True, counted=False),
    ]


_ATTRIBUTES = frozenset(
    {
        "kv_cache_batch_size",
        "cache_size",
        "head_size",
        "is_ring_buffer",
        "k_cache_ts_idx",
        "v_cache_ts_idx",
        "k_update_ts_idx",
        "v_update_ts_idx",
    }
)

OPS = (
    OpDef(
        NAME,
        graph_attributes,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.EXACT,
        contents=Contents(settings=(2, 5, 6)),
        movement=Movement(keeps_values=True),
        file=FileForm(composed=(Composed(("odml.cache_update",), _read, _ATTRIBUTES, _draw),)),
    ),
)
