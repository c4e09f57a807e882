"""`Interpreter.modify_graph_with_delegate`: a delegate for a model that is ready without it."""

from __future__ import annotations

from tflgpu.errors import StateError
from tflgpu.interpreter.gpu_delegate import GpuDelegate, one_delegate
from tflgpu.interpreter.parts import InterpreterParts


class DelegateMethods(InterpreterParts):
    """The part of `Interpreter` that changes its delegate."""

    def modify_graph_with_delegate(self, delegate: GpuDelegate) -> None:
        """Let a delegate have what it can take of the model, as if the interpreter had been made
        with it; the CPU's part is run as it was. Where tensors are allocated they are allocated
        anew, at the same shapes, and inputs and state keep what they have. Where the delegate
        cannot take its part, everything is as before.

        Raises:
            OptionError: no `GpuDelegate`.
            StateError: the interpreter has a delegate, or is closed or in use; the delegate is
                closed; or a view made by `tensor` is still held.
            UnsupportedError: an operator that neither the device nor the CPU can run.
            DeviceError: the device could not take its part, or what inputs or outputs are bound to.
        """
        given = one_delegate([delegate])
        assert given is not None
        with self._busy:
            opener = self._opener
            if opener.has_delegate:
                raise StateError(
                    "this interpreter has a delegate already, and keeps it; make another "
                    "interpreter for another delegate"
                )
            given.provider.usable()
            for subgraph in self._subgraphs.values():
                subgraph.check_views()
            self._close_lanes()
            for cache in self._caches.values():
                cache.to_host()
            for runs in self._bound.values():
                runs.close()
            before = opener.change_provider(given.options, given.provider)
            try:
                self._reopen()
            except BaseException:
                opener.change_provider(*before)
                self._reopen()
                raise
            if before[1] is not None and before[1].lease is not None:
                before[1].lease.end()

    def _reopen(self) -> None:
        for subgraph in self._subgraphs.values():
            subgraph.reopen()
