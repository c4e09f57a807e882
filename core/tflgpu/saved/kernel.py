"""A kernel from a file, whose statements are read at their first use.

A device that has the code of a kernel already needs its name, workgroup and buffers only; the
statements are most of what there is to read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, Union

from tflgpu.errors import SavedModelError
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
