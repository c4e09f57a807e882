"""Finds the nodes that make results wrong.

Every node is computed on the device by itself, from the CPU's operands. Two questions are asked of
its result, with `Off` as the measure and the guard's tolerance as the limit (or a part of it, and
never less than four times what rounding to f16 does to the largest value of a tensor, 2^-11 of it):

* own error: device(operands) against CPU(operands), both operands as the device gets them, that is,
  rounded to f16 where it reads or keeps them so. What rounding operands explains is no error of the
  node. A result that the device keeps in f16 is rounded before it is compared, as storing it does.
* demand: CPU(operands as the device gets them) against CPU(operands in f32). A node that makes a
  large error of a small one (a difference of nearly equal numbers), or whose operands do not fit
  into f16, needs them in f32: the nodes that make them are redone with it.

A node is innocent whose operands were off already and which answers both right: what it was handed
in the failed run does not matter here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.report_values import Inaccurate
from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Value
from tflgpu.ops.base import OpDef
from tflgpu.runtime.guard.criterion import NOTHING, Off, off_by, worst
from tflgpu.runtime.guard.single_nodes import Single, SingleNodes, in_16_bits, take_apart
from tflgpu.runtime.guard.workshop import Workshop
from tflgpu.runtime.session import Session

_F16_MAX = float(np.finfo(np.float16).max)


@attrs.frozen(eq=False)
class Guilty:
    """A node that is to blame.

    Attributes:
        node: Of the compiled graph.
        off: How far its result is off.
        reason: A sentence.
        makers: The nodes that have to be redone with it.
    """

    node: Node
    off: Off
    reason: str
    makers: tuple[Node, ...] = ()

    @property
    def origins(self) -> frozenset[int]:
        """The operators of the file that are to be computed in f32."""
        return frozenset(o for node in (self.node, *self.makers) for o in node.origins)

    def reports(self) -> Iterator[Inaccurate]:
        """The findings for a report: one for each operator of the file."""
        for origin in self.node.origins:
            yield Inaccurate(origin, self.node.op, self.off.error, self.reason)


def locate(
    shop: Workshop, compiled: Compiled, target: Target, inputs: Mapping[int, Array], limit: float
) -> list[Guilty]:
    """The nodes to blame, in the order in which they run.

    Args:
        shop: What runs them.
        compiled: The graph as it ran.
        target: What for.
        inputs: The graph's inputs and state before the run, by value id.
        limit: How far off a result may be.

    Raises:
        TflgpuError: the CPU or the device cannot run them one by one.
    """
    apart = take_apart(compiled, target)
    with (
        shop.on_cpu(compiled.graph, preserve_all=True) as whole,
        shop.on_cpu(apart.graph) as cpu,
        shop.on_device(apart.compiled(target)) as device,
    ):
        set_before(whole, inputs)
        whole.run()
        exact = whole.arrays
        for session in (cpu, device):
            _feed(session, apart, exact)
            session.run()
        judge = _Judge(apart, exact, cpu.arrays, device.arrays, target, shop.ops, limit)
        return [found for single in apart.singles if (found := judge.of(single)) is not None]


def set_before(session: Session, arrays: Mapping[int, Array]) -> None:
    """Let a session begin with the inputs and state that there were before a run."""
    for key, array in arrays.items():
        if key in session.arrays:  # a pass may have removed a value without readers
            np.copyto(session.arrays[key], array)


def _feed(session: Session, apart: SingleNodes, exact: Mapping[int, Array]) -> None:
    for key, (value, halves) in apart.feeds.items():
        given = exact[value.id]
        np.copyto(session.arrays[key], in_16_bits(given) if halves else given)


def _reach(array: Array) -> float:
    """The largest magnitude of finite elements."""
    if array.dtype.kind != "f":
        return 0.0
    return float(np.abs(array[np.isfinite(array)]).max(initial=0))


@attrs.frozen(eq=False)
class _Judge:
    """By value id: ``exact`` of the whole graph, ``cpu`` and ``device`` of the one taken apart."""

    apart: SingleNodes
    exact: Mapping[int, Array]
    cpu: Mapping[int, Array]
    device: Mapping[int, Array]
    target: Target
    ops: Mapping[str, OpDef]
    limit: float

    def of(self, single: Single) -> Guilty | None:
        """What is wrong with a node, None where it is right."""
        own = worst([self._own(*pair) for pair in self._results(single)])
        demand = NOTHING
        if single.rounded:
            demand = worst([self._demand(*pair) for pair in self._results(single)])
        if demand.beyond(self.limit) and worst([demand, own]) is demand:
            return self._demanding(single, demand)
        if own.beyond(self.limit):
            return Guilty(
                single.node,
                own,
                f"{own}, computed from the CPU's operands in "
                f"{self._precision(single)}{self._reach(single, own)}",
            )
        return None

    def _demanding(self, single: Single, demand: Off) -> Guilty:
        reason = f"{demand} when its operands are rounded to 16 bits"
        reach = max(_reach(self.exact[value.id]) for value in single.rounded)
        if reach > _F16_MAX:
            reason += f"; they reach {reach:.3g}, and f16 ends at 65504"
        return Guilty(single.node, demand, reason, tuple(self._makers(single.rounded)))

    def _results(self, single: Single) -> Sequence[tuple[Value, Value]]:
        return list(zip(single.node.outputs, single.twin.outputs, strict=True))

    def _own(self, value: Value, twin: Value) -> Off:
        got = self.device[twin.id]
        if value.id in self.apart.halved:
            got = in_16_bits(got)
        return off_by(got, self.cpu[twin.id], value)

    def _demand(self, value: Value, twin: Value) -> Off:
        return off_by(self.cpu[twin.id], self.exact[value.id], value)

    def _precision(self, single: Single) -> str:
        return self.target.site_of(single.node).precision.value

    def _reach(self, single: Single, own: Off) -> str:
        """How large the numbers are of which some were lost."""
        if not own.lost:
            return ""
        reach = max(_reach(self.cpu[twin.id]) for _, twin in self._results(single))
        end = ", and f16 ends at 65504" if reach > _F16_MAX else ""
        return f"; they should reach {reach:.3g}{end}"

    def _makers(self, values: Sequence[Value]) -> Iterator[Node]:
        """The device's nodes that make values, through those that only move elements."""
        makers = {v.id: s.node for s in self.apart.singles for v in s.node.outputs}
        seen: set[int] = set()
        ahead = list(values)
        while ahead:
            node = makers.get(ahead.pop().id)
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            op = self.ops.get(node.op)
            if op is not None and op.movement.keeps_values:
                ahead += [v for v in node.inputs if v is not None]
