"""What the classes share that make up `Interpreter`, of which each has methods of one kind; and the
one that has a single method."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.interpreter.bound_runs import BoundRuns
from tflgpu.interpreter.session_opener import SessionOpener
from tflgpu.interpreter.subgraph import Subgraph
from tflgpu.interpreter.tensor_memory import TensorMemory
from tflgpu.options.kinds import WholeNumber
from tflgpu.runtime.profile import RunProfile
from tflgpu.tflite.model_file import ModelFile


class InterpreterParts(ABC):
    """The state of an interpreter, as its methods find it. `Interpreter` makes it."""

    #: Keeps other threads out, and calls from inside a call.
    _busy: RunGuard
    _model: ModelFile
    #: The main subgraph, and all that were asked for so far, by number.
    _main: Subgraph
    _subgraphs: dict[int, Subgraph]
    _opener: SessionOpener
    #: Of signatures that carry caches, by the number of their subgraph; and the caches, by name.
    _bound: dict[int, BoundRuns]
    _caches: dict[str, TensorMemory]

    @abstractmethod
    def _subgraph(self, index: int) -> Subgraph:
        """A subgraph of the model, made when it is first asked for.

        Raises:
            InputError: there is none of that index.
        """

    @abstractmethod
    def _make(self, index: int) -> Subgraph:
        """Another subgraph of that number, for a session of its own."""

    @abstractmethod
    def _settle(self) -> None:
        """Let runs in flight that have to do with state come to their end."""

    @abstractmethod
    def _close_lanes(self) -> None:
        """Let all runs in flight come to their end, and give back what they took."""


class ProfileMethod(InterpreterParts):
    """The part of `Interpreter` that profiles."""

    def profile(self, runs: int = 20) -> RunProfile:
        """Run the model on what its inputs hold, and say where the time goes: 4 runs that do not
        count, then ``runs`` without timers and as many with one around every dispatch, by turns.
        State moves on by all of them, as by `invoke`. docs/profile.md says what is in a profile;
        `tflgpu.tools` writes it as a table, JSON, HTML or a trace.

        What the device can move and compute at most is measured at its first profile and kept.

        Raises:
            OptionError: ``runs`` is no whole number from 1 on.
            StateError: as `invoke`; or the accuracy guard still compares each run with the CPU.
            DeviceError: the device failed.
        """
        # Most programs never come here.
        from tflgpu.runtime.profiling import flops_of, profile_runs

        count = WholeNumber().read("runs", runs)
        with self._busy:
            self._main.check_views()
            self._settle()
            self._main.run()
            session = self._main.session
            assert session is not None
            flops: dict[int, float] = {}
            if not session.comes_by_run:
                graph = self._opener.graph(self._main.index, self._main.resized)
                flops = flops_of(graph, self._opener.ops)
            return profile_runs(lambda: self._main.session, self._main.run, count, flops)
