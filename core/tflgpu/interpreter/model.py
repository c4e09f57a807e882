"""`Model`: a model as a function of arrays, for code that need not look like TFLite's."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

import attrs
import numpy as np
import numpy.typing as npt

from tflgpu.backend_kit.forks import OfProcess
from tflgpu.backend_kit.run_guard import Closable, RunGuard
from tflgpu.compiler.report import DelegationReport
from tflgpu.contract.pending import Pending
from tflgpu.errors import ArgumentError, InputError, OptionError
from tflgpu.errors.blame import quoted
from tflgpu.interpreter.api import Interpreter
from tflgpu.interpreter.copies import copy
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.interpreter.named_tensors import NamedTensor, converted, fits, listed, named_tensors
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape
from tflgpu.options import DelegateOptions
from tflgpu.options.keywords import OptionKeywords, Unpack

#: What asks for a delegate of the model's own.
DEVICE_OPTIONS = frozenset({"backend", "device", "saved", "progress"})


class Results(tuple[Array, ...]):  # noqa: SLOT001  (tuples cannot have slots for names)
    """Output arrays, in the model's order; by name too: ``results["scores"]``."""

    names: tuple[str, ...]

    def __new__(cls, arrays: Sequence[Array], names: Sequence[str]) -> Results:
        """Arrays and their names, one each."""
        made = tuple.__new__(cls, arrays)
        made.names = tuple(names)
        return made

    def __getnewargs__(self) -> tuple[tuple[Array, ...], tuple[str, ...]]:
        """For pickles and copies, which hand them to `__new__`."""
        return tuple(self), self.names

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
        shown = [f"{name} {a.dtype}{list(a.shape)}" for name, a in self.asdict().items()]
        return f"<Results: {', '.join(shown)}>"

    def asdict(self) -> dict[str, Array]:
        """The arrays by name."""
        return dict(zip(self.names, self, strict=True))


