"""What writes kernels in some language finds its methods by, whether it writes texts or words."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from tflgpu.errors import KernelError
from tflgpu.language.tree import Expr, Kernel, Stmt


@cache
def method_name(kind: type) -> str:
    """By what name a writer's method for a class of nodes is found: ``shared_load`` for
    `SharedLoad`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


class NodeWriter:
    """Writes one kernel, by a method for each class of nodes."""

    kernel: Kernel
    #: What the names of these methods begin with; the class's name follows.
    prefix: ClassVar[str] = ""

    def fail(self, message: str) -> KernelError:
        """An error that names the kernel."""
        return KernelError(f"kernel {self.kernel.name}: {message}")

    def method_for(self, node: Expr | Stmt) -> Callable[..., Any]:
        """The method that writes nodes of a class: the one with the class's name. It gets the node
        and what was written of its operands, and gives what stands for an expression, or a
        statement's line.

        Raises:
            KernelError: there is none.
        """
        kind: type = type(node)
        found: Callable[..., Any] | None = getattr(self, self.prefix + method_name(kind), None)
        if found is None:
            raise self.fail(f"{type(self).__name__} does not write {kind.__name__}")
        return found
