"""`PartitionBy`: whether every operator that can goes to the device, or only where it is faster."""

from __future__ import annotations

import enum


class PartitionBy(enum.Enum):
    """What goes to the device of all that it can run."""

    #: What is estimated to be faster there than on the CPU, with the way there and back.
    GAIN = "gain"
    #: Everything.
    ALL = "all"