class Model(Closable, OfProcess):
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
            batch: Items that a run computes at once, of a model for one (as `Interpreter`'s).
                Arrays may have any number of items: they are run by so many, the last run filled
                up.
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
        self._guard = RunGuard("this model")
        self._size = batch
        self._is_filled = False  # whether all rows of its inputs went through a run
        self._own: GpuDelegate | None = None
        where = _source(model)
        if delegate is None and not DEVICE_OPTIONS.isdisjoint(more):
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

    def __repr__(self) -> str:
        inputs = ", ".join(port.described for port in self._inputs)
        return f"<Model: {inputs} -> {', '.join(port.described for port in self._outputs)}>"

    def __call__(self, *arrays: npt.ArrayLike, **named: npt.ArrayLike) -> Results:
        """Run on one array per input, by position in the model's order or by name.

        An array of another type is converted where no value changes (floats: where only digits are
        lost), but for bytes and samples (whole numbers of 8 and 16 bits) to floats. Where the model
        has open dimensions (-1) they become the arrays'. Where it has a leading dimension of 1 and
        arrays have N there, it is run N times (or, made with a ``batch``, that many fewer), and so
        have the results; an array with 1 there is then for each of the N.

        Raises:
            InputError: too few or too many arrays, a name that there is not, a shape or a type
                that does not fit, or a batch for a model that keeps state or mixes its batch.
            StateError: closed, or called from inside its own call.
            DeviceError: the device failed.
        """
        with self._guard.call:
            given = self._assigned(arrays, named)
            with self._guard:
                if self._size > 1:
                    return self._run_items(given)
                if [array.shape for array in given] != self._shapes:
                    count = self._batch(given)
                    if count is not None:
                        return self._run_batch(given, count)
                    self._fit(given)
                return Results(self._run(given), self._names)

    @property
    def inputs(self) -> tuple[NamedTensor, ...]:
        """The inputs: name, type and shape of each, as of the last call. In its ``open_shape`` -1
        is a dimension of any size; with a ``batch`` the first is."""
        return self._inputs

    @property
    def outputs(self) -> tuple[NamedTensor, ...]:
        """The outputs, likewise."""
        return self._outputs

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs: those of the first signature, where there is one."""
        return tuple(port.name for port in self._inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._names

    @property
    def keeps_state(self) -> bool:
        """Whether results depend on earlier calls."""
        return self._interpreter.keeps_state

    @property
    def report(self) -> DelegationReport:
        """Which operators run where, and why."""
        return self._interpreter.report

    # For a pool

    @property
    def _gave_way(self) -> bool:
        """Whether the CPU took over from the device, after a run that failed."""
        return self._interpreter._opener.gave_way  # noqa: SLF001

    def _request(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Array], int]:
        """What a call gives, checked and converted, and of how many items it is."""
        given = self._assigned(arrays, named)
        items = self._rows(given)
        return given, items

    def _input_rows(self, shapes: Sequence[Shape]) -> list[Array] | None:
        """Where a run of items of these shapes reads its inputs, to be written to and not to be
        read; None where the run has to see to it."""
        ports = self._inputs
        if any(p.shape[1:] != s or p.dtype.kind == "S" for p, s in zip(ports, shapes, strict=True)):
            return None
        return [self._interpreter._input_array(port.index) for port in ports]  # noqa: SLF001

    def _together(self, parts: Sequence[Sequence[Array]], placed: Sequence[bool]) -> list[Array]:
        """Results of several requests of at most `_size` items, computed in one run. The rows of
        those that are ``placed`` are in `_input_rows`."""
        with self._guard:
            return self._run_rows(parts, placed)

    def _begin(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Pending | None:
        """Begin a call, to be ended by `_finish`; None where `__call__` has to make it."""
        with self._guard:
            given = self._assigned(arrays, named)
            if self._size > 1 or self._batch(given) is not None:
                return None
            self._fit(given)
            self._set(given)
            with self._interpreter._busy:  # noqa: SLF001
                return self._interpreter._main.begin()  # noqa: SLF001

    def _finish(self, pending: Pending) -> Results:
        with self._guard:
            with self._interpreter._busy:  # noqa: SLF001
                self._interpreter._main.finish(pending, None)  # noqa: SLF001
            return Results(self._get(), self._names)

    # Inside

    def _close(self) -> None:
        self._guard.close(self._end)

    def _look(self) -> None:
        names = _signature_names(self._interpreter)
        details = self._interpreter.get_input_details
        inputs = named_tensors(details(), names.get("inputs", {}))
        details = self._interpreter.get_output_details
        outputs = named_tensors(details(), names.get("outputs", {}))
        if self._size > 1:  # a run has so many items, a call any number
            inputs, outputs = map(_of_any_number, (inputs, outputs))
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._shapes = [port.shape for port in self._inputs]
        self._names = tuple(port.name for port in self._outputs)

    def _assigned(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
        """An array for each input."""
        if len(arrays) + len(named) != len(self._inputs) or len(arrays) > len(self._inputs):
            raise InputError(
                f"{len(arrays) + len(named)} arrays for {len(self._inputs)} inputs: "
                + ", ".join(port.described for port in self._inputs)
            )
        if not named:
            return list(map(converted, self._inputs, arrays))
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
        return [converted(port, found[i]) for i, port in enumerate(self._inputs)]

    def _batch(self, given: Sequence[Array]) -> int | None:
        """How many runs arrays with a longer leading dimension ask for, None for one as it is."""
        counts = {}
        for i, (port, array) in enumerate(zip(self._inputs, given, strict=True)):
            if array.shape == port.shape or fits(array.shape, port.open_shape):
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

    def _fit(self, given: Sequence[Array]) -> None:
        """Open dimensions become the arrays'."""
        others = {i: a.shape for i, a in enumerate(given) if a.shape != self._shapes[i]}
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

    def _set(self, given: Sequence[Array]) -> None:
        for port, array in zip(self._inputs, given, strict=True):
            self._interpreter.set_tensor(port.index, array)

    def _get(self) -> list[Array]:
        return [self._interpreter.get_tensor(port.index) for port in self._outputs]

    def _run(self, given: Sequence[Array]) -> list[Array]:
        self._set(given)
        self._interpreter.invoke()
        return self._get()

    def _run_batch(self, given: Sequence[Array], count: int) -> Results:
        parts: list[list[Array]] = []
        for n in range(count):
            item = [
                array if array.shape == port.shape else array[n : n + 1]
                for port, array in zip(self._inputs, given, strict=True)
            ]
            self._fit(item)
            parts.append(self._run(item))
        return self._joined(parts, given)

    def _joined(self, parts: list[list[Array]], given: Sequence[Array]) -> Results:
        """Results of several runs; of none, at the shapes that a run of items like these has."""
        if not parts:
            self._fit([np.empty((self._size, *a.shape[1:]), a.dtype) for a in given])
            parts = [[np.empty((0, *port.shape[1:]), port.dtype) for port in self._outputs]]
        several = len(parts) > 1
        found = [np.concatenate(p) for p in zip(*parts, strict=True)] if several else parts[0]
        return Results(found, self._names)

    def _run_items(self, given: list[Array]) -> Results:
        """Runs of `_size` items each, for as many as there are."""
        total = self._rows(given)
        parts = [
            self._run_rows([[a[at : at + self._size] for a in given]], [False])
            for at in range(0, total, self._size)
        ]
        return self._joined(parts, given)

    def _rows(self, given: list[Array]) -> int:
        """How many items arrays are of; an array of one is repeated where others have several."""
        counts = {}
        for i, (port, array) in enumerate(zip(self._inputs, given, strict=True)):
            if not array.ndim or not fits(array.shape[1:], port.open_shape[1:]):
                raise InputError(
                    f"an array of shape {list(array.shape)} for input {port.described}"
                )
            counts[i] = len(array)
        several = {n for n in counts.values() if n != 1}
        if len(several) > 1:
            raise InputError(f"batches of different sizes: {sorted(several)}")
        total = several.pop() if several else 1
        for i, array in enumerate(given):
            if len(array) != total:
                given[i] = np.broadcast_to(array, (total, *array.shape[1:]))
        return total

    def _run_rows(self, parts: Sequence[Sequence[Array]], placed: Sequence[bool]) -> list[Array]:
        """One run of the items of all parts, at most `_size`; those that are ``placed`` are there.

        Rows beyond them keep what an earlier run computed without complaint; where there was none,
        the last item stands there. It comes from its caller's array: what was written for a device
        may be read at a hundredth of the speed.
        """
        wanted = [(self._size, *array.shape[1:]) for array in parts[0]]
        if wanted != [port.shape for port in self._inputs]:
            self._is_filled = False
            self._fit([np.broadcast_to(a[:1], s) for a, s in zip(parts[0], wanted, strict=True)])
        is_filled, self._is_filled = self._is_filled, False
        for i, port in enumerate(self._inputs):
            rows = self._interpreter._input_array(port.index)  # noqa: SLF001
            at = 0
            for part, is_there in zip(parts, placed, strict=True):
                end = at + len(part[i])
                if not is_there:
                    copy(rows[at:end], part[i])
                at = end
            if not is_filled:
                rows[at:] = parts[-1][i][-1:]
        self._interpreter.invoke()
        self._is_filled = True
        return [array[:at] for array in self._get()]


def _of_any_number(tensors: Iterator[NamedTensor]) -> Iterator[NamedTensor]:
    return (attrs.evolve(p, open_shape=(-1, *p.open_shape[1:])) for p in tensors)


def _close(interpreter: Interpreter, delegate: GpuDelegate | None) -> None:
    interpreter._close()  # noqa: SLF001
    if delegate is not None:
        delegate._close()  # noqa: SLF001


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
