"""A kernel, and the base of its statements, which are those of `tflgpu.language.tree`.

A kernel that was printed before needs nothing else of the language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language.buffers import KernelBuffer, SharedArray
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.language.invocations import Invocations

#: Raise it when a tree comes to mean something else: it is in the key of what is kept on disk.
LANGUAGE_VERSION = 3


class Stmt:
    """Base of all statements.

    A class of statements is an attrs class whose operands are the fields annotated ``Expr``. It
    says here what the rest of the language asks of it; a printer's method for it has its name
    (`tflgpu.language.node_writer.method_name`). Those that hold blocks, leave one, or set a
    variable are known to the checks, the interpreter and the printers themselves.
    """

    #: Where `tflgpu.language.walk` keeps the way through its expressions.
    __slots__ = ("walked",)
    walked: Any
    #: What messages call it, where all invocations of a workgroup must get to it together, or "".
    collective: ClassVar[str] = ""

    @property
    def declares(self) -> tuple[str, ...]:
        """The names that it defines."""
        return ()

    def problem(self, kernel: Kernel) -> str | None:
        """What is wrong with it in a kernel, wherever it stands there; None where that is
        nothing."""
        return None

    def run(self, here: Invocations, *values: Array) -> None:
        """Do what it does, for the invocations that get to it.

        Args:
            here: These invocations, what names stand for, and memory.
            values: Its operands' values: [n] or [n, lanes], 1 for n where all have the same.

        Raises:
            KernelError: that would be undefined on a device.
        """
        raise KernelError(f"statement {type(self).__name__} does not say what it does")


@frozen(eq=False)
class Kernel:
    """A complete kernel.

    ``workgroup`` is the number of invocations of a workgroup along each axis; the number of
    workgroups belongs to the dispatch.
    """

    name: str
    workgroup: tuple[int, int, int]
    buffers: tuple[KernelBuffer, ...]
    shared: tuple[SharedArray, ...]
    body: tuple[Stmt, ...]

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory a workgroup takes."""
        return sum(array.nbytes for array in self.shared)
