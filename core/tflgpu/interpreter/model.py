"""`Model`: a model as a function of arrays, for code that need not look like TFLite's."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, overload

import attrs
import numpy as np
import numpy.typing as npt

from tflgpu.compiler.report import DelegationReport
from tflgpu.contract.forks import ForkWatch, OfProcess
from tflgpu.delegate import GpuDelegate
from tflgpu.errors import ArgumentError, InputError, OptionError, StateError
from tflgpu.interpreter.api import Interpreter
from tflgpu.interpreter.ports import converted, fits, listed, ports
from tflgpu.ir.brief import quoted
from tflgpu.ir.dtypes import Array
from tflgpu.options import DelegateOptions
from tflgpu.options.keywords import OptionKeywords, Self, Unpack

#: What asks for a delegate of the model's own.
_DEVICE = frozenset({"backend", "device", "saved", "progress"})


class Results(tuple[Array, ...]):  # noqa: SLOT001  (tuples cannot have slots for names)
    """Output arrays, in the model's order; by name too: ``results["scores"]``."""

    names: tuple[str, ...]

    def __new__(cls, arrays: Sequence[Array], names: Sequence[str]) -> Self:
        """Arrays and their names, one each."""
        made = super().__new__(cls, arrays)
        made.names = tuple(names)
        return made

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> Array: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[Array, ...]: ...

    def __getitem__(self, key: SupportsIndex | slice | str) -> Array | tuple[Array, ...]:
        """By position, slice or name.

        Raises:
            KeyError: there is no output of that name; lists those there are.
        """
        if isinstance(key, str):
            if key not in self.names:
                raise KeyError(f"no output is called {quoted(key)}; there are {listed(self.names)}")
            key = self.names.index(key)
        return super().__getitem__(key)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name} {array.dtype}{list(array.shape)}" for name, array in self.asdict().items()
        )
        return f"<Results: {shown}>"

    def asdict(self) -> dict[str, Array]:
        """The arrays by name."""
        return dict(zip(self.names, self, strict=True))


