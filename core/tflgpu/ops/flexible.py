"""Custom options that are a flexbuffer: a map of names to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatbuffers import flexbuffers

from tflgpu.errors import ModelError, TflgpuError
from tflgpu.ir.budget import Budget, spend
from tflgpu.ops.base import Fields

#: The library looks for the end of each key in a copy of all bytes behind it.
_MOST_COPIED = 1 << 28


def read_map(fields: Fields) -> Fields:
    """The custom options as fields of their own.

    Raises:
        ModelError: they are no flexbuffer, or no map.
        BudgetError: their values share one another, so that there are more than the bytes can hold.
    """
    size = len(fields.custom_options)
    budget = Budget(nodes=min(size, _MOST_COPIED // max(size, 1)), nbytes=2 * size + (1 << 16))
    where = f"{fields.op}: the custom options"
    try:
        found = _value(flexbuffers.GetRoot(fields.custom_options), budget, where)
    except TflgpuError:
        raise
    except Exception as error:
        # The library trusts its input: broken bytes make it raise anything.
        because = str(error) or "its sizes and offsets contradict one another"
        raise ModelError(f"{where} are not a flexbuffer: {because}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{where} are {type(found).__name__}, not a map")
    return Fields(fields.op, found)


def _value(ref: Any, budget: Budget, where: str) -> Any:
    budget.spend("nodes", 1, where)
    spend("nodes", 1, where)  # of all operators of the file
    if ref.IsMap:
        both = zip(ref.AsMap.Keys, ref.AsMap.Values, strict=True)
        return {key.AsKey: _value(value, budget, where) for key, value in both}
    for is_one, vector in (
        (ref.IsVector, "AsVector"),
        (ref.IsTypedVector, "AsTypedVector"),
        (ref.IsFixedTypedVector, "AsFixedTypedVector"),
    ):
        if is_one:
            return [_value(value, budget, where) for value in getattr(ref, vector)]
    found = ref.Value
    budget.spend("nbytes", len(found) if hasattr(found, "__len__") else 0, where)
    return found


def write_map(values: Mapping[str, Any]) -> bytes:
    """The custom options of the values."""
    return bytes(flexbuffers.Dumps(dict(values)))
