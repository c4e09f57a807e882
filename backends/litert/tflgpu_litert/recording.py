"""Nodes that LiteRT runs: one call into it a run, and a copy of each tensor at the edge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tflgpu.backend_kit.forks import Holder, immortal
from tflgpu.backend_kit.node_recording import BaseNodeRecording
from tflgpu.contract.device import NodeRun
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported
from tflgpu.tflite.cut import small_model

from tflgpu_litert.native import LiteRTError, Opened, Settings, open_model
from tflgpu_litert.newer import repack
from tflgpu_litert.quirks import as_written
from tflgpu_litert.shapes import told_late


class LiteRTRecording(BaseNodeRecording, Holder):
    """A `Recording` of LiteRT's kernels.

    Inputs and outputs are arrays of its own: LiteRT's memory moves and ends with its interpreter.
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
        #: Copy the arrays that are the tensors' homes here to LiteRT, and back.
        self._before: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []
        self._opened: Opened | None = None
        self._open()
        self.belongs_to_process()

    def _open(self) -> None:
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
        states = [
            (v, run.variables[v.id])
            for v in {v.id: v for n in run.nodes for v in n.inputs if v and v.is_variable}.values()
        ]
        fed = [*zip(run.inputs, self._inputs, strict=True), *states]
        fetched = [*zip(run.outputs, self._outputs, strict=True), *states]
        # Tensors without elements have nothing to move, and perhaps no memory.
        self._before = [partial(opened.setter(v.id), array) for v, array in fed if array.size]
        fetch = _fetch_of_shape if late else _fetch
        self._after = [
            partial(fetch, opened.view(v.id), array) for v, array in fetched if array.size
        ]
        self._opened = opened

    def _compute(self) -> None:
        if self._opened is None:  # left behind by a fork
            self._open()
        assert self._opened is not None
        for feed in self._before:
            feed()
        try:
            self._opened.invoke()
        except LiteRTError as error:
            raise DeviceError(f"LiteRT failed: {error}") from error
        for fetch in self._after:
            fetch()

    def close(self) -> None:
        """Let LiteRT's interpreter go."""
        super().close()
        self._before, self._after, self._opened = [], [], None

    def after_fork(self) -> None:
        """A child has the memory but not the threads of LiteRT's interpreter, which would be waited
        for at its end. So that one stays for good, and the next run opens another."""
        if self._opened is not None:
            immortal(self._opened.interpreter)
        self._before, self._after, self._opened = [], [], None


# A view is in no variable: a traceback would keep that, and LiteRT does not run while one is held.


def _fetch(tensor: Callable[[], Array], array: Array) -> None:
    array[...] = tensor()


def _fetch_of_shape(tensor: Callable[[], Array], array: Array) -> None:
    if tensor().shape != array.shape:
        raise DeviceError(f"LiteRT made a result of another shape than {list(array.shape)}")
    array[...] = tensor()