class Model(OfProcess):
    """A `.tflite` model that is called.

        with tflgpu.Model("mobilenet.tflite") as model:
            (scores,) = model(image)

    Like `Interpreter` it uses the best GPU there is, unless it is given a delegate or told which
    device; what a GPU does not take runs on the CPU (`report`). Threads may share it: their calls
    wait for one another. It is closed by `close`, at the end of a ``with`` statement, or with its
    last user.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        delegate: GpuDelegate | None = None,
        batch: int = 1,
        saved: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], object] | None = None,
        **options: Unpack[OptionKeywords],
    ) -> None:
        """Read a model and make it ready to run.

        Args:
            model: Path of a `.tflite` file, or what is in it.
            delegate: Runs it; it stays the caller's, and must be closed after the model.
            batch: Items that a run computes at once, of a model for one (as `Interpreter`'s). Arrays
                may have any number of items: they are run by so many, the last run filled up.
            saved: As `GpuDelegate` takes it.
            progress: As `GpuDelegate` takes it.
            options: Those of `DelegateOptions`. With ``backend``, ``device``, ``saved`` or
                ``progress`` the model has a delegate of its own, as `GpuDelegate` makes it; the
                others are for the default one.

        Raises:
            ModelError: no such file, or not a well-formed model.
            OptionError: an unknown option, or options beside a delegate.
            SavedModelError: what is saved is of another model, device or options.
            DeviceError: the backend or device asked for is not there, or failed.
            UnsupportedError: an operator that neither the device nor the CPU can run, or a batch of
                a model that does not compute items apart from one another.
        """
        own = {"saved": saved, "progress": progress}
        more = [*options, *(name for name, value in own.items() if value is not None)]
        if delegate is not None and more:
            raise OptionError(
                f"{', '.join(more)}: options are for a delegate of the model's own, and it was "
                "given one; pass them to that one"
            )
        self._lock = threading.Lock()
        self._size = batch
        self._own: GpuDelegate | None = None
        where = _source(model)
        if delegate is None and not _DEVICE.isdisjoint(more):
            self._own = delegate = GpuDelegate(saved=saved, progress=progress, **options)
        given: Any = [delegate]
        if delegate is None:
            given = DelegateOptions.gathered(options)
        try:
            self._interpreter = Interpreter(**where, experimental_delegates=given, batch=batch)
        except BaseException:
            if self._own is not None:
                self._own.close()
            raise
        self._end = weakref.finalize(self, _close, self._interpreter, self._own)
        try:
            self._interpreter.allocate_tensors()
            self._look()
        except BaseException:
            self._end()
            raise
        self._watch = ForkWatch(self, Model._renew, usable=True)

    def __repr__(self) -> str:
        inputs = ", ".join(port.described for port in self._inputs)
        return f"<Model: {inputs} -> {', '.join(port.described for port in self._outputs)}>"

    def __call__(self, *arrays: npt.ArrayLike, **named: npt.ArrayLike) -> Results:
        """Run on one array per input, by position in the model's order or by name.

        An array of another type is converted where no value changes (floats: where only digits are
        lost), but for bytes and samples (whole numbers of 8 and 16 bits) to floats. Where the model has open dimensions (-1) they become the arrays'. Where it has a
        leading dimension of 1 and arrays have N there, it is run N times (or, made with a ``batch``,
        that many fewer), and so have the results; an array with 1 there is then for each of the N.

        Raises:
            InputError: too few or too many arrays, a name that there is not, a shape or a type
                that does not fit, or a batch for a model that keeps state or mixes its batch.
            StateError: closed.
            DeviceError: the device failed.
        """
        with self._lock:
            if not self._end.alive:
                raise StateError("this model is closed")
            given = self._assigned(arrays, named)
            if self._size > 1:
                return self._run_items(given)
            count = self._batch(given)
            if count is None:
                self._fit(given)
                return Results(self._run(given), self.output_names)
            return self._run_batch(given, count)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs: those of the first signature, where there is one."""
        return tuple(port.name for port in self._inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(port.name for port in self._outputs)

    @property
    def keeps_state(self) -> bool:
        """Whether results depend on earlier calls."""
        return self._interpreter.keeps_state

    @property
    def report(self) -> DelegationReport:
        """What runs where, and why."""
        return self._interpreter.report

    def close(self) -> None:
        """Release what it holds; twice is harmless. Waits for a call that is running."""
        with self._lock:
            self._end()

    def __enter__(self) -> Self:
        """The model itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    # For a pool that gathers calls

    def _request(
        self, arrays: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[dict[int, Array], int]:
        """What a call gives, checked and converted, and of how many items it is."""
        given = self._assigned(arrays, named)
        return given, self._rows(given)

    def _together(self, parts: Sequence[Mapping[int, Array]]) -> list[Results]:
        """Results of several requests, computed in one run where they fit into one."""
        with self._lock:
            if not self._end.alive:
                raise StateError("this model is closed")
            counts = [len(part[0]) for part in parts]
            if sum(counts) > self._size or not all(counts):
                return [self._run_items(dict(part)) for part in parts]
            found = self._run_rows(parts)
            ends = np.cumsum(counts)
            return [
                Results([a[end - n : end] for a in found], self.output_names)
                for n, end in zip(counts, ends, strict=True)
            ]

    # Inside

    def _renew(self) -> None:
        """In a child: the call of another thread, which had the lock, is in the parent."""
        self._lock = threading.Lock()

    def _look(self) -> None:
        names = _signature_names(self._interpreter)
        details = self._interpreter.get_input_details
        inputs = ports(details(), names.get("inputs", {}))
        if self._size > 1:  # a run has so many items, a call any number
            inputs = (attrs.evolve(p, open_shape=(-1, *p.open_shape[1:])) for p in inputs)
        self._inputs = tuple(inputs)
        self._outputs = tuple(
            ports(self._interpreter.get_output_details(), names.get("outputs", {}))
        )

    def _assigned(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[int, Array]:
        """Arrays by position of the input."""
        if len(arrays) + len(named) != len(self._inputs) or len(arrays) > len(self._inputs):
            raise InputError(
                f"{len(arrays) + len(named)} arrays for {len(self._inputs)} inputs: "
                + ", ".join(port.described for port in self._inputs)
            )
        found: dict[int, Any] = dict(enumerate(arrays))
        for name, value in named.items():
            at = [i for i, port in enumerate(self._inputs) if name == port.name] or [
                i for i, port in enumerate(self._inputs) if name in port.aliases
            ]
            if not at:
                raise InputError(
                    f"no input is called {quoted(name)}; there are {listed(self.input_names)}"
                )
            if at[0] in found:
                raise InputError(f"input {quoted(name)} is given twice")
            found[at[0]] = value
        return {i: converted(self._inputs[i], found[i]) for i in sorted(found)}

    def _batch(self, given: Mapping[int, Array]) -> int | None:
        """How many runs arrays with a longer leading dimension ask for, None for one as it is."""
        counts = {}
        for i, array in given.items():
            port = self._inputs[i]
            if fits(array.shape, port.open_shape) or array.shape == port.shape:
                continue
            inner = port.open_shape[1:]
            if port.shape[:1] != (1,) or not array.ndim or not fits(array.shape[1:], inner):
                raise InputError(
                    f"an array of shape {list(array.shape)} for input {port.described}"
                )
            counts[i] = len(array)
        if not counts:
            return None
        if len(set(counts.values())) > 1:
            raise InputError(f"batches of different sizes: {sorted(set(counts.values()))}")
        if self._interpreter.keeps_state:
            raise InputError(
                "the model keeps state from run to run; call it for one item at a time"
            )
        mixed = [port.described for port in self._outputs if port.shape[:1] != (1,)]
        if mixed:
            raise InputError(f"output {mixed[0]} has no leading dimension of 1 to make a batch in")
        return next(iter(counts.values()))

    def _fit(self, given: Mapping[int, Array]) -> None:
        """Open dimensions become the arrays'."""
        others = {i: a.shape for i, a in given.items() if a.shape != self._inputs[i].shape}
        if not others:
            return
        try:
            for i, shape in others.items():
                self._interpreter.resize_tensor_input(self._inputs[i].index, shape)
            self._interpreter.allocate_tensors()
        except BaseException:
            # The next call finds the model as it was, and not half resized.
            for i in others:
                self._interpreter.resize_tensor_input(self._inputs[i].index, self._inputs[i].shape)
            self._interpreter.allocate_tensors()
            raise
        self._look()

    def _run(self, given: Mapping[int, Array]) -> list[Array]:
        for i, array in given.items():
            self._interpreter.set_tensor(self._inputs[i].index, array)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(port.index) for port in self._outputs]

    def _run_batch(self, given: Mapping[int, Array], count: int) -> Results:
        parts: list[list[Array]] = []
        for n in range(count):
            item = {
                i: array if array.shape == self._inputs[i].shape else array[n : n + 1]
                for i, array in given.items()
            }
            self._fit(item)
            parts.append(self._run(item))
        if not parts:
            parts = [self._nothing(given, 1)]
        return Results([np.concatenate(p) for p in zip(*parts, strict=True)], self.output_names)

    def _nothing(self, given: Mapping[int, Array], size: int) -> list[Array]:
        """Results of no items, at the shapes that ``size`` items like these would have."""
        self._fit({i: np.empty((size, *a.shape[1:]), a.dtype) for i, a in given.items()})
        return [np.empty((0, *port.shape[1:]), port.dtype) for port in self._outputs]

    def _run_items(self, given: dict[int, Array]) -> Results:
        """Runs of `_size` items each, for as many as there are."""
        total = self._rows(given)
        parts = [
            self._run_rows([{i: a[at : at + self._size] for i, a in given.items()}])
            for at in range(0, total, self._size)
        ]
        if not parts:
            parts = [self._nothing(given, self._size)]
        if len(parts) == 1:
            return Results(parts[0], self.output_names)
        return Results([np.concatenate(p) for p in zip(*parts, strict=True)], self.output_names)

    def _rows(self, given: dict[int, Array]) -> int:
        """How many items arrays are of; an array of one is repeated where others have several."""
        counts = {}
        for i, array in given.items():
            port = self._inputs[i]
            if not array.ndim or not fits(array.shape[1:], port.open_shape[1:]):
                raise InputError(
                    f"an array of shape {list(array.shape)} for input {port.described}"
                )
            counts[i] = len(array)
        several = {n for n in counts.values() if n != 1}
        if len(several) > 1:
            raise InputError(f"batches of different sizes: {sorted(several)}")
        total = several.pop() if several else 1
        for i, array in given.items():
            given[i] = np.broadcast_to(array, (total, *array.shape[1:]))
        return total

    def _run_rows(self, parts: Sequence[Mapping[int, Array]]) -> list[Array]:
        """One run of the items of all parts, at most `_size`; what is over is filled with the last."""
        total = sum(len(part[0]) for part in parts)
        self._fit(
            {i: np.broadcast_to(a[:1], (self._size, *a.shape[1:])) for i, a in parts[0].items()}
        )
        for i, port in enumerate(self._inputs):
            rows = self._interpreter.tensor(port.index)()
            at = 0
            for part in parts:
                rows[at : at + len(part[i])] = part[i]
                at += len(part[i])
            rows[at:] = rows[at - 1]
            del rows  # nobody may hold a view while the model runs
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(port.index)[:total] for port in self._outputs]


def _close(interpreter: Interpreter, delegate: GpuDelegate | None) -> None:
    interpreter.close()
    if delegate is not None:
        delegate.close()


def _source(model: Any) -> dict[str, Any]:
    if isinstance(model, (bytes, bytearray, memoryview)):
        return {"model_content": model}
    if isinstance(model, (str, os.PathLike)):
        return {"model_path": model}
    raise ArgumentError(f"a model is a path or bytes, not {type(model).__name__}")


def _signature_names(interpreter: Interpreter) -> dict[str, dict[int, str]]:
    """Of the first signature of the main subgraph: names of inputs and outputs by tensor."""
    # Indices of another subgraph's tensors would give its names to the wrong ones.
    own = [s for s in interpreter._model.signatures if s.subgraph == 0]  # noqa: SLF001
    if not own:
        return {}
    sides = {"inputs": own[0].inputs, "outputs": own[0].outputs}
    return {side: {index: n for n, index in named.items()} for side, named in sides.items()}
