"""All kernel rules: those in the modules of `tflgpu.kernels`, and those that plugins register."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import attrs

from tflgpu import kernels
from tflgpu.ir.graph import Node
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import ElementwiseExpr, Lowering
from tflgpu.lowering.reason import ReasonCode
from tflgpu.lowering.rule import (
    Accepts,
    ElementwiseRule,
    GroupRule,
    KernelRule,
    PluginFault,
    Rule,
    Site,
    Unsupported,
    refusal_of,
)
from tflgpu.lowering.view import load_broadcast


def elementwise_kernel(expr: ElementwiseExpr) -> Callable[[Lowering], None]:
    """A generator: one invocation computes four channels at one position."""

    def build(low: Lowering) -> None:
        k = low.kernel(low.node.op.lower())
        operands = [v for v in low.node.inputs if v is not None]
        # One that is there twice is read once: no compiler has to find out what x - x is.
        views = {v: low.read(k, low.node.inputs.index(v)) for v in dict.fromkeys(operands)}
        out = low.write(k)
        with each_vector(low, k, out) as (outer, slice_):
            place, low.took_channel = (
                (outer, slice_, out.shape, low.channel),
                low.channel is not None,
            )
            values = {v: k.let(load_broadcast(view, *place), "x") for v, view in views.items()}
            out.store(outer, slice_, expr(k, low.attrs, [values[v] for v in operands]))

    return build


def as_kernel_rule(rule: ElementwiseRule) -> KernelRule:
    """The stand-alone form of an elementwise rule."""
    build = elementwise_kernel(rule.expr)
    return KernelRule(
        rule.op, "elementwise", build, rule.accepts, rank=-1, pointwise=True, owner=rule.owner
    )


_LOG = logging.getLogger("tflgpu")


@cache
def builtin_rules() -> tuple[Rule, ...]:
    """The rules that tflgpu ships; found by looking into the package, never listed."""
    found: list[Rule] = []
    for module in pkgutil.iter_modules(kernels.__path__):
        loaded = importlib.import_module(f"{kernels.__name__}.{module.name}")
        found.extend(getattr(loaded, "RULES", ()))
    return tuple(found)


def without_rules(
    rules: Sequence[Rule], broken: Mapping[tuple[str, str, str], str]
) -> tuple[Rule, ...]:
    """The rules, of which some say no to everything: by (owner, op, name), with the reason."""
    found: list[Rule] = []
    for rule in rules:
        name = "elementwise" if isinstance(rule, ElementwiseRule) else rule.name
        reason = broken.get((rule.owner, rule.op, name))
        if reason is None:
            found.append(rule)
        elif not isinstance(rule, GroupRule):  # its nodes have rules of their own
            found.append(attrs.evolve(rule, accepts=_refuse(reason)))
    return tuple(found)


def _refuse(reason: str) -> Accepts:
    return lambda node, site: reason


class KernelRegistry:
    """The shipped rules and a backend's own, ready for selection."""

    def __init__(self, extra: Sequence[Rule] = ()) -> None:
        self._rules: dict[str, list[KernelRule]] = {}
        self._elementwise: dict[str, list[ElementwiseRule]] = {}
        # A plugin's rules come first, so that at equal rank they win; among plugins the name
        # decides, so that the order in which they were loaded does not.
        plugins = sorted(extra, key=lambda r: "" if isinstance(r, ElementwiseRule) else r.name)
        self._groups: dict[str, list[GroupRule]] = {}
        self._warned: set[str] = set()
        for rule in (*plugins, *builtin_rules()):
            if isinstance(rule, GroupRule):
                self._groups.setdefault(rule.op, []).append(rule)
                continue
            if isinstance(rule, ElementwiseRule):
                self._elementwise.setdefault(rule.op, []).append(rule)
            kernel = as_kernel_rule(rule) if isinstance(rule, ElementwiseRule) else rule
            self._rules.setdefault(rule.op, []).append(kernel)
        for rules in self._rules.values():
            rules.sort(key=lambda r: -r.rank)
        for groups in self._groups.values():
            groups.sort(key=lambda r: -r.rank)

    @property
    def ops(self) -> Mapping[str, Sequence[KernelRule]]:
        """Rules by op, best first."""
        return self._rules

    def groups(self, node: Node) -> Sequence[GroupRule]:
        """The rules for groups that end in a node of its op, best first."""
        return self._groups.get(node.op, ())

    def select(self, node: Node, site: Site) -> KernelRule | Unsupported:
        """The best rule that accepts a node, or why none does."""
        refusals: list[str] = []
        for rule in self._rules.get(node.op, ()):
            reason = refusal_of(rule, node, site)
            if reason is None:
                self._warn_of_faults(refusals, rule)
                return rule
            if reason not in refusals:
                refusals.append(reason)
        if not refusals:
            return Unsupported(f"there is no GPU kernel for {node.op}", ReasonCode.UNSUPPORTED_OP)
        is_fault = all(isinstance(reason, PluginFault) for reason in refusals)
        code = ReasonCode.PLUGIN_FAULT if is_fault else ReasonCode.UNSUPPORTED_FORM
        return Unsupported("; ".join(refusals), code)

    def _warn_of_faults(self, refusals: Sequence[str], taken: KernelRule) -> None:
        """Say, once, that a plugin's rule failed on the question where another takes its place."""
        for reason in refusals:
            if isinstance(reason, PluginFault) and reason not in self._warned:
                self._warned.add(reason)
                _LOG.warning("%s; %s takes its place", reason, taken)

    def elementwise(self, node: Node, site: Site) -> ElementwiseRule | None:
        """The expression by which a node may join another kernel's store, None where it may
        not: a better rule with a kernel of its own comes first."""
        chosen = self.select(node, site)
        if isinstance(chosen, Unsupported) or chosen.name != "elementwise":
            return None
        for rule in self._elementwise.get(node.op, ()):
            if refusal_of(rule, node, site) is None:
                return rule
        return None
