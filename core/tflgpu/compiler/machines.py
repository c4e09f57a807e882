"""A device, and the CPU beside it, as a few figures that times are estimated from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.ops.facets import Work

#: Operations for each result up to which an op adds up few numbers: a window of 5 x 5 has 50.
_FEW = 64


@frozen
class Machine:
    """A device or CPU that runs nodes, as seconds for each kind of work.

    Attributes:
        launch: For a run of any size: submitting and waiting, or the call.
        step: For each kernel, or each operator.
        flop: For an operation (a multiply-add is two) of a matrix product.
        few: For an operation of an op that adds up few numbers for each result.
        byte: For a byte that an operator reads or writes.
        edge: For a byte that goes in from the host's arrays, or out to them.
    """

    launch: float
    step: float
    flop: float
    few: float
    byte: float
    edge: float

    def seconds(self, work: Work, results: int) -> float:
        """Seconds of one operator that makes ``results`` elements."""
        rate = self.few if work.flops <= _FEW * results else self.flop
        return self.step + max(work.flops * rate, work.nbytes * self.byte)


@frozen
class Limits:
    """What a device can do in a second at most.

    Attributes:
        bandwidth: Bytes read and written, by a copy that no cache holds.
        arithmetic: Operations of f32 multiply-adds (two each), without matrix units.
    """

    bandwidth: float
    arithmetic: float


@frozen
class TimeModel:
    """The two sides between which a graph is divided.

    Attributes:
        device, host: Their figures.
        measured: Whether these were measured, both on this machine; else they are round figures,
            which rank parts and tell little of how long anything takes.
        note: Why there was no measurement, or the names of the two machines.
    """

    device: Machine
    host: Machine
    measured: bool = False
    note: str = ""


#: A discrete GPU and one core of a CPU, roughly.
ROUND_FIGURES = TimeModel(
    device=Machine(launch=5e-5, step=3e-6, flop=1e-13, few=1e-12, byte=2e-12, edge=1e-10),
    host=Machine(launch=2e-6, step=1e-6, flop=1e-11, few=5e-11, byte=5e-11, edge=1e-10),
    note="round figures: nothing was measured",
)


@frozen
class Cost:
    """Estimated seconds of a node by itself, without what it takes to get there."""

    device: float
    host: float
