"""The subgraphs that operators run, taken along into a model of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.brief import clipped
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.bodies import subgraphs_of
from tflgpu.tflite.model_file import SubgraphInfo
from tflgpu.tflite.spec import OperatorSpec, SubgraphSpec, subgraph_spec

#: Tensors by which a subgraph has a state that outlasts its run.
_HANDLES = frozenset({DType.RESOURCE, DType.VARIANT})


class Bodies:
    """Subgraphs of a new model, from number 1 on, by what they were in the old one."""

    def __init__(self) -> None:
        self.specs: list[SubgraphSpec] = []
        self._places: dict[int, int] = {}

    def take(
        self, fields: Mapping[str, Any], model: Sequence[SubgraphInfo], inside: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """Options whose subgraphs are taken along, with the numbers that these have now.

        Args:
            fields: An operator's options.
            model: The old model's subgraphs.
            inside: Those that the operator is in.

        Raises:
            UnsupportedError: one of them runs itself, has a state, or cannot be written again.
        """
        told = dict(fields)
        for name, numbers in subgraphs_of(fields).items():
            places = tuple(self._place(n, model, inside) for n in numbers)
            told[name] = places if isinstance(fields[name], tuple) else places[0]
        return told

    def _place(self, number: int, model: Sequence[SubgraphInfo], inside: tuple[int, ...]) -> int:
        if number in inside:
            raise UnsupportedError(f"subgraph {number} runs itself")
        if number not in self._places:
            spec = self._spec(number, model, (*inside, number))
            self.specs.append(spec)
            self._places[number] = len(self.specs)
        return self._places[number]

    def _spec(
        self, number: int, model: Sequence[SubgraphInfo], inside: tuple[int, ...]
    ) -> SubgraphSpec:
        info = model[number]
        for tensor in info.tensors:
            if tensor.is_variable or tensor.dtype in _HANDLES:
                raise UnsupportedError(f"tensor {tensor.index} of subgraph {number} is a state")
        for operator in info.operators:
            if operator.gap or operator.intermediates:
                raise UnsupportedError(
                    f"operator {operator.index} ({clipped(operator.name)}) of subgraph {number} "
                    f"cannot be written again: {operator.gap or 'it has intermediate tensors'}"
                )
        try:
            spec = subgraph_spec(info)
        except ModelError as error:
            raise UnsupportedError(str(error)) from error
        operators: list[OperatorSpec] = [
            attrs.evolve(o, fields=self.take(o.fields, model, inside)) for o in spec.operators
        ]
        return attrs.evolve(spec, operators=operators)
