"""Chooses for each quantized operator whether it computes on real numbers or on stored ones.

Which of the two an operator gets is `tflgpu.compiler.stored_numbers`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from tflgpu.lowering.storage import IntegerStorage

if TYPE_CHECKING:
    from tflgpu.language.caps import DeviceCaps


class Numerics(enum.Enum):
    """The numbers on which quantized operators are computed.

    FLOAT: real numbers, each result rounded and clamped to what its tensor can store. Close to
    TFLite's kernels, which differ from each other by a step here and there.

    INTEGER: as TFLite's reference kernels, bit for bit, where there is a kernel that does it; the
    other operators as FLOAT.
    """

    FLOAT = "float"
    INTEGER = "integer"

    def storage_on(self, caps: DeviceCaps) -> IntegerStorage:
        """How whole numbers lie on a device.

        A byte an element is a quarter of the memory, which is what counts on a GPU. A CPU that runs
        OpenCL is faster with words: int8 PoseNet takes 79 ms on PoCL, and 146 ms with bytes.
        """
        if self is Numerics.FLOAT:
            return IntegerStorage.WORDS
        return IntegerStorage.OWN_WIDTH if caps.is_gpu else IntegerStorage.WORDS
