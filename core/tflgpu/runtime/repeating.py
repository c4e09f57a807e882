"""A graph that a device can run several times over in one run, each time on what the last time made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from tflgpu.compiler.compile import Compiled
from tflgpu.compiler.repeat import repeated
from tflgpu.errors import DeviceError
from tflgpu.runtime.session import Session


@attrs.frozen(eq=False)
class Repeating:
    """One, compiled.

    Attributes:
        compiled: Wholly on the device, as one part.
        carries: As `tflgpu.compiler.repeat.carried` gives it.
        load: Opens what is compiled, on the device or not at all.
    """

    compiled: Compiled
    carries: Mapping[int, int]
    load: Callable[[Compiled], Session]

    @property
    def dispatches(self) -> int:
        """Kernels that one time launches."""
        return self.compiled.parts[0].dispatches

    def open(self, count: int) -> Session | None:
        """A session that runs it ``count`` times in a run; None where the device has no room for it.

        Raises:
            PluginError: as `tflgpu.engine.Engine.open_session`.
        """
        (part,) = self.compiled.parts
        assert part.plan is not None
        plan = repeated(part.plan, self.carries, count)
        again = attrs.evolve(self.compiled, parts=(attrs.evolve(part, plan=plan),))
        try:
            return self.load(again)
        except DeviceError:
            return None  # who opens a round by itself is told
