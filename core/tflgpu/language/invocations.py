"""A statement while the interpreter runs it: for which invocations, and on what memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language.frame import Frame, Index, spread
from tflgpu.language.memory import BufferMemory, SharedMemory
from tflgpu.language.types import Size3
from tflgpu.values import frozen

# Names that no kernel can have, for what every invocation knows of itself.
WHO, GROUP = "#who", "#group"


@frozen(eq=False)
class Invocations:
    """The invocations that get to a statement, and what they see.

    Attributes:
        workgroup: The kernel's workgroup: invocations along each axis.
        frame: The invocations, and what names stand for.
        memory: The buffers by name.
        shared: The shared arrays of the batch's workgroups by name.
        groups: How many workgroups the batch has.
    """

    workgroup: Size3
    frame: Frame
    memory: Mapping[str, BufferMemory]
    shared: Mapping[str, SharedMemory]
    groups: int

    @property
    def who(self) -> Index:
        """Which invocation of all each of them is: [n]."""
        return self.frame.full(WHO)

    @property
    def group(self) -> Index:
        """Which workgroup of the batch each of them is of: [n]."""
        return self.frame.full(GROUP)

    def each(self, value: Array) -> Array:
        """An operand's value with one entry for each of them."""
        return spread(value, self.frame.count)

    def arrived(self, what: str) -> npt.NDArray[np.bool_]:
        """Which workgroups of the batch are here: [groups].

        Raises:
            KernelError: of some only a part is; it says at what.
        """
        size = int(np.prod(self.workgroup))
        here = np.bincount(self.group, minlength=self.groups)
        if ((here != 0) & (here != size)).any():
            raise KernelError(f"{what} was reached by a part of a workgroup")
        return np.asarray(here != 0)
