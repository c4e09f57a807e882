"""The contract between the core and a backend: devices, plans, recordings.

A backend's device takes a `Plan` and gives a `Recording`. Everything that can be done once is
done in `Device.load`: compiling, allocating, uploading constants, binding, recording.

Threading: a device may be used from several threads; it guards itself. A recording is used by
one thread at a time. Several devices may be open at once, also of one index.

Level 0 of the conformance suite asks for all of this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs

from tflgpu.compiler.plan import Plan
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.pending import Pending
from tflgpu.errors import OptionError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, TensorSpec, Value
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.reason import Unsupported
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel
    from tflgpu.ops.base import OpDef

API_VERSION = 2

#: What a backend of the version before lacks, by version.
API_CHANGES: Mapping[int, str] = {
    2: "recordings have submit and bind, devices allocate and import_buffer, and a plan several "
    "arenas (the classes in tflgpu.backend_kit.base_device and .plan_recording bring "
    "most of it)",
}


@attrs.frozen  # every start compares or shows some
class DeviceInfo:
    """One device of a backend, known without opening it.

    Attributes:
        backend: Name of the backend.
        index: Position in the backend's list; what ``device=`` takes.
        name: What the driver calls it.
        vendor: As `DeviceCaps.vendor`.
        is_gpu: False for CPUs and software renderers.
        driver: Driver and version, for fingerprints and reports.
        uuid: Which device it is, to other APIs and in other processes too: 32 lower-case
            hexadecimal digits in groups (`uuid_text`). None where the
            API does not tell.
    """

    backend: str
    index: int
    name: str
    vendor: str = ""
    is_gpu: bool = False
    driver: str = ""
    uuid: str | None = None


@frozen
class BackendInfo:
    """A backend, as its plugin registers it.

    Attributes:
        name: What ``backend=`` takes.
        api_version: `API_VERSION` it was written for.
        requires: Import names of the drivers' Python packages.
        extra: The tflgpu extra that installs them ("" where none is needed).
        rank: Preference among backends that have a GPU; higher first.
        system_hint: What else a machine may lack (a Debian package, a vendor driver).
        cpu_rank: Preference among those that run, on the CPU, what the device in use does not;
            higher first. None for a backend that does not. Its first device is used, which is a
            `NodeDevice` whose recordings can run again after an error, and in a forked child.
    """

    name: str
    api_version: int
    requires: tuple[str, ...] = ()
    extra: str = ""
    rank: int = 0
    system_hint: str = ""
    cpu_rank: int | None = None


@frozen
class Probe:
    """Whether a backend can run here: its devices, or the reason why there are none."""

    available: bool
    reason: str = ""
    devices: tuple[DeviceInfo, ...] = ()


@frozen
class DispatchTime:
    """One dispatch by the device's clock.

    Attributes:
        label: The node that it computes.
        kernel: Its kernel.
        seconds: How long it took.
        start: Seconds from the beginning of the run's first dispatch to that of this one; None
            where the device tells durations only.
    """

    label: str
    kernel: str
    seconds: float
    start: float | None = None


class Recording(Protocol):
    """A loaded plan, ready to run.

    `inputs` and `outputs` are host arrays of the plan's shapes and dtypes, mapped or pinned
    where the API allows it: write the inputs, call `run`, read the outputs. They stay valid,
    at the same address, until `close`; outputs are overwritten by the next `run`, inputs are
    left alone. Inputs may lie in memory that the host writes at full speed and reads at a hundredth
    of it (mapped memory of a device is): nothing reads them on the way of a run. What does is said
    where it stands: reading an input by its index, a run that is made again after a failure, the
    accuracy guard's first runs. Arrays that someone still holds after `close`, of the recording or
    of its device, keep their contents and can be read and written.

    A signal's handler may raise anywhere in a method (Ctrl-C raises KeyboardInterrupt). Such an
    exception goes through as it is. After a `run` that ended so, or in an error, the recording is
    not run again: it is closed, which waits for what is still on the device, and another is loaded.
    Another `run` of it gives the right outputs, or raises a DeviceError.
    A `Pending` whose `wait` ended so is as before.
    """

    @property
    def inputs(self) -> Sequence[Array]:
        """Writable host arrays, one per plan input."""

    @property
    def outputs(self) -> Sequence[Array]:
        """Host arrays, one per plan output."""

    def run(self) -> None:
        """Upload, run every dispatch, download; return when the outputs are there.

        Raises:
            StateError: the recording or its device is closed.
            DeviceError: the device failed, now or in an earlier run: a recording that has failed
                keeps failing, and says what was wrong first.
        """

    def submit(self) -> Pending:
        """Begin what `run` does, and return before it is over where the device goes on by itself.

        A recording has one run in flight: every other call waits for it first.
        Several recordings of a device may be in flight together; a plan that is loaded twice has
        inputs and outputs twice.

        Raises:
            StateError, DeviceError: as `run`.
        """

    def bind(
        self,
        inputs: Mapping[int, Buffer | None] | None = None,
        outputs: Mapping[int, Buffer | None] | None = None,
    ) -> Unsupported | None:
        """Let the next runs read inputs from and write outputs to buffers of the device, by index;
        None in a buffer's place gives back the recording's own memory. What is not named stays as
        it is. The host array of what is bound to a buffer is neither read nor written.

        Gives the reason where that cannot be, and nothing is changed then: between guard bands,
        for one.

        Raises:
            StateError: the recording or a buffer is closed.
            DeviceError: as `run`; or there is no such input or output, the buffer is too small or
                of another device, was made for reading only and is an output's (or the other way
                round), or a run would write memory that another of its buffers has too.
        """

    def profile(self) -> Sequence[DispatchTime] | Unsupported:
        """Run once with a timer around every dispatch, in the plan's order; or the reason why there
        are no times. The outputs are there all the same.

        Raises:
            StateError: the recording or its device is closed.
            DeviceError: as `run`.
        """

    def close(self) -> None:
        """Release everything; twice is harmless. Not called by a thread that is inside of a run of
        it (`tflgpu.backend_kit.run_guard` sees to that)."""


class Fitting(Protocol):
    """Optional for a `Recording`: does less where less counts."""

    def fit(self, absent: int, fetched: Sequence[int]) -> None:
        """Run as many workgroups from now on as `PlannedDispatch.fitted` says.

        Args:
            absent: How many positions do not count; an input of the plan says the same.
            fetched: Of each output, how many bytes are read; behind them it may have anything.

        Raises:
            StateError: the recording is closed.
            DeviceError: as `Recording.run`.
        """
        ...


@frozen
class NodeRun:
    """Nodes to run as they are, for a `NodeDevice` and for the CPU: in topological order,
    between host tensors. ``variables`` are state tensors by value id, kept between runs; what loads
    the nodes may put arrays of its own, with the same contents, in their places."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    ops: Mapping[str, OpDef]
    variables: dict[int, Array]


