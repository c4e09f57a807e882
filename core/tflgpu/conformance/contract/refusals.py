"""What a device says it is and can do, and what it refuses to load: with a reason that helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import numpy as np

from tflgpu.compiler.plan import ArenaRef, ConstRef, InputRef, OutputRef, Plan, Ref
from tflgpu.conformance.contract.tools import refused, says, shared, works
from tflgpu.conformance.plans import affine, dispatch, io, plan
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.contract.device import Device
from tflgpu.errors import CompileError, DeviceError, TflgpuError
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Kernel, Name, Store
from tflgpu.language.types import F32, F32x4, Scalar
from tflgpu.options import DelegateOptions

#: How the dispatch that cannot be loaded is called; errors are to name it.
_LABEL = "conv 7"

#: Bindings of a dispatch of two buffers, in a plan of one input and one output.
_NOT_THERE: dict[str, Sequence[Ref]] = {
    "too_few": [InputRef(0)],
    "too_many": [InputRef(0), OutputRef(0), OutputRef(0)],
    "no_such_input": [InputRef(1), OutputRef(0)],
    "no_such_output": [InputRef(0), OutputRef(1)],
    "no_such_constant": [ConstRef(0), OutputRef(0)],
    "negative": [InputRef(-1), OutputRef(0)],
}


def refusal_checks() -> list[Check]:
    """What a device is, plans that do not fit together, and what is over a device's limits."""
    return [
        Check("0/capabilities", _capabilities),
        Check("0/no_such_device", _no_such_device),
        *(shared(f"bindings/{n}", partial(_not_there, r)) for n, r in _NOT_THERE.items()),
        shared("bindings/written_constant", _written_constant),
        shared("bindings/unaligned", _unaligned),
        shared("bindings/outside_the_arena", _outside_the_arena),
        shared("limits/buffer", _too_large_a_buffer),
        shared("limits/memory", _more_memory_than_there_is),
        shared("limits/workgroups", _too_many_workgroups),
        shared("limits/workgroup", _too_large_a_workgroup),
        shared("limits/shared_memory", _too_much_shared_memory),
        shared("limits/bindings", _too_many_buffers),
        shared("a_broken_kernel", _a_broken_kernel),
    ]


# What it is


def _capabilities(target: DeviceUnderTest) -> None:
    """Limits below which no shipped kernel runs, and what the probe says of the device."""
    caps, info = target.caps, target.device.info
    assert caps.max_bindings >= 4, f"max_bindings is {caps.max_bindings}"
    assert caps.max_workgroup >= 64, f"max_workgroup is {caps.max_workgroup}"
    assert all(n >= 1 for n in caps.max_workgroup_size), str(caps.max_workgroup_size)
    assert caps.max_buffer_bytes >= 1 << 24, f"max_buffer_bytes is {caps.max_buffer_bytes}"
    probe = target.registry.probe(target.backend)
    assert info in probe.devices, f"{info} is none of those that the probe lists: {probe}"
    assert info.backend == target.backend, str(info)
    assert info.index == target.index, str(info)
    assert caps.vendor == info.vendor, f"the vendor is {info.vendor!r} and {caps.vendor!r}"
    assert caps.is_gpu == info.is_gpu, f"is_gpu is {info.is_gpu} and {caps.is_gpu}"
    if isinstance(target.device, Device):
        alignment = target.device.alignment
        assert alignment >= 4, f"alignment is {alignment}"
        assert not alignment & (alignment - 1), f"alignment {alignment} is no power of two"


def _no_such_device(target: DeviceUnderTest) -> None:
    """The error lists the devices that there are."""

    def look() -> None:
        target.registry.open_device(target.backend, 10_000, DelegateOptions()).close()

    info = target.device.info
    what = "opening device 10000"
    says(refused(look, what, DeviceError), what, f"{info.index} = {info.name}")


# Plans that do not fit together


def _refusal(device: Device, made: Plan, what: str) -> DeviceError:
    """The error that loading ends in, after which the device must still work."""
    error = refused(lambda: device.load(made).close(), f"loading {what}", DeviceError)
    works(device, f"a plan loaded after one that was refused for {what}")
    return error


def _one(
    device: Device,
    refs: Sequence[Ref],
    *,
    kernel: Kernel | None = None,
    count: int = 4,
    arena: int = 1024,
) -> Plan:
    return plan(
        [dispatch(kernel or affine(4), count, refs, _LABEL)],
        [io("x", (4,))],
        [io("y", (4,))],
        arena=arena,
        alignment=device.alignment,
    )


def _not_there(refs: Sequence[Ref], device: Device) -> None:
    what = f"bindings {list(refs)} of one input, one output and no constants"
    says(_refusal(device, _one(device, refs), what), what, _LABEL)


