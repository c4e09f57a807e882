"""What the classes share that make up `Interpreter`, of which each has methods of one kind."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.interpreter.bound_runs import BoundRuns
from tflgpu.interpreter.session_opener import SessionOpener
from tflgpu.interpreter.subgraph import Subgraph
from tflgpu.interpreter.tensor_memory import TensorMemory
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
