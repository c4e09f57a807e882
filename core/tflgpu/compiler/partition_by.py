"""`PartitionBy`: whether every operator that can goes to the device, or only where it is faster."""

import enum


class PartitionBy(enum.Enum):
    """Which of the operators that a device can run go there."""

    #: What is estimated to be faster there than on the CPU, with the way there and back.
    GAIN = "gain"
    #: Everything.
    ALL = "all"