def _written_constant(device: Device) -> None:
    """Other recordings may have it too."""
    made = _one(device, [InputRef(0), ConstRef(0)])
    made = attrs.evolve(made, constants=(np.zeros(4, np.float32),))
    what = "a dispatch that writes to a constant"
    says(_refusal(device, made, what), what, _LABEL, "constant")


def _unaligned(device: Device) -> Outcome:
    what = f"a region at byte 4 for an alignment of {device.alignment}"
    if device.alignment == 4:
        return NotApplicable("every float is aligned on this device")
    error = _refusal(device, _one(device, [ArenaRef(4, 16), OutputRef(0)]), what)
    says(error, what, _LABEL, "4", str(device.alignment))
    return None


def _outside_the_arena(device: Device) -> None:
    for ref in (ArenaRef(1024, 16), ArenaRef(0, 1028), ArenaRef(-device.alignment, 16)):
        what = f"{ref} in an arena of 1024 bytes"
        says(_refusal(device, _one(device, [ref, OutputRef(0)]), what), what, _LABEL, "1024")


# Limits


def _over(device: Device, nbytes: int, what: str) -> None:
    """By the dispatch whose buffer it is, or by the arena."""
    made = _one(device, [ArenaRef(0, nbytes), OutputRef(0)], arena=nbytes)
    says(_refusal(device, made, what), what, f"{_LABEL}|arena", str(nbytes))


def _too_large_a_buffer(device: Device) -> None:
    most = device.caps.max_buffer_bytes
    _over(device, most + device.alignment, f"a buffer over the limit of {most} bytes")


def _more_memory_than_there_is(device: Device) -> None:
    _over(device, 1 << 62, "a buffer of 4 EiB")


def _over_a_limit(device: Device, made: Plan, what: str) -> None:
    kernel = made.dispatches[0].kernel
    says(_refusal(device, made, what), what, f"{_LABEL}|{kernel.name}")


def _too_many_workgroups(device: Device) -> Outcome:
    most = device.caps.max_groups[0]
    if most >= 2**31 - 1:
        return NotApplicable("the device sets no limit to the workgroups of a dispatch")
    made = _one(device, [InputRef(0), OutputRef(0)], count=32 * (most + 1))
    _over_a_limit(device, made, f"{most + 1} workgroups of at most {most}")
    return None


def _too_large_a_workgroup(device: Device) -> None:
    most = device.caps.max_workgroup
    wide = attrs.evolve(affine(4, name="wide"), workgroup=(2 * most, 1, 1))
    made = _one(device, [InputRef(0), OutputRef(0)], kernel=wide, count=1)
    _over_a_limit(device, made, f"a workgroup of {2 * most} of at most {most}")


def _too_much_shared_memory(device: Device) -> None:
    most = device.caps.shared_bytes
    k = Builder("greedy", (32, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    tile = k.shared("tile", F32x4, most)
    k.store_shared(tile, k.local_id(0), k.const(1.0, F32x4))
    k.barrier()
    k.store(dst, 0, k.load_shared(tile, 0).lane(0))
    made = _one(device, [OutputRef(0)], kernel=k.build(), count=1)
    _over_a_limit(device, made, f"{16 * most} bytes of shared memory of at most {most}")


def _too_many_buffers(device: Device) -> None:
    most = device.caps.max_bindings
    k = Builder("crowded", (32, 1, 1))
    sources = [k.buffer(f"src{i}", Scalar.F32, 1, "read") for i in range(most)]
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    total = k.load(sources[0], 0)
    for source in sources[1:]:
        total = total + k.load(source, 0)
    k.store(dst, 0, total)
    refs: list[Ref] = [*[InputRef(0)] * most, OutputRef(0)]
    _over_a_limit(
        device,
        _one(device, refs, kernel=k.build(), count=1),
        f"{most + 1} buffers of at most {most}",
    )


# Kernels


def broken(name: str = "ill_formed") -> Kernel:
    """A kernel that stores an undeclared variable: no driver can compile it."""
    kernel = affine(8, name=name)
    out = kernel.buffers[1]
    wrong = Store(out, Name(F32, "never_declared"), Name(F32, "never_declared"))
    return attrs.evolve(kernel, body=(*kernel.body, wrong))


def _a_broken_kernel(device: Device) -> None:
    kernel = broken()
    made = plan(
        [dispatch(kernel, 8, [InputRef(0), OutputRef(0)])],
        [io("x", (8,))],
        [io("y", (8,))],
        alignment=device.alignment,
    )
    load: Callable[[], object] = lambda: device.load(made)  # noqa: E731
    error = refused(load, "loading a kernel that cannot be compiled", TflgpuError)
    text = str(error)
    assert kernel.name in text, f"the error does not name the kernel: {text[:200]}"
    if isinstance(error, CompileError):
        assert len(text.splitlines()) > 1, f"a CompileError carries source and log: {text[:200]}"
        source = device.source(kernel).strip().splitlines()
        assert source[-1].strip() in text, "a CompileError carries the source that was refused"
    works(device, "a plan loaded after a kernel was refused")
