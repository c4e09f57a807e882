"""What the builder's parts ask of each other."""

from __future__ import annotations

from tflgpu.language.tree import Expr, Stmt
from tflgpu.language.variables import Reads


class BuilderBase:
    """The kernel's name, its fresh names, what was read, and the block that is being written."""

    name: str
    reads: Reads

    def emit(self, stmt: Stmt) -> None:
        """Append a statement to the current block."""
        raise NotImplementedError

    def let(self, value: Expr, name: str = "t") -> Expr:
        """Compute a value once and name it."""
        raise NotImplementedError

    def _fresh(self, name: str) -> str:
        raise NotImplementedError
