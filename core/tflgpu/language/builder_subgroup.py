"""The builder's shuffles (see `tflgpu.language.subgroup`)."""

from __future__ import annotations

from tflgpu.language import make
from tflgpu.language.author import refused
from tflgpu.language.builder_base import BuilderBase
from tflgpu.language.subgroup import SubgroupShuffleXor, problem_of
from tflgpu.language.tree import Expr, Name
from tflgpu.language.types import LARGEST_GROUP

_MERGES = ("add", "min", "max")


class SubgroupBuilder(BuilderBase):
    """What `Builder` has for exchanges among neighbours."""

    def subgroup_shuffle_xor(self, x: Expr, mask: int, name: str = "other") -> Expr:
        """``x`` of the invocation whose place along the first axis differs by XOR ``mask``.

        Raises:
            KernelError: a type that cannot be shuffled, or a mask that is not in [1, 32).
        """
        x = make.read(x)
        problem = problem_of(x, mask)
        if problem:
            raise refused(f"{self.name}: {problem}")
        ident = self._fresh(name)
        self.emit(SubgroupShuffleXor(ident, x, mask))
        return Name(x.type, ident)

    def subgroup_reduce(self, op: str, x: Expr, size: int, name: str = "total") -> Expr:
        """``x`` merged over groups of ``size`` neighbours along the first axis; each gets it.

        The halves of a group are merged first, then the quarters, and so on: the order of a sum
        is the same on every device, and in all invocations.

        Args:
            op: "add", "min" or "max", lane by lane.
            x: The invocation's own value.
            size: A power of two from 1 to 32.
            name: Of the result.

        Raises:
            KernelError: another operation, size, or type.
        """
        if op not in _MERGES:
            raise refused(f"{self.name}: a reduction by {op!r}, not {', '.join(_MERGES)}")
        if not 1 <= size <= LARGEST_GROUP or size & (size - 1):
            raise refused(
                f"{self.name}: a reduction over {size} neighbours, not a power of two up to "
                f"{LARGEST_GROUP}"
            )
        total = self.let(x, name)
        while size > 1:
            size //= 2
            other = self.subgroup_shuffle_xor(total, size)
            total = self.let(make.binary(op, total, other), name)
        return total
