"""What a device or a recording may implement besides, and `offers`, which tells whether one does.

Devices and recordings are wrapped in objects that check results and forward all other attributes
(`tflgpu.checks.device`). Up to Python 3.11 `isinstance` with a protocol asks the object, which
answers for what is behind it; since Python 3.12 it looks only at classes, and so finds nothing that
is handed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from tflgpu.ir.dtypes import Array

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from tflgpu.language.kernel import Kernel

_T = TypeVar("_T")


def offers(thing: object, protocol: type[_T]) -> TypeIs[_T]:
    """Whether it has every attribute and method of a protocol, of its own or handed on.

    Args:
        thing: What may offer it.
        protocol: A `typing.Protocol`; the protocols that it extends count too.
    """
    return all(hasattr(thing, name) for name in _members(protocol))


def _members(protocol: type) -> set[str]:
    return {
        name
        for each in protocol.__mro__
        if getattr(each, "_is_protocol", False) and each.__module__ != "typing"
        for name in (*vars(each), *vars(each).get("__annotations__", {}))
        if not name.startswith("_")
    }


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


class Lender(Protocol):
    """Optional for a `tflgpu.contract.device.Recording`: outputs without a copy.

    A copy of a large output may take as long as computing it: DeepLab's 5.5 MB take 0.4 ms on the
    host of an H200 and the network 0.4 ms on the GPU. A recording that can write its outputs to one
    of several places gives the caller the memory that the last run wrote, and writes elsewhere for
    as long as the caller holds it.

    `Recording.outputs` stay at one address until something was lent. After that they are to be
    asked for anew, after every run and every call here.
    """

    def lend(self, index: int) -> Array | None:
        """Output ``index`` of the last run, for the caller to keep, change and drop. None where
        that cannot be had, so that the caller copies `outputs`, which have the results then.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed.
        """

    def settle(self) -> None:
        """Give `outputs` memory that is not lent, with the results of the last run.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed, or memory ran out.
        """
