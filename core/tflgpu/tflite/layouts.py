"""What a flatbuffer's tables have: fields with slots, kinds and defaults.

Those of TFLite are in `tflgpu.tflite.schema`, which asks the modules of another package.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from tflgpu.values import frozen

Default = int | float | bool | None


class Kind(enum.Enum):
    """The contents of a table's field."""

    SCALAR = "scalar"
    STRING = "string"
    TABLE = "table"
    UNION = "union"
    NUMBERS = "vector of numbers"
    STRINGS = "vector of strings"
    TABLES = "vector of tables"


@frozen
class Field:
    """One field of a table.

    Attributes:
        name: the schema's own snake_case name.
        slot: position in the vtable, from 0.
        kind: what it holds.
        number: little-endian element type of a scalar or of a vector of numbers, else None.
        default: a scalar's value when absent; None for every other kind.
    """

    name: str
    slot: int
    kind: Kind
    number: np.dtype[Any] | None = None
    default: Default = None


@frozen
class TableLayout:
    """The fields of one table, by name, in slot order."""

    name: str
    fields: Mapping[str, Field]

    @property
    def slots(self) -> int:
        """How many vtable slots the table has."""
        return max((f.slot for f in self.fields.values()), default=-1) + 1
