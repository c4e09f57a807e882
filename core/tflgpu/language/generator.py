"""Shader generators: functions that print kernels as program text, by the name of the language.

Plugins register them (`tflgpu_register_generators`), the shipped backends those of their APIs, so
that another backend of an API, and `tflgpu shader`, find its printer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.language.caps import DeviceCaps
    from tflgpu.language.kernel import Kernel


@frozen
class ShaderGenerator:
    """A printer of kernels.

    Attributes:
        name: The language, in small letters: "opencl-c", "wgsl", "spirv".
        source: The text of a kernel for a device of some capabilities. Raises `KernelError` where
            the kernel needs what these lack.
    """

    name: str
    source: Callable[[Kernel, DeviceCaps], str]
