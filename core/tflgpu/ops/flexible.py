"""Custom options that are a flexbuffer: a map of names to numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from flatbuffers import flexbuffers

from tflgpu.errors import ModelError
from tflgpu.ops.base import Fields


def read_map(fields: Fields) -> Fields:
    """The custom options as fields of their own.

    Raises:
        ModelError: they are no flexbuffer, or no map.
    """
    try:
        found = flexbuffers.Loads(fields.custom_options)
    # The reader trusts its input: what broken bytes make it raise is any of these.
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError, struct.error,
            RecursionError, UnicodeDecodeError, AttributeError) as error:  # fmt: skip
        raise ModelError(
            f"{fields.op}: the custom options are not a flexbuffer: {error}"
        ) from error
    if not isinstance(found, dict):
        raise ModelError(f"{fields.op}: the custom options are {type(found).__name__}, not a map")
    return Fields(fields.op, found)


def write_map(values: Mapping[str, Any]) -> bytes:
    """The custom options of the values."""
    return bytes(flexbuffers.Dumps(dict(values)))
