"""A kernel from a file, whose statements are read at their first use, and its code, from a device
to a file and back; a device without `KeepsCode` prints again.

A device that has the code of a kernel already needs its name, workgroup and buffers only; the
statements are most of what there is to read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, Union

from tflgpu.compiler.parts import Compiled
from tflgpu.contract.offers import KeepsCode, offers
from tflgpu.errors import SavedModelError
from tflgpu.errors.blame import attempt
from tflgpu.language.kernel import Kernel, Stmt

#: The code that a device printed of a kernel; None where it keeps none.
CodeOf = Callable[[Kernel], Union[bytes, None]]


#: Gives the statements of a kernel; it gets the kernel, so that the two need not keep each other.
ReadsBody: TypeAlias = "Callable[[SavedKernel], tuple[Stmt, ...]]"


def body_elsewhere(kernel: SavedKernel) -> NoReturn:
    """For kernels whose statements are not in their file.

    Raises:
        SavedModelError: always.
    """
    raise SavedModelError("this kernel's statements are not in its file")


class SavedKernel(Kernel):
    """A kernel of a file.

    Attributes:
        code: What the device it was saved for printed of it; None where that is not known.
    """

    __slots__ = ("_read", "_statements", "code")
    code: bytes | None
    _read: ReadsBody
    _statements: tuple[Stmt, ...] | None

    def __init__(self, given: dict[str, Any], read: ReadsBody, code: bytes | None) -> None:
        """A kernel with these other fields, whose body ``read`` gives."""
        for name, value in (*given.items(), ("code", code), ("_read", read), ("_statements", None)):
            object.__setattr__(self, name, value)  # kernels are frozen

    @property
    def body(self) -> tuple[Stmt, ...]:
        """The statements.

        Raises:
            SavedModelError: the file, though its digest is right, is not what tflgpu writes.
        """
        found = self._statements
        if found is None:
            found = self._read(self)
            object.__setattr__(self, "_statements", found)
        return found

    @property
    def has_body(self) -> bool:
        """Whether the file has its statements."""
        return self._read is not body_elsewhere

    def read_by(self, read: ReadsBody) -> None:
        """Set the function that gives the statements, which are not in the file."""
        object.__setattr__(self, "_read", read)


def code_by(device: object) -> CodeOf | None:
    """A function that gives a device's code of a kernel. A kernel that it cannot print has none,
    and is refused when it is loaded."""
    if not offers(device, KeepsCode):
        return None

    def code_of(kernel: Kernel) -> bytes | None:
        found = attempt(device.code_of, kernel)
        return found if isinstance(found, bytes) else None

    return code_of


def hand_over(compiled: Compiled, device: object) -> Compiled:
    """Give a device the code that was read; gives what was compiled."""
    if offers(device, KeepsCode):
        kernels = {id(d.kernel): d.kernel for plan in compiled.plans for d in plan.dispatches}
        for kernel in kernels.values():
            if isinstance(kernel, SavedKernel) and kernel.code is not None:
                attempt(device.use_code, kernel, kernel.code)
    return compiled
