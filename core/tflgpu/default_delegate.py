"""The delegate of a model for which nobody names one: the best GPU there is, or none.

    Interpreter 1 --- DefaultDelegate --+
                                        +-- the opened device
    Interpreter 2 --- DefaultDelegate --+

Interpreters of a process share one opened device (for the same options and environment). It is
closed when the last of them lets go of it, so that nothing is left behind and nobody has to close
anything but the interpreter.

It is there to help, and must not stop a model that ran without it: whatever a GPU, its driver or a
plugin cannot do, the CPU side does, and the report and the log say why.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Sequence

from tflgpu.blame import of_signal
from tflgpu.compiler.numerics import Numerics
from tflgpu.contract.forks import call_in_child, free_in_child
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.errors import TflgpuError
from tflgpu.ir.graph import Graph
from tflgpu.lowering.reason import ReasonCode
from tflgpu.options import DelegateOptions
from tflgpu.plugins import registry
from tflgpu.runtime.cpu_session import open_cpu_session
from tflgpu.runtime.repeating import Repeating
from tflgpu.runtime.session import Session
from tflgpu.saved.origin import Origin
from tflgpu.saved.start import Start
from tflgpu.starts import StartingEngine

_LOG = logging.getLogger("tflgpu")


class _Shared:
    """An opened device with its users: whoever refers to this. Closed with the last of them."""

    def __init__(self, options: DelegateOptions) -> None:
        self.engine = StartingEngine(options, is_default=True)
        weakref.finalize(self, _close, self.engine)


def _close(engine: StartingEngine) -> None:
    try:
        engine._close()  # noqa: SLF001
    except TflgpuError as error:  # nobody asked for it, and nobody can do anything
        _LOG.warning("tflgpu: default delegate: %s", error)


_opened: weakref.WeakValueDictionary[object, _Shared] = weakref.WeakValueDictionary()
_opening = free_in_child()
# A child opens a device of its own.
call_in_child(_opened.clear)


class DefaultDelegate:
    """One interpreter's share in the GPU that is used where no delegate is named.

    Opens nothing before the first session. What is asked for by options counts as for
    `tflgpu.GpuDelegate`, and so does the environment; without either only a real GPU is taken: a
    device that computes on the CPU would be in the place of the CPU side. One thread at a time.
    """

    def __init__(self, options: DelegateOptions | None = None) -> None:
        self.options = DelegateOptions() if options is None else options
        self._shared: _Shared | None = None
        self._reason = ""  # why it gave way

    def open_session(
        self, graph: Graph, *, cpu: CpuSide, preserve_all: bool = False, fuse: bool = True
    ) -> Session:
        """As `Engine.open_session`, but what fails there runs on the CPU.

        Raises:
            UnsupportedError: an operator that the CPU cannot run either, or any refusal where the
                option ``allow_fallback`` is off.
            DeviceError: the CPU side that was asked for cannot run here.
        """
        if self.options.allow_fallback:
            return self._open_spared(graph, cpu, preserve_all=preserve_all, fuse=fuse)
        engine = self._borrow().engine
        return engine.open_session(graph, preserve_all=preserve_all, fuse=fuse, cpu=cpu)

    def repeating(
        self, graph: Graph, pairs: Sequence[tuple[int, int]], *, cpu: CpuSide
    ) -> Repeating | None:
        """As `Engine.repeating`. What fails there may fail again by itself, and then the CPU takes over.

        Raises:
            As `open_session`.
        """
        if self._reason:
            return None
        try:
            return self._borrow().engine.repeating(graph, pairs, cpu=cpu)
        except Exception as error:
            if of_signal(error) or not self.options.allow_fallback:
                raise
            return None

    def open_origin(self, origin: Origin, *, cpu: CpuSide) -> tuple[Session, Start] | None:
        """As `StartingEngine.open_origin`. What fails there may fail again with a graph, and then the CPU
        takes over.

        Raises:
            As `open_session`.
        """
        if self._reason:
            return None
        try:
            return self._borrow().engine.open_origin(origin, cpu=cpu)
        except Exception as error:
            if of_signal(error) or not self.options.allow_fallback:
                raise
            return None

    @property
    def gives_way(self) -> bool:
        """Whether the CPU may take over what fails while it runs."""
        return self.options.allow_fallback and not self._reason

    @property
    def has_device(self) -> bool:
        """Whether there is a device, and none failed. Opens it."""
        if self._reason:
            return False
        try:
            return self._borrow().engine.device is not None
        except TflgpuError:
            return False  # which opening a session says

    @property
    def uses_device(self) -> bool:
        """Whether it did not give way."""
        return not self._reason

    def renew(self, session: Session) -> None:
        """As `Engine.renew`."""
        if self._shared is not None and self.uses_device:
            self._shared.engine.renew(session)

    def give_way(self, error: TflgpuError) -> None:
        """Use the CPU from now on, since a run failed. Others get a device that is opened anew."""
        _LOG.warning("tflgpu: the model runs on the CPU from now on, since a run failed: %s", error)
        self._reason = f"the default delegate failed in a run: {_first_line(error)}"
        with _opening:
            for key, shared in list(_opened.items()):
                if shared is self._shared:
                    del _opened[key]

    def close(self) -> None:
        """Let go of the device; twice is harmless. Close the sessions first."""
        self._shared = None

    # Inside

    def _open_spared(
        self, graph: Graph, cpu: CpuSide, *, preserve_all: bool, fuse: bool
    ) -> Session:
        why, failed = self._reason, None
        if not why:
            try:
                engine = self._borrow().engine
                return engine.open_session(graph, preserve_all=preserve_all, fuse=fuse, cpu=cpu)
            except Exception as error:
                if of_signal(error):
                    raise
                failed, why = error, f"the default delegate failed: {_first_line(error)}"
        session = open_cpu_session(
            graph, registry().ops(), preserve_all=preserve_all, side=cpu,
            numerics=self.options.quantized_numerics or Numerics.FLOAT, reason=why,
            code=ReasonCode.DEVICE_FAILED,
        )  # fmt: skip
        if failed is not None:  # and it is not the model's fault: the CPU takes it
            _LOG.warning(
                "tflgpu: the model runs on the CPU, since the default delegate failed: %s", failed,
                exc_info=None if isinstance(failed, TflgpuError) else failed,
            )  # fmt: skip
            failed = None  # its traceback refers to this frame
        return session

    def _borrow(self) -> _Shared:
        """The opened device.

        Raises:
            TflgpuError: what the environment asks for is not there, or a plugin is broken.
        """
        if self._shared is not None and not self._shared.engine.inherited:
            return self._shared
        key = (registry(), self.options, _environment())
        with _opening:
            shared = _opened.get(key)
            if shared is None:
                shared = _opened[key] = _Shared(self.options)
                choice = shared.engine.choice
                _LOG.info("tflgpu: default delegate: %s", "; ".join(choice.reasons))
        self._shared = shared
        return shared


def _environment() -> tuple[tuple[str, str], ...]:
    """What may change the choice of a device."""
    return tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("TFLGPU_")))


def _first_line(error: Exception) -> str:
    said = next(iter(str(error).splitlines()), "")
    return said if isinstance(error, TflgpuError) and said else f"{type(error).__name__}: {said}"
