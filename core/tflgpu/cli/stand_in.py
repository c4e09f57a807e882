"""A device to check models against on machines without a GPU."""

from __future__ import annotations

from tflgpu.cli.models import quiet_delegate
from tflgpu.compiler.numerics import Numerics
from tflgpu.contract.device import NodeDevice
from tflgpu.errors import DeviceError, TflgpuError
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.plugins.registry import registry

_NO_GPU = (
    "there is no GPU here (see `tflgpu devices`), so `tflgpu run` uses the CPU. What a GPU would "
    "take is judged by "
)


def judge(
    backend: str | None, device: int | str | None, numerics: Numerics = Numerics.FLOAT
) -> tuple[GpuDelegate, str]:
    """A delegate that has a device, and a note on it where it is not one that would be used.

    `tflgpu run` takes a GPU, or the device that is named, and the CPU otherwise. Where there is no
    GPU a device that computes on the CPU stands in for one here: it has the kernels that every
    backend has, if not the limits of any real GPU.

    Raises:
        DeviceError: the backend or device asked for is not there, or nothing can stand in.
    """
    delegate = quiet_delegate(backend=backend, device=device, quantized_numerics=numerics)
    if delegate.device is not None:
        info, choice = delegate.device.info, delegate.choice
        if choice.explicit or choice.judgement.is_gpu(info):
            return delegate, ""
        return delegate, f"{_NO_GPU}{info.name}; --backend {info.backend} runs it there"
    delegate.close()
    known = registry()
    for name in known.backends:
        for info in known.probe(name).devices:
            try:
                stand_in = GpuDelegate(backend=name, device=info.index, quantized_numerics=numerics)
            except TflgpuError:
                continue
            if not isinstance(stand_in.device, NodeDevice):
                return stand_in, f"{_NO_GPU}{info.name}"
            stand_in.close()
    raise DeviceError("there is no device here, and nothing that could stand in for one")
