"""A model of one item, run on several at once: ``Interpreter(..., batch=8)``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import attrs

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.errors.blame import listed
from tflgpu.interpreter.resizing import named
from tflgpu.ir.graph import Graph, Shape
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.passes.batch import batched
from tflgpu.tflite.build import Foreign, build_graph
from tflgpu.tflite.model_file import ModelFile, TensorInfo
from tflgpu.values import define

_LOG = logging.getLogger("tflgpu")


@define(eq=False)
class Batching:
    """The main subgraph of a model, for several items.

    The graph is always made of the file's own for one item, also after inputs were resized: what a
    constant or a folded shape says of one item then never counts for more.

    Attributes:
        model: The file.
        ops: Op definitions by name.
        foreign: Who is asked for operators that are not understood.
        count: How many items its inputs have at first.
    """

    model: ModelFile
    ops: Mapping[str, OpDef]
    foreign: Foreign
    count: int

    def graph(
        self, shapes: Mapping[int, Shape], warn: Callable[[str], object] = _LOG.warning
    ) -> Graph:
        """The graph at these shapes of its inputs, by tensor index; the others have ``count``
        items.

        Raises:
            UnsupportedError: the model does not compute items apart from one another; names the
                operator or tensor.
            ModelError: the shapes do not fit together.
        """
        info = self.model.main
        counts: dict[int, int] = {}
        single: dict[int, Shape] = {}
        for i in info.inputs:
            tensor = info.tensors[i]
            if tensor.shape[:1] != (1,):
                raise UnsupportedError(
                    f"{self._what}: input {named(tensor)} has the shape {listed(tensor.shape)}, "
                    "without a leading dimension of 1"
                )
            shape = shapes.get(i, (self.count, *tensor.shape[1:]))
            if not shape or shape[0] < 1:
                raise ModelError(
                    f"{named(tensor)} has the shape {listed(shape)}; with batch={self.count} its "
                    "leading dimension is the number of items, from 1"
                )
            counts[i] = shape[0]
            if (1, *shape[1:]) != tensor.shape:
                single[i] = (1, *shape[1:])
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{named(info.tensors[i])}: {n}" for i, n in counts.items())
            raise ModelError(f"inputs have different numbers of items: {said}")
        one = build_graph(self.model, 0, self.ops, single, warn, self.foreign)
        made = batched(one, next(iter(counts.values()), self.count), self.ops)
        if isinstance(made, Unsupported):
            raise UnsupportedError(f"{self._what}: {made.reason}. Run its items one by one")
        return made

    def view(self) -> ModelFile:
        """The file as if it had been written for so many items, for what is told of its tensors.

        Raises:
            UnsupportedError, ModelError: as `graph`.
        """
        values = self.graph({}).values
        main = self.model.main

        def wide(tensor: TensorInfo) -> TensorInfo:
            value = values.get(tensor.index)
            if value is None or value.is_const or value.shape == tensor.shape:
                return tensor
            # Where the file leaves the leading size open, it is now the number of items.
            signature = (value.shape[0], *tensor.shape_signature[1:])
            return attrs.evolve(tensor, shape=value.shape, shape_signature=signature)

        tensors = tuple(map(wide, main.tensors))
        subgraphs = (attrs.evolve(main.whole, tensors=tensors), *self.model.subgraphs[1:])
        return attrs.evolve(self.model.whole, subgraphs=subgraphs)

    @property
    def _what(self) -> str:
        return f"batch={self.count} is not possible with this model"
