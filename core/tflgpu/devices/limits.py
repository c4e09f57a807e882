"""What a device can move and compute in a second at most, measured by two kernels and kept.

`tflgpu.devices.figures` has figures of small graphs, for estimates; those of a GPU are far below
its limits, since such graphs do not fill it.
"""

from __future__ import annotations

from contextlib import closing
from functools import cache

from tflgpu.compiler.machines import Limits
from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef, Plan, PlannedDispatch, PlannedIO
from tflgpu.contract.device import Device
from tflgpu.devices.measured_times import MeasuredTimes, default_folder, figures_key
from tflgpu.errors import DeviceError
from tflgpu.errors.blame import LOG
from tflgpu.ir.dtypes import DType
from tflgpu.language.builder import Builder
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import Scalar
from tflgpu.lowering.reason import Unsupported

_SETTINGS = "limits 2"  # other kernels, other limits
_RUNS = 12  # what else the machine does only adds to their times
#: A dispatch is long enough from so many seconds on: clocks tick in microseconds.
_ENOUGH = 2e-3
_EACH = 16  # vectors that an invocation copies
_SMALLEST, _LARGEST = 4 << 20, 256 << 20  # bytes of a buffer
_CHAINS, _STEPS = 8, 128
_FLOPS = _CHAINS * _STEPS * 4 * 2  # of an invocation


def limits_of(device: Device, owner: str, times: MeasuredTimes | None = None) -> Limits | str:
    """The limits of a device, kept from an earlier call or measured now, which takes less than a
    second on a GPU; or why there are none.

    Args:
        device: An opened device.
        owner: The distribution that its backend is of.
        times: Where they are kept; by default the user's cache folder.
    """
    store = MeasuredTimes(default_folder()) if times is None else times
    key = figures_key(device.info, owner, _SETTINGS)
    kept = store.load(key, 2)
    if kept is not None:
        return Limits(1 / kept[0], 1 / kept[1])
    try:
        found = measure_limits(device)
    except DeviceError as error:
        LOG.info("tflgpu: the limits of %s were not measured: %s", device.info.name, str(error))
        return f"they could not be measured: {error}"
    if isinstance(found, Unsupported):
        return found.reason
    store.store(key, [device.info], [1 / found.bandwidth, 1 / found.arithmetic])
    return found


def measure_limits(device: Device) -> Limits | Unsupported:
    """Run a copy and a chain of multiply-adds, larger ones until they take long enough.

    Raises:
        DeviceError: the device failed.
    """
    caps = device.caps
    group = 1 << (min(256, caps.most_members).bit_length() - 1)
    rates = []
    for kernel, step in ((_copy(group), _EACH * 16), (_multiply_adds(group), 16)):
        most = min(_LARGEST, caps.max_buffer_bytes, caps.max_groups[0] * group * step)
        size = min(_SMALLEST, most)
        while True:
            seconds = _seconds(device, kernel, size, size // step // group)
            if isinstance(seconds, Unsupported):
                return seconds
            if seconds >= _ENOUGH or 4 * size > most:
                break
            size *= 4
        work = 2 * size if step > 16 else size // step * _FLOPS
        rates.append(work / seconds)
    return Limits(*rates)


def _seconds(device: Device, kernel: Kernel, size: int, groups: int) -> float | Unsupported:
    """The least seconds of a dispatch that reads and writes ``size`` bytes."""
    edge = PlannedIO("edge", (4,), DType.F32, 16)
    first, last = ArenaRef(0, size), ArenaRef(0, size, 1)
    filling = PlannedDispatch(_fill(), (1, 1, 1), (InputRef(0), first), "fill")
    timed = PlannedDispatch(kernel, (groups, 1, 1), (first, last), "timed")
    reading = PlannedDispatch(_fill(), (1, 1, 1), (last, OutputRef(0)), "read")
    plan = Plan((size, size), device.alignment, (), (edge,), (edge,), (filling, timed, reading))
    with closing(device.load(plan)) as recording:
        recording.inputs[0][...] = 0.5
        found = []
        for _ in range(_RUNS):
            times = recording.profile()
            if isinstance(times, Unsupported):
                return times
            if not times:
                return Unsupported("the device has no timers")
            found.append(times[1].seconds)
    if not min(found):
        return Unsupported(f"its timers gave no time for a dispatch that moves {size} bytes")
    return min(found)


@cache
def _fill() -> Kernel:
    k = Builder("fill", (1, 1, 1))
    source = k.buffer("source", Scalar.F32, 4, "read")
    target = k.buffer("target", Scalar.F32, 4, "write")
    k.store(target, 0, k.load(source, 0))
    return k.build()


@cache
def _copy(group: int) -> Kernel:
    k = Builder("copy", (group, 1, 1))
    source = k.buffer("source", Scalar.F32, 4, "read")
    target = k.buffer("target", Scalar.F32, 4, "write")
    # Neighbours read neighbours.
    start = k.let(k.group_id(0) * (group * _EACH) + k.local_id(0), "start")
    for i in range(_EACH):
        k.store(target, start + i * group, k.load(source, start + i * group))
    return k.build()


@cache
def _multiply_adds(group: int) -> Kernel:
    k = Builder("multiply_adds", (group, 1, 1))
    source = k.buffer("source", Scalar.F32, 4, "read")
    target = k.buffer("target", Scalar.F32, 4, "write")
    at = k.let(k.global_id(0), "at")
    # What it multiplies by is not known when it is compiled.
    x = k.let(k.load(source, 0), "x")
    chains = [k.var(x + float(i), "chain") for i in range(_CHAINS)]
    with k.loop(0, _STEPS):
        for chain in chains:
            k.set(chain, k.fma(chain, x, x))
    total = chains[0] + 0.0
    for chain in chains[1:]:
        total = total + chain
    k.store(target, at, total)
    return k.build()
