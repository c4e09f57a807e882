"""An operator whose results have shapes that depend on its operands' contents.

Where these are a few whole numbers (the paddings of PAD, the multiples of TILE), the rest of the
subgraph is compiled for them, as if the file had them. Otherwise, and where they are never the same
twice, the operator runs on the host, and what follows is compiled for the shapes that came out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import (
    DeviceError,
    DynamicError,
    ModelError,
    TflgpuError,
    UnsupportedError,
)
from tflgpu.flow.cut import Known
from tflgpu.ir.budget import check_size
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Node
from tflgpu.ops.base import Fields, OpDef, Operand
from tflgpu.ops.foreign import wrong_results
from tflgpu.ops.unknown import UnknownOp
from tflgpu.runtime.session import Session
from tflgpu.tflite.build import build_subgraph
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo
from tflgpu.tflite.tensor_fields import tensor_fields

#: The most elements of an operand that shapes are compiled for.
_FEW = 64
_FAILURES = (ArithmeticError, ValueError, TypeError, LookupError, MemoryError)


@attrs.frozen(eq=False)
class Dynamic:
    """One such operator.

    Attributes:
        node: As it was built.
        operator: As the file has it.
        info: The subgraph.
        ops: Op definitions by name.
        open_plain: Opens a session on the CPU.
        few: Operands that are few whole numbers and not constants, by position.
    """

    node: Node
    operator: OperatorInfo
    info: SubgraphInfo
    ops: Mapping[str, OpDef]
    open_plain: Callable[[Graph], Session]
    few: tuple[int, ...]

    @classmethod
    def of(
        cls,
        node: Node,
        info: SubgraphInfo,
        ops: Mapping[str, OpDef],
        open_plain: Callable[[Graph], Session],
    ) -> Dynamic:
        """Look at a node of one operator."""
        few = tuple(
            i
            for i, v in enumerate(node.inputs)
            if v is not None
            and v.contents is None
            and v.dtype.is_int
            and v.quant is None
            and v.elements <= _FEW
        )
        # What only the CPU side's kernels run is compiled for whatever numbers there are.
        others = node.op not in ops or any(
            v is not None and v.contents is None for i, v in enumerate(node.inputs) if i not in few
        )
        # By its number: a subgraph from which operators were taken out has gaps.
        (operator,) = (o for o in info.operators if o.index == node.origins[0])
        return cls(node, operator, info, ops, open_plain, few if others else ())

    def key(self, env: dict[int, Any], *, can_promote: bool) -> Any:
        """The values that the rest of the plan depends on: the operands' contents, or the results
        after a run. Where that is not the contents of operands, the operator runs.

        Raises:
            ModelError: it does not work out.
            DeviceError: it failed.
            UnsupportedError: nothing that could be told says what the results' shapes are.
        """
        if self.operator.name not in self.ops:
            if any(self.operator.fields.get(seed) for seed in ("seed", "seed2")):
                raise UnsupportedError(
                    f"{self._where}: what is drawn by fixed seeds goes on from run to run, and "
                    "here its shape may change from one to the next; make its shape a constant, "
                    "or both seeds 0"
                )
            if self.few:
                return tuple(env[self._id(i)].tobytes() for i in self.few)
            assert isinstance(self.node.attrs, UnknownOp)
            raise UnsupportedError(f"{self._where}: {self.node.attrs.reason}")
        if self.few and can_promote and self._is_enough(env):
            return tuple(env[self._id(i)].tobytes() for i in self.few)
        results = self._evaluate(env)
        env.update(zip(self.operator.outputs, results, strict=True))
        return tuple(r.shape for r in results)

    def tell(self, known: Known, env: dict[int, Any]) -> bool:
        """What is known now, after `key`. Gives whether the operator ran."""
        if self.operator.outputs[0] not in env:
            for i in self.few:
                kept = np.array(env[self._id(i)])
                kept.setflags(write=False)
                known.constants[self._id(i)] = kept
            return False
        known.done.add(self.operator.index)
        for i in self.operator.outputs:
            known.shapes[i] = env[i].shape
        return True

    # Inside

    def _id(self, position: int) -> int:
        return self.operator.inputs[position]

    @property
    def _where(self) -> str:
        return f"operator {self.operator.index} ({self.operator.name})"

    def _parsed(self) -> tuple[OpDef, Any]:
        definition = self.ops[self.operator.name]
        values = {**self.operator.fields, **tensor_fields(self.node)}
        fields = Fields(self.operator.name, values, self.operator.custom_options)
        attributes = definition.parse(fields)
        if definition.file.at_run_time is not None:
            attributes = definition.file.at_run_time(attributes)
        return definition, attributes

    def _operands(self, env: dict[int, Any], contents: tuple[int, ...]) -> list[Operand | None]:
        found: list[Operand | None] = []
        for i, value in enumerate(self.node.inputs):
            if value is None:
                found.append(None)
            else:
                data = env[value.id] if i in contents and value.contents is None else value.data
                found.append(Operand(value.spec, data))
        return found

    def _is_enough(self, env: dict[int, Any]) -> bool:
        """Whether the few numbers say the results' shapes."""
        try:
            definition, attributes = self._parsed()
            definition.infer(attributes, self._operands(env, self.few))
        except DynamicError:
            return False
        except ModelError:
            return True  # which planning will say with the operator's name
        except _FAILURES:
            return False
        return True

    def _evaluate(self, env: dict[int, Any]) -> list[Array]:
        values = [v for v in (*self.node.inputs, *self.node.outputs) if v is not None]
        if any(v.quant is not None for v in values):
            return self._by_session(env)
        try:
            definition, attributes = self._parsed()
            every = tuple(range(len(self.node.inputs)))
            operands = self._operands(env, every)
            specs = definition.infer(attributes, operands)
            if len(specs) != len(self.operator.outputs):
                made = len(self.operator.outputs)
                raise ModelError(f"makes {len(specs)} tensors, but the file gives it {made}")
            for spec in specs:
                check_size(spec.shape, spec.dtype, "its result")
            with np.errstate(all="ignore"):
                arrays = [None if o is None else o.data for o in operands]
                results = definition.reference(attributes, arrays)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self._where}: {error}") from error
        except TflgpuError as error:
            raise ModelError(f"{self._where}: {error}") from error
        except _FAILURES as error:
            raise DeviceError(f"{self._where}: {type(error).__name__}: {error}") from error
        problem = wrong_results(definition, results, specs)
        if problem is not None:
            raise DeviceError(f"{self._where}: {problem}")
        return [
            np.ascontiguousarray(r).reshape(s.shape) for r, s in zip(results, specs, strict=True)
        ]

    def _by_session(self, env: dict[int, Any]) -> list[Array]:
        """Of quantized tensors, whose scales references do not see: as a model of one operator."""
        tensors = list(self.info.tensors)
        for i in dict.fromkeys(i for i in self.operator.inputs if i >= 0):
            if i in env:
                data = env[i]
                tensors[i] = attrs.evolve(
                    tensors[i], shape=data.shape, shape_signature=data.shape, data=data
                )
        alone = SubgraphInfo(
            self.info.name, tuple(tensors), (), self.operator.outputs, (self.operator,)
        )
        graph = build_subgraph(alone, self.ops, None, lambda _: None)
        with closing(self.open_plain(graph)) as session:
            session.run()
            return [np.array(session.arrays[i]) for i in self.operator.outputs]
