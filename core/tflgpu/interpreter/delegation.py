"""Who opens an interpreter's sessions: the delegate it was given, the default one, or nobody."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tflgpu.blame import in_a_line
from tflgpu.compiler.keep import Pairs
from tflgpu.compiler.numerics import Numerics
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.errors import DeviceError, OptionError
from tflgpu.ir.graph import Graph
from tflgpu.lowering.reason import ReasonCode
from tflgpu.options import DelegateOptions, OnError, OpResolverType, truth
from tflgpu.runtime.repeating import Repeating
from tflgpu.runtime.session import Session
from tflgpu.saved.keeping import Keeping
from tflgpu.saved.origin import Origin
from tflgpu.saved.start import Start

if TYPE_CHECKING:
    from tflgpu.default_delegate import DefaultDelegate
    from tflgpu.delegate import GpuDelegate
    from tflgpu.ops.base import OpDef

_LOG = logging.getLogger("tflgpu")

#: Switches the default delegate off where it says so: "0", "no", "off", "false".
VARIABLE = "TFLGPU_DEFAULT_DELEGATE"

#: TFLite's op resolvers that bring no default delegate.
_WITHOUT_DEFAULT = (OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)


class Delegation:
    """Opens sessions for one interpreter, and says why where there is no delegate.

    Args:
        delegates: What the interpreter was given: at most one delegate; None lets the default one
            have its turn, as TFLite's interpreter applies XNNPACK.
        resolver: The interpreter's; those that bring no default delegate in TFLite bring none here.
        environ: May switch the default delegate off.
        options: Of the default delegate.

    Raises:
        OptionError: no list of at most one `GpuDelegate`, or an environment variable that says
            neither yes nor no.
    """

    def __init__(
        self,
        delegates: Any,
        resolver: OpResolverType = OpResolverType.AUTO,
        environ: Mapping[str, str] = os.environ,
        options: DelegateOptions | None = None,
    ) -> None:
        self._given = None if delegates is None else _one_delegate(delegates)
        self._default: DefaultDelegate | None = None
        self._why_none = ""
        self._code = ReasonCode.NO_DELEGATE
        self.options = DelegateOptions.gathered({}, environ=environ) if options is None else options
        if self._given is not None:
            self.options = self._given.options
        elif delegates is not None:
            self._why_none = "no delegate was given"
        elif resolver in _WITHOUT_DEFAULT:
            self._why_none = f"op resolver {resolver.name} brings no default delegate"
        elif not is_switched_on(environ):
            self._why_none = f"no delegate was given, and {VARIABLE} switches the default one off"

    def open_session(
        self,
        graph: Graph,
        ops: Mapping[str, OpDef],
        cpu: CpuSide,
        *,
        preserve_all: bool,
        fuse: bool,
        keeping: Pairs = (),
    ) -> Session:
        """A session for a graph; ``cpu`` runs what no device takes, by ``ops`` where it is NumPy, and
        ``keeping`` is as in `Engine.open_session`.

        Raises:
            UnsupportedError, DeviceError, PluginError, GraphError: as `Engine.open_session`.
        """
        if self._why_none:
            from tflgpu.runtime.cpu_session import open_cpu_session

            return open_cpu_session(
                graph, ops, preserve_all=preserve_all, side=cpu, numerics=self._cpu_numerics,
                reason=self._why_none, code=self._code,
            )  # fmt: skip
        if self._given is not None:
            return self._given.open_session(
                graph, preserve_all=preserve_all, fuse=fuse, cpu=cpu, keeping=keeping
            )
        session = self._the_default().open_session(
            graph, preserve_all=preserve_all, fuse=fuse, cpu=cpu
        )
        why = "nobody asked for this device, and the CPU goes on whatever becomes of it"
        session.not_kept = {given: why for _, given in keeping}
        return _spared(session)

    def repeating(
        self, graph: Graph, pairs: Sequence[tuple[int, int]], cpu: CpuSide
    ) -> Repeating | None:
        """A graph, to be run several times over in one run of a device; None where there is none, or
        it cannot be.

        Raises:
            PluginError, GraphError: as `Engine.open_session`.
        """
        if self._why_none:
            return None
        if self._given is not None:
            return self._given.repeating(graph, pairs, cpu=cpu)
        return self._the_default().repeating(graph, pairs, cpu=cpu)

    def open_origin(self, origin: Origin, cpu: CpuSide) -> tuple[Session, Start] | None:
        """A session for a model's file, from what is kept of it; None where it takes a graph.

        Raises:
            UnsupportedError, DeviceError, PluginError, GraphError: as `Engine.open_session`.
            ModelError: as `Origin.graph`.
        """
        if self._why_none:
            return None
        if self._given is not None:
            return self._given.open_origin(origin, cpu=cpu)
        found = self._the_default().open_origin(origin, cpu=cpu)
        return None if found is None else (_spared(found[0]), found[1])

    def knows(self, origin: Origin) -> bool:
        """Whether something is kept of a model's file, so that it was read before without fault. Opens
        nothing."""
        if self._why_none:
            return False
        if self._given is not None:
            return self._given.knows(origin)
        return Keeping().asked(self.options).knows(origin)

    @property
    def has_device(self) -> bool:
        """Whether a device may run some of the model. Opens it."""
        if self._why_none:
            return False
        if self._given is not None:
            return self._given.device is not None
        return self._the_default().has_device

    def _the_default(self) -> DefaultDelegate:
        if self._default is None:
            # Only now: it brings all kernels along.
            from tflgpu.default_delegate import DefaultDelegate

            self._default = DefaultDelegate(self.options)
        return self._default

    @property
    def is_default(self) -> bool:
        """Whether the device was nobody's wish, so that sessions on it may be replaced."""
        return self._default is not None and self._default.gives_way

    @property
    def on_error(self) -> OnError:
        """What follows an error in a run of the sessions that are opened now."""
        if self._why_none or (self._default is not None and not self._default.uses_device):
            return OnError.RAISE  # of the CPU's
        if self.options.on_error is not None:
            return self.options.on_error
        return OnError.CPU if self.is_default else OnError.RAISE

    def give_way(self, error: DeviceError) -> None:
        """Let sessions that are opened from now on run on the CPU, since a run failed."""
        if self._default is not None:
            self._default.give_way(error)
            return
        said = in_a_line(error)
        _LOG.warning("tflgpu: the model runs on the CPU from now on, since a run failed: %s", said)
        self._why_none, self._code = f"a run failed: {said}", ReasonCode.DEVICE_FAILED

    def renew(self, session: Session) -> None:
        """Open the device anew that a session is on, which is lost; nothing where the CPU goes on.

        Raises:
            DeviceError: it cannot be opened.
        """
        if self._why_none:
            return
        if self._given is not None:
            self._given.renew(session)
        elif self._default is not None:
            self._default.renew(session)

    @property
    def _cpu_numerics(self) -> Numerics:
        # Where the device was given up it is as it would have been without one from the start.
        wanted = self.options.quantized_numerics if self._given is not None else None
        return wanted or Numerics.FLOAT

    def release(self, action: Callable[[], None]) -> None:
        """Close something by ``action``; what a device that nobody asked for, or that was given up,
        has against it is only logged.

        Raises:
            DeviceError: the device was asked for, and failed.
        """
        try:
            action()
        except DeviceError as error:
            if self._default is None and not self._why_none:
                raise
            _LOG.warning("tflgpu: %s", error)

    def close(self) -> None:
        """Let go of a device that is not the caller's; twice is harmless."""
        if self._default is not None:
            self._default.close()


def _spared(session: Session) -> Session:
    """On a device that nobody asked for: the CPU can go on with all there is, even if it is lost."""
    session.keep_at_hand()
    return session


def is_switched_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment lets models have a default delegate.

    Raises:
        OptionError: the variable says something else than yes or no.
    """
    text = environ.get(VARIABLE, "").strip()
    return truth(VARIABLE, text) if text else True


def _one_delegate(delegates: Any) -> GpuDelegate | None:
    try:
        given = list(delegates)
    except TypeError:
        kind = type(delegates).__name__
        raise OptionError(
            f"experimental_delegates is a list of GpuDelegate, not {kind}; write [delegate]"
        ) from None
    if not given:
        return None
    # Whoever runs on the CPU only does not pay for importing all kernels.
    from tflgpu.delegate import GpuDelegate

    for delegate in given:
        if not isinstance(delegate, GpuDelegate):
            raise OptionError(
                f"experimental_delegates takes tflgpu.GpuDelegate, not {type(delegate).__name__}: "
                "delegates in shared libraries need the native runtime, ai_edge_litert"
            )
    if len(given) > 1:
        raise OptionError(
            f"{len(given)} delegates were given; one GpuDelegate serves the whole model"
        )
    only: GpuDelegate = given[0]
    return only