@runtime_checkable
class NodeDevice(Protocol):
    """A device that runs nodes rather than kernels (the NumPy references; a vendor library)."""

    @property
    def info(self) -> DeviceInfo:
        """Which device it is."""

    @property
    def caps(self) -> DeviceCaps:
        """Its limits and features."""

    def supports(self, node: Node, ops: Mapping[str, OpDef]) -> Unsupported | None:
        """The reason why it cannot run a node, None where it can."""

    def load_nodes(self, run: NodeRun) -> Recording:
        """Prepare nodes for running.

        Raises:
            StateError: the device is closed.
        """

    def close(self) -> None:
        """Release the device; twice is harmless."""


class ForeignOps(Protocol):
    """Optional for a `NodeDevice` of a CPU backend: kernels for operators that tflgpu does not
    define."""

    def infer(self, node: Node) -> Sequence[TensorSpec] | Unsupported:
        """The shapes and types of a node's results, or why it cannot run it.

        The node is as the file has it (`Node.source`), its attributes mean nothing, and all of
        its operands' shapes are known.
        """


class CustomOps(Protocol):
    """Optional for a `NodeDevice` of a CPU backend: custom operators that exist as native code."""

    def register_custom_ops(self, registerers: Sequence[Any]) -> None:
        """Call each of them, and take its operators from now on. A registerer is what
        `tflgpu.interpreter.InterpreterWithCustomOps` says; called once, before anything else.

        Raises:
            OptionError: there is no function of a name, or a function raises.
        """


