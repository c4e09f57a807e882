"""All checks of a backend, in the order of their levels, and how each is judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from tflgpu.conformance.contract import device_checks
from tflgpu.conformance.expectations import Expectation, match_expectations, read_expectations
from tflgpu.conformance.facet_checks import facet_checks
from tflgpu.conformance.fuzz import generated_checks
from tflgpu.conformance.graph_checks import graph_checks, integer_checks
from tflgpu.conformance.guard_checks import guard_checks
from tflgpu.conformance.node_checks import node_checks
from tflgpu.conformance.op_checks import op_checks
from tflgpu.conformance.target import LEVELS, Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.errors import TflgpuError
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.plugins.registry import Registry


@attrs.frozen
class CheckFinding:
    """What came of a check.

    Attributes:
        status: "passed", "refused" (the device says no), "inapplicable", "expected" (a known
            failure) or "failed".
        detail: The reason, or what is wrong.
    """

    status: str
    detail: str = ""


def all_checks(ops: Collection[OpDef]) -> tuple[Check, ...]:
    """The checks of ops, in the order of their levels."""
    return (
        *device_checks(),
        *node_checks(),
        *op_checks(ops),
        *facet_checks(ops),
        *generated_checks(ops),
        *graph_checks(),
        *integer_checks(),
        *guard_checks(ops),
    )


@attrs.frozen
class Suite:
    """The checks of a backend and what is expected of them."""

    checks: tuple[Check, ...]
    expected: dict[str, Expectation]

    @classmethod
    def of(cls, registry: Registry, backend: str) -> Suite:
        """Every check.

        Raises:
            DeviceError: there is no such backend.
            PluginError: its plugin failed on its allowances.
            OptionError: its expectations are malformed, or name a case that there is not.
        """
        return cls.of_checks(all_checks(registry.ops().values()), registry, backend)

    @classmethod
    def of_checks(cls, checks: tuple[Check, ...], registry: Registry, backend: str) -> Suite:
        """`all_checks`, which are those of other backends too. Raises as `of`."""
        allowed = registry.conformance_allowances(backend)
        expectations = read_expectations(allowed.expectations)
        return cls(checks, match_expectations(expectations, (c.id for c in checks)))

    @property
    def ops(self) -> frozenset[str]:
        """Every op that there are cases of."""
        return frozenset(c.op for c in self.checks if c.op)

    def select(self, levels: Collection[int] = ()) -> Sequence[Check]:
        """The checks of some levels, of all where none is named."""
        wanted = set(levels or range(len(LEVELS)))
        return [c for c in self.checks if c.level in wanted]

    def judge(self, check: Check, target: DeviceUnderTest) -> CheckFinding:
        """Run a check. A known failure that fails is "expected"; one that passes has failed, unless
        it is one of only some versions."""
        expectation = self.expected.get(check.id)
        try:
            outcome: Outcome = check.run(target)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            if expectation is not None:
                return CheckFinding("expected", str(expectation))
            known = isinstance(error, (AssertionError, TflgpuError))
            text = str(error) if known else f"{type(error).__name__}: {error}"
            return CheckFinding("failed", text)
        if isinstance(outcome, Unsupported):
            return CheckFinding("refused", outcome.reason)
        if isinstance(outcome, NotApplicable):
            return CheckFinding("inapplicable", outcome.reason)
        if expectation is not None and expectation.kind != "version":
            return CheckFinding("failed", f"passes, but was expected to fail ({expectation})")
        return CheckFinding("passed")
