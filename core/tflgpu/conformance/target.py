"""What is under test: an opened device of a backend; and the checks, each one thing that a backend
must get right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union

import attrs

from tflgpu.checks.device import unchecked
from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.target import Target as CompileTarget
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.ir.graph import Node
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry

_T = TypeVar("_T")

#: What the levels are about, by number.
LEVELS = ("device", "nodes", "ops", "generated", "graphs", "guards")


@attrs.frozen
class NotApplicable:
    """The question does not arise on a device: it has no 16-bit arithmetic, say."""

    reason: str


#: None is a pass; `Unsupported` is the device's refusal, with its reason. A failure is raised.
Outcome = Union[Unsupported, NotApplicable, None]


@attrs.define(eq=False)
class DeviceUnderTest:
    """An opened device. Close it when the last check has run.

    Attributes:
        registry: Where the backend, its rules and the ops come from.
        backend: Its name.
        index: The device's index.
        device: The opened device.
        tolerance_scale: Factor on every tolerance, from the backend's profile.
        examples: Generated cases an op, None for the fixed selection.
        opener: Opens another device like this one, None for the registry's way. For a backend's
            own tests, where it has devices that no option asks for.
    """

    registry: Registry
    backend: str
    index: int
    device: Device | NodeDevice
    tolerance_scale: float = 1.0
    examples: int | None = None
    opener: Callable[[], Device | NodeDevice] | None = None
    _kept: dict[object, Any] = attrs.field(factory=dict, repr=False)

    @classmethod
    def open(
        cls, registry: Registry, backend: str, index: int = 0, *, examples: int | None = None
    ) -> DeviceUnderTest:
        """Open a device.

        Raises:
            DeviceError: there is no such backend or device, or it cannot be opened.
            PluginError: the backend's plugin did not answer, or its profile is wrong.
        """
        # As its backend made it: what a wrapper mends would not be found.
        device = unchecked(registry.open_device(backend, index, DelegateOptions()))
        scale = registry.conformance_allowances(backend).tolerance_scale
        return cls(registry, backend, index, device, scale, examples)

    @property
    def caps(self) -> DeviceCaps:
        """The device's limits and features."""
        return self.device.caps

    @property
    def ops(self) -> Mapping[str, OpDef]:
        """Every op that the registry knows."""
        return self.registry.ops()

    @property
    def declared(self) -> frozenset[str]:
        """Ops that there are kernels for; none are known of a device that runs nodes, which is
        asked of each node."""
        if isinstance(self.device, NodeDevice):
            return frozenset()
        return frozenset(self.compiled_for(Precision.F32).kernels.ops)

    def compiled_for(
        self, precision: Precision, numerics: Numerics = Numerics.FLOAT
    ) -> CompileTarget:
        """The target that compiles graphs as they are. The device has no cache for data to stay in:
        all that a precision may store as f16 is stored so."""
        key = ("target", precision, numerics)
        return self.once(key, lambda: self._compiled_for(precision, numerics))

    def _compiled_for(self, precision: Precision, numerics: Numerics) -> CompileTarget:
        device, ops, backend = self.device, self.ops, self.backend
        caps = attrs.evolve(self.caps, cache_bytes=0)
        if isinstance(device, NodeDevice):
            plain = CompileTarget.plain(caps, precision, ops=ops, alignment=1, numerics=numerics)
            return attrs.evolve(plain, rules=None, objection=lambda n: device.supports(n, ops))
        plain = CompileTarget.plain(
            caps,
            precision,
            ops=ops,
            rules=self.registry.rules(backend),
            alignment=device.alignment,
            numerics=numerics,
        )
        return attrs.evolve(
            plain, objection=lambda n: self.registry.node_support(backend, n, plain.site)
        )

    def lacks(self, precision: Precision) -> NotApplicable | None:
        """Why a precision makes no sense here; None where it does."""
        name = self.device.info.name
        if precision is not Precision.F32 and not self.caps.f16_storage:
            return NotApplicable(f"{name} does not store 16-bit floats")
        if precision is Precision.F16 and not self.caps.f16_arithmetic:
            return NotApplicable(f"{name} has no 16-bit arithmetic")
        return None

    def refusal(
        self, node: Node, precision: Precision, numerics: Numerics = Numerics.FLOAT
    ) -> Unsupported | None:
        """Why the device does not take a node, asked as the delegate asks."""
        return self.compiled_for(precision, numerics).refusal(node)

    def scaled(self, tolerance: Tolerance) -> Tolerance:
        """A tolerance with the backend's factor on it."""
        return tolerance if self.tolerance_scale == 1 else tolerance.scaled(self.tolerance_scale)

    def reopen(self) -> DeviceUnderTest:
        """A second, independent device of the same index."""
        if self.opener is None:
            return DeviceUnderTest.open(
                self.registry, self.backend, self.index, examples=self.examples
            )
        return attrs.evolve(self, device=self.opener(), kept={})

    def once(self, key: object, make: Callable[[], _T]) -> _T:
        """What ``make`` gives, made at the first call for ``key``."""
        if key not in self._kept:
            self._kept[key] = make()
        found: _T = self._kept[key]
        return found

    def close(self) -> None:
        """Close the device."""
        self._kept.clear()
        self.device.close()


@attrs.frozen
class Check:
    """One case of the suite.

    Attributes:
        id: Level and name, "2/CONV_2D/plain/f32/edge"; what expectations are written for.
        run: Asks a target. Raises `AssertionError` where it is wrong, and lets the target's own
            errors through; both are failures.
        op: The op it is about, "" where it is about none.
    """

    id: str
    run: Callable[[DeviceUnderTest], Outcome] = attrs.field(eq=False, repr=False)
    op: str = ""

    @property
    def level(self) -> int:
        """Which of `LEVELS` it belongs to."""
        return int(self.id[0])
