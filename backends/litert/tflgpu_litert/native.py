"""LiteRT's interpreter, opened on a small model: the one place that knows its Python API."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import numpy as np
from ai_edge_litert.interpreter import Interpreter, InterpreterWithCustomOps
from ai_edge_litert.interpreter import OpResolverType as LiteRTResolver
from tflgpu.errors import OptionError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph
from tflgpu.options import OpResolverType
from tflgpu.tflite.cut import SmallModel, small_model

# Of "Node number 3 (RESHAPE) failed to prepare." Delegates' nodes come behind those of the model.
_NODE = re.compile(r"Node number (\d+) \(")
_LONGEST = 240
#: What its functions raise.
ERRORS = (ValueError, RuntimeError, TypeError, MemoryError)
_XNNPACK = frozenset({OpResolverType.AUTO, OpResolverType.BUILTIN})


@attrs.frozen
class Settings:
    """How LiteRT is to run.

    Attributes:
        threads: Of its kernels; None = LiteRT's default, which is one.
        resolver: Which kernels it takes.
        registerers: Of custom operators, as its `InterpreterWithCustomOps` takes them.
    """

    threads: int | None = None
    resolver: OpResolverType = OpResolverType.AUTO
    registerers: tuple[Any, ...] = ()

    @property
    def plain(self) -> Settings:
        """The same without XNNPACK, where that is used."""
        if self.resolver not in _XNNPACK:
            return self
        return attrs.evolve(self, resolver=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)


class LiteRTError(Exception):
    """LiteRT refused or failed; the text is one line of what it says."""


class Lease:
    """The base of an array over a tensor's memory. It holds LiteRT's interpreter, and not what that
    counts the holders of."""

    def __init__(self, array: Array, interpreter: Any) -> None:
        self.__array_interface__ = array.__array_interface__
        self.interpreter = interpreter


@attrs.frozen(eq=False)
class Opened:
    """A model that LiteRT can run.

    Attributes:
        interpreter: LiteRT's; its memory lives as long as it does.
        model: What it was opened on.
    """

    interpreter: Any
    model: SmallModel

    def view(self, value_id: int) -> Callable[[], Array]:
        """A function that gives a tensor's memory. The caller must drop it before the next run,
        which LiteRT refuses while a view is alive."""
        found: Callable[[], Array] = self.interpreter.tensor(self.model.tensors[value_id])
        return found

    def setter(self, value_id: int) -> Callable[[Array], None]:
        """A function that copies an array of its shape and type into a tensor."""
        view = self.view(value_id)
        if not self.shape(value_id):  # a view of a scalar is none, but a number
            return partial(self.interpreter.set_tensor, self.model.tensors[value_id])

        def write(array: Array) -> None:
            view()[...] = array

        return write

    def shape(self, value_id: int) -> tuple[int, ...] | None:
        """A tensor's shape; None where only a run will tell (LiteRT has no memory for it yet).

        Raises:
            LiteRTError: there is no such tensor.
        """
        try:
            return tuple(int(d) for d in self.view(value_id)().shape)
        except ValueError as error:
            if "null" in str(error):
                return None
            raise LiteRTError(_line(error)) from error

    def home(self, value_id: int, array: Array, *, is_result: bool = False) -> Array:
        """A tensor's memory, with what is in ``array``; or that array, where it is not alike.
        LiteRT's memory stays where it is where it is known beforehand of all results. What is in a
        result's stays too: of constants it was computed when LiteRT was prepared (RANGE)."""
        # A view of a scalar is a number; and what is another tensor's memory stays that.
        if not array.size or not array.ndim or isinstance(array.base, Lease):
            return array
        view = self.view(value_id)()
        if view.dtype != array.dtype or not view.flags.c_contiguous:
            return array
        found = np.asarray(Lease(view, self.interpreter))
        if not is_result:
            found[...] = array
        return found

    def has(self, array: Array) -> bool:
        """Whether an array is a tensor's memory."""
        return isinstance(array.base, Lease) and array.base.interpreter is self.interpreter

    def named(self, error: BaseException) -> str:
        """What LiteRT says of a run that failed, and of which operator."""
        return _named(self.model, error)


def open_model(model: SmallModel, settings: Settings) -> Opened:
    """Open a small model and allocate its tensors.

    XNNPACK refuses some models for which LiteRT has kernels; those run without it.

    Raises:
        LiteRTError: LiteRT does not take it; names the node where LiteRT does.
    """
    try:
        return _opened(model, settings)
    except ERRORS as error:
        if settings.plain == settings:
            raise LiteRTError(_named(model, error)) from error
    try:
        return _opened(model, settings.plain)
    except ERRORS as error:
        raise LiteRTError(_named(model, error)) from error


def _opened(model: SmallModel, settings: Settings) -> Opened:
    make = partial(InterpreterWithCustomOps, settings.registerers)
    interpreter = (make if settings.registerers else Interpreter)(
        model_content=model.content,
        num_threads=settings.threads,
        experimental_op_resolver_type=LiteRTResolver[settings.resolver.name],
    )
    interpreter.allocate_tensors()
    return Opened(interpreter, model)


def try_registerers(settings: Settings) -> None:
    """Call registerers once, as making LiteRT's interpreter does.

    Raises:
        OptionError: LiteRT does not find one of them, or one of them raises.
    """
    x = Graph("nothing").add_value((1,), DType.F32)
    nothing = small_model([], [x], [x], {})
    assert isinstance(nothing, SmallModel)
    try:
        InterpreterWithCustomOps(settings.registerers, model_content=nothing.content)
    except Exception as error:  # whatever a registerer in Python raises
        raise OptionError(f"{type(error).__name__}: {_line(error)}") from error


def _named(model: SmallModel, error: BaseException) -> str:
    found = _NODE.search(str(error))
    index = len(model.owners) if found is None else int(found.group(1))
    if index >= len(model.owners):
        return _line(error)
    return f"{model.owners[index].label}: {_line(error)}"


def _line(error: BaseException) -> str:
    """What LiteRT says, less its advice to read on elsewhere."""
    text = re.sub(r"See instructions: \S+", "", str(error))
    text = _NODE.sub("operator (", re.sub(r"Are you using .*\?|Registration failed\.", "", text))
    text = " ".join(text.split()) or type(error).__name__
    # It has names as the file gives them, however long.
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
