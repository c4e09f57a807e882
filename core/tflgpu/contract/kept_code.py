"""Optional for a device: to give and to take the code of kernels, for files of compiled models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel


class KeepsCode(Protocol):
    """A `tflgpu.contract.device.Device` that can be spared printing.

    The code follows from the kernel, the device's capabilities and its driver, and the sources of
    tflgpu and of the backend: where all of these are the same, another process may give it back.
    """

    def code_of(self, kernel: Kernel) -> bytes:
        """The code that the driver gets for a kernel of a plan that is loaded without guard bands.

        Raises:
            KernelError: the kernel needs what the device lacks.
        """

    def use_code(self, kernel: Kernel, code: bytes) -> None:
        """Take this for what `code_of` gives, as long as the kernel lives."""
