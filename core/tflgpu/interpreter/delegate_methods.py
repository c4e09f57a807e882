"""How an interpreter runs its model: a delegate for one that is ready without it, and where the
time goes."""

from __future__ import annotations

from tflgpu.errors import StateError
from tflgpu.interpreter.gpu_delegate import GpuDelegate, one_delegate
from tflgpu.interpreter.parts import InterpreterParts
from tflgpu.options.kinds import WholeNumber
from tflgpu.runtime.profile import RunProfile


class DelegateMethods(InterpreterParts):
    """The part of `Interpreter` that changes its delegate, and profiles."""

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
