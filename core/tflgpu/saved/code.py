"""Code of kernels, from a device to a file and back; a device without `KeepsCode` prints again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflgpu.compiler.compiled import Compiled
from tflgpu.contract.kept_code import KeepsCode
from tflgpu.contract.offers import offers
from tflgpu.errors.blame import attempt
from tflgpu.saved.kernel import CodeOf, SavedKernel

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel


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
