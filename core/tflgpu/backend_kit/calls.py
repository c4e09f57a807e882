"""Calls of C functions with arguments that are bound once, for APIs whose commands are functions
that return a status (OpenCL, CUDA, Level Zero)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import starmap
from operator import length_hint
from typing import Any

from tflgpu.errors import DeviceError
from tflgpu.values import frozen

#: A function that gives a status, 0 where it succeeded, and its arguments.
Call = tuple[Callable[..., Any], tuple[Any, ...]]
#: Calls in a batch. During one no signal is heard, and where a driver takes no more commands for
#: now each call waits for the device.
_MOST = 256


@frozen
class _Batch:
    """Up to ``_MOST`` calls of one function in a row, and what each of them does."""

    function: Callable[..., Any]
    calls: list[tuple[Any, ...]]
    labels: list[str]


class Calls(ABC):
    """Calls in order. A subclass has `_failure`."""

    def __init__(self) -> None:
        self._batches: list[_Batch] = []
        self._alive: list[Any] = []

    # For subclasses to write

    @abstractmethod
    def _failure(self, label: str, status: int) -> DeviceError:
        """What to raise where a call did not succeed; ``label`` is what it does."""

    # What recordings use

    def append(self, call: Call, label: str, *alive: Any) -> None:
        """Add one; ``alive`` is what it needs to exist."""
        function, args = call
        last = self._batches[-1] if self._batches else None
        if last is None or last.function is not function or len(last.calls) == _MOST:
            self._batches.append(_Batch(function, [], []))
        self._batches[-1].calls.append(args)
        self._batches[-1].labels.append(label)
        self._alive.extend(alive)

    def submit(self) -> None:
        """Make all calls.

        Raises:
            DeviceError: one did not succeed; the message names it. Those after it are not made.
        """
        for batch in self._batches:
            rest = iter(batch.calls)
            # The loop runs in C, up to the first status that is not 0.
            status = next(filter(None, starmap(batch.function, rest)), 0)
            if status:
                at = len(batch.calls) - length_hint(rest) - 1
                raise self._failure(batch.labels[at], status)
