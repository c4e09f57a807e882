"""`Interpreter.profile`: where the time of a run goes."""

from __future__ import annotations

from tflgpu.interpreter.parts import InterpreterParts
from tflgpu.options.kinds import WholeNumber
from tflgpu.runtime.profile import RunProfile


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
