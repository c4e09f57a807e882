"""Nodes that LiteRT runs: one call into it a run, and a copy of each tensor at the edge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from tflgpu.backend_kit.forks import Holder, immortal
from tflgpu.backend_kit.node_recording import BaseNodeRecording
from tflgpu.contract.device import NodeRun
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Value
from tflgpu.lowering.reason import Unsupported
from tflgpu.tflite.cut import small_model

from tflgpu_litert.native import ERRORS, LiteRTError, Opened, Settings, open_model
from tflgpu_litert.newer import repack
from tflgpu_litert.quirks import as_written
from tflgpu_litert.shapes import told_late


class LiteRTRecording(BaseNodeRecording, Holder):
    """A `Recording` of LiteRT's kernels.

    Inputs and outputs are LiteRT's own memory, where that stays, and else arrays that are copied.
    State tensors live in the run's ``variables`` and are taken to LiteRT and back, so that others
    may read, set and reset them.
    """

    copies = (0, 0)  # it computes in host memory

    kind = "LiteRT"

    def __init__(self, run: NodeRun, settings: Settings) -> None:
        """Write the nodes as a model and open it.

        Raises:
            DeviceError: they cannot be written, or LiteRT does not take them; names the node.
        """
        super().__init__(run)
        self._run_of = run
        self._settings = settings
        self._opened: Opened | None = None
        #: A run: LiteRT's, between copies from the arrays that are tensors' homes here and back.
        #: Empty where it has to be asked about first.
        self._steps: list[Callable[[], None]] = []
        self._open(is_first=True)
        self.belongs_to_process()

    def _open(self, *, is_first: bool = False) -> None:
        run = self._run_of
        model = small_model([*map(as_written, run.nodes)], run.inputs, run.outputs, run.ops, repack)
        if isinstance(model, Unsupported):
            raise DeviceError(f"LiteRT cannot be given these nodes: {model.reason}")
        try:
            opened = open_model(model, self._settings)
            made = {v.name: (opened.shape(v.id), v.shape) for v in run.outputs}
        except LiteRTError as error:
            raise DeviceError(f"LiteRT does not take these nodes: {error}") from error
        # A run is held against the shapes that only it tells.
        late = any(shape is not None for node in run.nodes for shape in told_late(node))
        for name, (shape, wanted) in made.items():
            if shape != wanted and not (late and shape is None):
                raise DeviceError(f"LiteRT makes {name} of shape {shape}, not {wanted}")
        variables = [v.id for n in run.nodes for v in n.inputs if v is not None and v.is_variable]
        own = {i: run.variables[i] for i in variables}
        if is_first and all(shape is not None for shape, _ in made.values()):
            given = {v.id for v in run.inputs}
            self._inputs = _homes(opened, run.inputs, self._inputs)
            self._outputs = _homes(opened, run.outputs, self._outputs, given, is_result=True)
            own = {i: opened.home(i, array) for i, array in own.items()}
            run.variables.update(own)
        fed = [(v.id, array) for v, array in zip(run.inputs, self._inputs, strict=True)]
        fetched = [(v.id, array) for v, array in zip(run.outputs, self._outputs, strict=True)]
        # Tensors without elements have nothing to move, and perhaps no memory.
        fed, fetched = (
            [p for p in s if p[1].size and not opened.has(p[1])] for s in (fed, fetched)
        )
        fetch = _fetch_of_shape if late else _fetch
        # Its own `invoke` first counts who holds views, at a quarter of what a small model takes.
        native = getattr(opened.interpreter, "_interpreter", None)
        steps = [
            *(partial(opened.setter(i), array) for i, array in fed),
            getattr(native, "Invoke", opened.interpreter.invoke),
            *(partial(fetch, opened.view(i), array) for i, array in fetched),
        ]
        for i, array in own.items():
            if array.size and not opened.has(array):  # another recording may give it another home
                steps.insert(0, partial(_feed_state, opened.setter(i), run.variables, i))
                steps.append(partial(_fetch_state, opened.view(i), run.variables, i))
        self._opened, self._steps = opened, steps

    def run(self) -> None:
        """Compute every node, with little Python around it: a small model takes as long as a few
        calls of that.

        Raises:
            StateError: it is closed.
            DeviceError: a node failed; names it.
        """
        if not self._steps:
            super().run()
        try:
            for step in self._steps:
                step()
        except ERRORS as error:
            assert self._opened is not None
            raise DeviceError(f"LiteRT failed: {self._opened.named(error)}") from error

    def _compute(self) -> None:
        """Open what a fork has left behind, as `run` finds it."""
        self._open()

    def refuse(self) -> None:
        """As in the base, which `run` asks then."""
        super().refuse()
        self._steps = []

    def close(self) -> None:
        """Let LiteRT's interpreter go."""
        super().close()
        self._opened = None

    def after_fork(self) -> None:
        """A child has the memory but not the threads of LiteRT's interpreter, which would be waited
        for at its end. So that one stays for good, and the next run opens another."""
        if self._opened is not None:
            immortal(self._opened.interpreter)
        self._opened, self._steps = None, []


def _homes(
    opened: Opened,
    values: Sequence[Value],
    arrays: Sequence[Array],
    apart: Collection[int] = (),
    *,
    is_result: bool = False,
) -> tuple[Array, ...]:
    """LiteRT's memory in the place of arrays, but for the values that are ``apart``."""
    return tuple(
        array if v.id in apart else opened.home(v.id, array, is_result=is_result)
        for v, array in zip(values, arrays, strict=True)
    )


# A view is in no variable: a traceback would keep that, and LiteRT does not run while one is held.


def _fetch(tensor: Callable[[], Array], array: Array) -> None:
    array[...] = tensor()


def _feed_state(put: Callable[[Array], None], states: Mapping[int, Array], value_id: int) -> None:
    put(states[value_id])


def _fetch_state(tensor: Callable[[], Array], states: Mapping[int, Array], value_id: int) -> None:
    states[value_id][...] = tensor()


def _fetch_of_shape(tensor: Callable[[], Array], array: Array) -> None:
    if tensor().shape != array.shape:
        raise ValueError(f"it made a result of another shape than {list(array.shape)}")
    array[...] = tensor()