@runtime_checkable
class Device(Protocol):
    """An opened device."""

    @property
    def info(self) -> DeviceInfo:
        """Which device it is."""

    @property
    def caps(self) -> DeviceCaps:
        """Its limits and features."""

    @property
    def alignment(self) -> int:
        """Bytes to which arena offsets must be aligned."""

    def load(self, plan: Plan, *, guard_bands: bool = False) -> Recording:
        """Compile (in parallel, cached), allocate, upload, bind and record.

        With ``guard_bands`` every buffer has a pattern before and after it, and `Recording.run`
        raises `DeviceError` where a kernel wrote outside, naming the dispatch, the kernel, the
        buffer and the place. What is read, by a kernel or from an output, and was not written in
        this run has all bits set: NaN as a float, -1 as an integer.

        A recording may say in ``dispatches`` how many kernels a run launches: as many as the plan;
        and in ``copies`` how many bytes a run copies to the device and to the host, as it is bound
        now. Without it, all that is not bound is taken to be copied.

        A plan that was refused leaves the device as it was.

        Raises:
            StateError: the device is closed.
            CompileError: the driver refused a kernel; carries source and log.
            DeviceError: the plan does not fit together or is over a limit of `caps` (see
                `tflgpu.backend_kit.check_plan`), memory ran out, or the device is gone.
        """

    def source(self, kernel: Kernel) -> str:
        """The text that is compiled for a kernel (for people)."""

    def allocate(self, nbytes: int) -> Buffer | Unsupported:
        """A buffer for recordings to be bound to, all zeros; or the reason why there are none.

        Raises:
            StateError: the device is closed.
            DeviceError: it is over a limit of `caps`, or memory ran out.
        """

    def import_buffer(self, source: object) -> Buffer | Unsupported:
        """A buffer over memory that there is, used in place and never copied: a buffer of the same
        API, as `Buffer.export` gives it, or what has Python's buffer protocol. The caller keeps
        that memory alive. Returns a reason where this device cannot use it so.

        Raises:
            StateError: the device is closed.
            DeviceError: the device failed.
        """

    def close(self) -> None:
        """Close what was loaded on it and release the device; twice is harmless. Likewise not
        called from inside of a run on it."""


class CompilesAhead(Protocol):
    """Optional for a `Device`: to compile kernels while others of their plan are being written."""

    def begin(self, kernel: Kernel) -> None:
        """Begin to compile a kernel and return at once. A plan with it will probably be loaded; the
        same kernel may come again. What is wrong with it is for `Device.load` to raise."""


#: What an option ``device`` begins with that is a UUID, which APIs of one GPU have in common, and
#: which tells two equal GPUs apart. Indices do not: each API has its own order, and a process in
#: which some GPUs are hidden another.
UUID = "uuid:"
UUID_BYTES = 16

_GROUPS = (8, 4, 4, 4, 12)
_DIGITS = re.compile("".join(f"([0-9a-f]{{{count}}})-?" for count in _GROUPS)[:-2])


def uuid_text(raw: bytes) -> str | None:
    """`DeviceInfo.uuid` of the 16 bytes that an API gives, in the groups of RFC 9562; None of
    zeros, which drivers give that have no UUID."""
    return read_uuid(raw.hex()) if any(raw) else None


def read_uuid(text: str) -> str | None:
    """The same of a UUID as people and other programs write it: with or without dashes, in either
    case, and with the "GPU-" of CUDA and `nvidia-smi` before it. None of any other text."""
    found = _DIGITS.fullmatch(text.strip().lower().removeprefix("gpu-"))
    return None if found is None else "-".join(found.groups())


_MOST = 4.0


def _scale(instance: object, attribute: object, value: float) -> None:
    if not 1 <= value <= _MOST:
        raise OptionError(f"tolerance_scale is {value}; it lies between 1 and {_MOST:g}")


@frozen
class Allowances:
    """Known failures and wider tolerances, as a backend asks for them.

    Attributes:
        expectations: File of cases that are known to fail, each with a kind and a reason
            (`tflgpu.conformance.expectations` has the format); None where there are none.
        tolerance_scale: Factor on every tolerance but the exact ones, 1 to 4; shown in the
            suite's report.

    Raises:
        OptionError: the scale is out of its range.
    """

    expectations: Path | None = None
    tolerance_scale: float = attrs.field(default=1.0, validator=_scale)
