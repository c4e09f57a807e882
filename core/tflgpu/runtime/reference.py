"""Nodes run by their NumPy references: the CPU side of every session, and cpu_ref's engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tflgpu.backend_kit.node_recording import BaseNodeRecording
from tflgpu.compiler.references import reference_support
from tflgpu.contract.device import NodeRun
from tflgpu.errors import DeviceError, PluginError, TflgpuError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, TensorSpec, Value
from tflgpu.ops.foreign import wrong_results
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.ops.base import OpDef


def refusals(nodes: Sequence[Node], ops: Mapping[str, OpDef]) -> list[tuple[Node, str]]:
    """The nodes that no reference runs, with reasons."""
    return [(node, no.reason) for node in nodes if (no := reference_support(node, ops))]


@frozen
class _Call:
    """A node made ready: what it gives and what frees up after it."""

    node: Node
    op: OpDef
    frees: tuple[int, ...]
    results: tuple[Value, ...]
    specs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, node: Node, op: OpDef, frees: Sequence[int]) -> _Call:
        """Results are a node's outputs, then the new contents of its variables, and of a state that
        begins from a plain tensor."""
        states = op.states_of(node.attrs)
        kept = [
            v for i, v in enumerate(node.inputs) if v is not None and (v.is_variable or i in states)
        ]
        results = (*node.outputs, *kept)
        return cls(node, op, tuple(frees), results, tuple(v.spec for v in results))


class ReferenceRecording(BaseNodeRecording):
    """A `Recording` that calls each node's reference in order."""

    kind = "NumPy"
    copies = (0, 0)  # it computes in host memory

    def __init__(self, run: NodeRun) -> None:
        super().__init__(run)
        self._run = run
        self._constants: dict[int, Array] = {
            v.id: v.data
            for node in run.nodes
            for v in node.inputs
            if v is not None and v.data is not None
        }
        last = {v.id: i for i, n in enumerate(run.nodes) for v in n.inputs if v is not None}
        kept = {v.id for v in run.outputs} | set(self._constants) | set(run.variables)
        frees: dict[int, list[int]] = {}
        for key, step in last.items():
            if key not in kept:
                frees.setdefault(step, []).append(key)
        self._calls = [
            _Call.of(node, run.ops[node.op], frees.get(i, ())) for i, node in enumerate(run.nodes)
        ]

    def _compute(self) -> None:
        env = dict(self._constants)
        env.update(self._run.variables)
        env.update((v.id, a) for v, a in zip(self._run.inputs, self._inputs, strict=True))
        with np.errstate(all="ignore"):
            for call in self._calls:
                self._call(call, env)
        for value, array in zip(self._run.outputs, self._outputs, strict=True):
            np.copyto(array, env[value.id])

    def _call(self, call: _Call, env: dict[int, Array]) -> None:
        node = call.node
        arrays = [None if v is None else env[v.id] for v in node.inputs]
        try:
            results = call.op.reference(node.attrs, arrays)
        except PluginError as error:
            raise DeviceError(f"{node.label} failed on the CPU: {error}") from error
        except TflgpuError:
            raise
        except (ValueError, TypeError, IndexError, MemoryError, FloatingPointError) as error:
            raise DeviceError(f"{node.label} failed on the CPU: {error}") from error
        problem = wrong_results(call.op, results, call.specs)
        if problem is not None:
            raise DeviceError(f"{node.label}: {problem}")
        for value, array in zip(call.results, results, strict=True):
            env[value.id] = array
            if value.is_variable:
                np.copyto(self._run.variables[value.id], array)
        for key in call.frees:
            env.pop(key, None)
