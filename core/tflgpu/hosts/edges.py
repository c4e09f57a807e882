"""Tensors at the edge of what the delegate runs: LiteRT's memory, and the session's.

Between runs LiteRT's callers write inputs and read outputs where `TfLiteTensor.data` points. Where
the session's array can be that place nothing has to be copied in a run:

    set_tensor -> LiteRT's arena -> copy -> session's array      set_tensor -> session's array

It may be where all of these hold; elsewhere there is a copy each way in each run.

* The delegate has taken the whole graph. Otherwise LiteRT may place tensors anew in the middle of a
  run (behind an operator whose result has a shape that numbers decide), and takes what is in its
  arena for the contents; and XNNPACK reads up to 16 bytes beyond the end of a tensor.
* The tensor lies in the arena (`ARENA_RW`). What is allocated by itself LiteRT would release.
* The array can be written, since callers get views of outputs too.

LiteRT points tensors at its arena again whenever it places them, and at nothing when they are
resized, so a mistake of a caller's between a resize and `allocate_tensors` finds what it would find
without a delegate. What it has placed is looked at in each run. Before it does, inputs are taken
back to the arena with their contents, which LiteRT keeps over a resize of other inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tflgpu.errors import StateError
from tflgpu.hosts.cdef import ARENA_RW, ffi
from tflgpu.ir.dtypes import Array


class HostTensor:
    """A tensor: LiteRT's memory, and the session's array of the same shape and type."""

    __slots__ = ("_arena", "_name", "_pointer", "_shareable", "_view", "array", "index", "own")

    def __init__(self, index: int, name: str, array: Array, *, shareable: bool) -> None:
        """``shareable`` says whether the delegate has taken the whole graph."""
        self.index = index
        self.array = array
        #: Where ``array`` is. LiteRT's tensor points there while the memory is shared.
        self.own: Any = ffi().cast("void*", array.ctypes.data)
        self._name = name
        self._shareable = shareable and array.flags.writeable and array.flags.c_contiguous
        self._pointer: Any = None
        self._view = array
        self._arena: Any = None

    def copy_in(self, tensor: Any) -> None:
        """Read a tensor that is not shared, and share it from now on where that can be.

        Raises:
            StateError: LiteRT has no memory for it, or of another size.
        """
        self._follow(tensor)
        np.copyto(self.array, self._view)
        self._share(tensor)

    def copy_out(self, tensor: Any) -> None:
        """Write a tensor that is not shared, and share it from now on where that can be.

        Raises:
            StateError: as `copy_in`.
        """
        self._follow(tensor)
        np.copyto(self._view, self.array)
        self._share(tensor)

    def give_back(self, tensor: Any, *, contents: bool) -> None:
        """Point a tensor that is shared at LiteRT's memory again, with what is in it if
        ``contents`` says so."""
        if self._arena is not None and tensor.data == self.own:
            if contents:
                ffi().memmove(self._arena, self.own, self.array.nbytes)
            tensor.data = self._arena
        self._arena = None

    def _share(self, tensor: Any) -> None:
        if self._shareable and tensor.allocation_type == ARENA_RW:
            self._arena = tensor.data
            tensor.data = self.own

    def _follow(self, tensor: Any) -> None:
        """Look at LiteRT's memory where it is now."""
        data = tensor.data
        if data == self._pointer:
            return
        if not data or tensor.bytes != self.array.nbytes:
            has = f"{tensor.bytes:,} bytes" if data else "no memory"
            raise StateError(
                f"LiteRT has {has} for tensor {self.index} ({self._name}), which takes "
                f"{self.array.nbytes:,}"
            )
        memory = np.frombuffer(ffi().buffer(data, tensor.bytes), self.array.dtype)
        self._view = memory.reshape(self.array.shape)
        self._pointer = data


class Edges:
    """The inputs and outputs of one session, as LiteRT has them."""

    def __init__(self, before: Sequence[HostTensor] = (), after: Sequence[HostTensor] = ()) -> None:
        self.before = tuple(before)
        self.after = tuple(after)

    def copy_in(self, tensors: Any) -> None:
        """Read what is not where the session reads it.

        Raises:
            StateError: as `HostTensor.copy_in`.
        """
        for edge in self.before:
            tensor = tensors[edge.index]
            if tensor.data != edge.own:
                edge.copy_in(tensor)

    def copy_out(self, tensors: Any) -> None:
        """Write what is not where the session wrote it.

        Raises:
            StateError: as `HostTensor.copy_in`.
        """
        for edge in self.after:
            tensor = tensors[edge.index]
            if tensor.data != edge.own:
                edge.copy_out(tensor)

    def give_back(self, tensors: Any, *, contents: bool) -> None:
        """Give every edge's tensor back to LiteRT (`HostTensor.give_back`)."""
        for edge in (*self.before, *self.after):
            edge.give_back(tensors[edge.index], contents=contents)
