"""Operators on texts (strings), which the host runs by their references between compiled pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import (
    DeviceError,
    DynamicError,
    InputError,
    ModelError,
    TflgpuError,
    UnsupportedError,
)
from tflgpu.flow.cut import Known
from tflgpu.flow.program import FlowContext
from tflgpu.flow.steps import Env, Told
from tflgpu.ir.budget import check_size
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import Fields, OpDef, Operand
from tflgpu.ops.foreign import wrong_results
from tflgpu.ops.skip_gram import SKIP_GRAM
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo, TensorInfo

#: Operators of texts alone, which no graph has.
_ONLY = {SKIP_GRAM.name: SKIP_GRAM}
_FAILURES = (ArithmeticError, ValueError, TypeError, LookupError, MemoryError)


@attrs.frozen(eq=False)
class OnTexts:
    """One such operator.

    Attributes:
        where: How messages name it.
        definition: What it means.
        attributes: Its options.
        operator: As the file has it.
        tensors: Those of its subgraph.
        results: Shapes of its results; None for those that only a run tells.
    """

    where: str
    definition: OpDef
    attributes: Any
    operator: OperatorInfo
    tensors: Sequence[TensorInfo]
    results: tuple[Told, ...]

    def __call__(self, env: Env) -> None:
        """Compute its results."""
        for i, array in zip(
            self.operator.outputs, self.compute([env[i] for i in self.operator.inputs]), strict=True
        ):
            env[i] = array

    def specs(self, operands: Sequence[Operand | None]) -> list[TensorSpec]:
        """What its results are.

        Raises:
            ModelError: its operands do not go together.
            DynamicError: that depends on contents which are not given.
        """
        found = self.definition.infer(self.attributes, operands)
        given = [self.tensors[i].dtype for i in self.operator.outputs]
        if [s.dtype for s in found] != given:
            made, wanted = (
                ", ".join(d.value for d in t) for t in ([s.dtype for s in found], given)
            )
            raise ModelError(
                f"makes {made or 'nothing'}, but the file gives it {wanted or 'nothing'}"
            )
        for spec in found:
            check_size(spec.shape, spec.dtype, "its result")
        return found

    def compute(self, arrays: Sequence[Array]) -> list[Array]:
        """Its results.

        Raises:
            ModelError, UnsupportedError: it does not work out.
            InputError: an index that is in an operand is outside.
            DeviceError: its reference failed.
        """
        try:
            specs = self._specs_of(arrays)
            with np.errstate(all="ignore"):
                results = self.definition.reference(self.attributes, arrays)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.where}: {error}") from error
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from error
        except TflgpuError as error:
            raise ModelError(f"{self.where}: {error}") from error
        except _FAILURES as error:
            raise DeviceError(f"{self.where}: {type(error).__name__}: {error}") from error
        problem = wrong_results(self.definition, results, specs)
        if problem is not None:
            raise DeviceError(f"{self.where}: {problem}")
        return list(results)

    def _specs_of(self, arrays: Sequence[Array]) -> list[TensorSpec]:
        """What its results are; contents are looked at only where these depend on them, since what
        is wrong with them otherwise is the reference's to say."""
        operands = [self._operand(i, a) for i, a in enumerate(arrays)]
        try:
            return self.specs([Operand(o.spec) for o in operands])
        except DynamicError:
            return self.specs(operands)

    def _operand(self, position: int, array: Array) -> Operand:
        dtype = self.tensors[self.operator.inputs[position]].dtype
        return Operand(TensorSpec(array.shape, dtype), array)


def plan_texts(
    shared: FlowContext,
    known: Known,
    operator: OperatorInfo,
    info: SubgraphInfo,
    given: Sequence[Told],
) -> OnTexts:
    """An operator whose operands' shapes are known, as a step.

    Raises:
        ModelError: it does not work out at these shapes.
        UnsupportedError: it does not take texts.
    """
    where = f"operator {operator.index} ({operator.name})"
    definition = _ONLY.get(operator.name) or shared.ops.get(operator.name)
    if operator.is_custom and (definition is None or not definition.is_custom):
        raise UnsupportedError(
            f"{where} is a custom op that is not defined; a plugin can define it, by an OpDef with "
            "texts=True"
        )
    if definition is None or not definition.contents.texts:
        raise UnsupportedError(f"{where} does not take texts (strings) here")
    if operator.version > definition.file.max_version:
        raise UnsupportedError(
            f"{where} has version {operator.version}, newer than {definition.file.max_version}, "
            "the newest understood"
        )
    operands: list[Operand | None] = []
    for i, shape in zip(operator.inputs, given, strict=True):
        tensor = info.tensors[i]
        if not isinstance(shape, tuple):
            raise ModelError(f"{where} takes {shape}, where a tensor belongs")
        operands.append(
            Operand(TensorSpec(shape, tensor.dtype), known.constants.get(i, tensor.data))
        )
    try:
        attributes = definition.parse(
            Fields(operator.name, operator.fields, operator.custom_options)
        )
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    step = OnTexts(where, definition, attributes, operator, info.tensors, ())
    try:
        specs = step.specs(operands)
    except DynamicError:
        return attrs.evolve(step, results=(None,) * len(operator.outputs))
    except UnsupportedError as error:
        raise UnsupportedError(f"{where}: {error}") from error
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    if definition.contents.shape_only:  # what follows may be compiled for what it gives
        blank = [o.dtype.blank(()) for o in operands if o is not None]
        wide = [np.broadcast_to(b, o.shape) for b, o in zip(blank, operands, strict=True) if o]
        made = step.compute(wide)
        known.constants.update(zip(operator.outputs, made, strict=True))
    return attrs.evolve(step, results=tuple(s.shape for s in specs))
