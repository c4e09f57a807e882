"""The values in a report: what became of each operator, and of each part."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from tflgpu.lowering.reason import ReasonCode
from tflgpu.values import frozen


class Place(enum.Enum):
    """Where an operator runs."""

    DEVICE = "device"
    CPU = "cpu"
    #: Worked out before the model runs, or merged into its neighbours: it takes no time.
    FOLDED = "folded"


@frozen
class Refusal:
    """An operator of the file that does not run on the device.

    Attributes:
        node: Operator index in the model file.
        op: Its name.
        reason: Why, and where possible what to do.
        runs_on: What runs it on the CPU ("LiteRT CPU kernels", with its version); empty where the
            NumPy references do.
        code: What kind of reason it is.
    """

    node: int
    op: str
    reason: str
    runs_on: str = ""
    code: ReasonCode = ReasonCode.UNSUPPORTED_FORM


@frozen
class InFloats:
    """An operator on quantized tensors that integer numerics leave to real numbers.

    Attributes:
        node: Operator index in the model file.
        op: Its name.
        reason: Why.
    """

    node: int
    op: str
    reason: str


@frozen
class CompositeReport:
    """A composite of the file, and what became of it.

    Attributes:
        name: Such as "odml.rms_norm".
        operators: Those that it is made of, by index.
        op: The op that stands for them; "" where they run as they are.
        reason: Why they do; "" where they do not.
    """

    name: str
    operators: tuple[int, ...]
    op: str
    reason: str


@frozen
class OperatorReport:
    """What became of one operator of the file.

    Attributes:
        node: Its index in the model file.
        op: Its name.
        inputs, outputs: Names of its tensors; "" for an absent optional one.
        place: Where it runs.
        backend, device: Where on the device; empty elsewhere.
        partition: Which part of the device's, from 0; None elsewhere.
        runs_on: What runs it on the CPU; empty elsewhere, and where the NumPy references do.
        code, reason: Why it is not on the device; None and empty where it is.
        seconds: Estimated, of a run; shared among operators that were merged. None without an
            estimate.
        gain: Estimated seconds that the CPU would take more, the way to the device and back left
            out; None where it is not on the device.
    """

    node: int
    op: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    place: Place = Place.CPU
    backend: str = ""
    device: str = ""
    partition: int | None = None
    runs_on: str = ""
    code: ReasonCode | None = None
    reason: str = ""
    seconds: float | None = None
    gain: float | None = None


@frozen
class PartitionReport:
    """A part of the graph on the device.

    Attributes:
        number: From 0, in the order in which they run.
        operators: The file's, by index.
        dispatches: Kernels that a run launches.
        seconds: Estimated, of a run, with the transfers there and back; None without an estimate.
        gain: Estimated seconds that the CPU would take more; less than nothing where everything
            goes to the device that can.
    """

    number: int
    operators: tuple[int, ...]
    dispatches: int
    seconds: float | None = None
    gain: float | None = None


def numbers(nodes: Iterable[int], most: int = 4) -> str:
    """Operators of the file by their indices, shortly: "#1, #2 and 3 more"."""
    every = list(nodes)
    shown = ", ".join(f"#{n}" for n in every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"
