"""`Target`: what a graph is compiled for: device, rules, options and time model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import attrs

from tflgpu.compiler.limits import tensor_limits, unchecked
from tflgpu.compiler.machines import ROUND_FIGURES, TimeModel
from tflgpu.compiler.node_choice import NodeChoice
from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.references import reference_support
from tflgpu.compiler.stored_numbers import integer_node
from tflgpu.ir.graph import Node
from tflgpu.kernels.registry import KernelRegistry, without_rules
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import Unsupported
from tflgpu.lowering.rule import ElementwiseRule, KernelRule, Rule, Site
from tflgpu.ops.base import OpDef
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.base import Pass, PassContext

#: None where there is no objection to running a node, else the reason.
Objection = Callable[[Node], Unsupported | None]


def no_objection(node: Node) -> Unsupported | None:
    """To nothing."""
    return None


@attrs.frozen(eq=False, slots=False)
class Target:
    """All that decides what becomes of a graph. Nothing in it is a live device, but for functions
    of one.

    Attributes:
        ops: Op definitions by name, those of plugins among them.
        passes: Graph transformations.
        site: The capabilities that kernels may use, the precision, and how whole numbers are
            stored.
        alignment: Bytes to which arena offsets are aligned.
        rules: A backend's kernel rules besides the shipped ones; None where the device runs nodes
            as they are.
        objection: What a device that runs nodes says of one; with kernels, what plugins know of a
            driver's defects.
        numerics: What quantized operators are computed on.
        quantized_allowed: Whether operators on quantized tensors may go to the device.
        rounds_hybrid: Whether float data that meets 8-bit weights is rounded, as TFLite does.
        max_partitions, min_nodes, by_gain: As `tflgpu.compiler.partition.partition`.
        times: What estimates of time are made of.
        in_f32: The file's operators, by index, that are computed in f32 in any precision of
            ``site``; what they make lies as f32 between two kernels.
        choice: Which operators may go to the device at all; None: any.
        strict: Whether nodes stay on the CPU that may have to refuse a number while the model runs.
        memory_limit: Most bytes of all parts' buffers; None = any number.
        saves_memory: Whether the arena is searched longer for a smaller one.
        fuse: Whether several nodes may share a kernel: elementwise ones in the store of the kernel
            that makes their operand, and those that a rule for groups takes.
        spares_broken_rules: A plugin's rule that fails gives way to others; otherwise that is an
            error.
        begin: Told of each kernel of a plan, of most as soon as there is the kernel; of small ones,
            which may be joined to others, at the end. One may be told of twice.
    """

    ops: Mapping[str, OpDef]
    passes: tuple[Pass, ...]
    site: Site
    alignment: int
    rules: tuple[Rule, ...] | None
    objection: Objection = no_objection
    numerics: Numerics = Numerics.FLOAT
    quantized_allowed: bool = True
    rounds_hybrid: bool = True
    max_partitions: int | None = None
    min_nodes: int = 1
    by_gain: bool = False
    times: TimeModel = ROUND_FIGURES
    in_f32: frozenset[int] = frozenset()
    choice: NodeChoice | None = None
    strict: bool = False
    memory_limit: int | None = None
    saves_memory: bool = False
    fuse: bool = True
    spares_broken_rules: bool = False
    begin: Callable[[Kernel], object] = lambda kernel: None

    @classmethod
    def plain(
        cls,
        caps: DeviceCaps,
        precision: Precision,
        *,
        ops: Mapping[str, OpDef] | None = None,
        rules: Sequence[Rule] = (),
        alignment: int = 64,
        numerics: Numerics = Numerics.FLOAT,
    ) -> Target:
        """A target that compiles a graph as it is: without graph passes and without objections.
        ``ops`` are the shipped ones unless given; ``rules`` come beside the shipped ones."""
        known = builtin_ops() if ops is None else ops
        site = Site(caps, precision, numerics.storage_on(caps))
        return cls(known, (), site, alignment, tuple(rules), numerics=numerics)

    @cached_property
    def kernels(self) -> KernelRegistry:
        """The rules, ready for selection."""
        return KernelRegistry(self.rules or ())

    @property
    def pass_context(self) -> PassContext:
        """The target as graph passes see it."""
        return PassContext(self.ops, self.site, self.rules is not None)

    def without_limits(self) -> Target:
        """A copy that allows any number of parts of any size."""
        return attrs.evolve(self, max_partitions=None, min_nodes=1)

    def for_all(self) -> Target:
        """A copy that sends all operators to the device that it can run, also where that is
        slower."""
        return attrs.evolve(self.without_limits(), by_gain=False)

    def unfused(self) -> Target:
        """A copy with a kernel for each operator of the file: no pass merges operators either."""
        return attrs.evolve(self, fuse=False, passes=())

    def without(self, broken: Mapping[tuple[str, str, str], str]) -> Target:
        """A copy without some rules, by (owner, op, name), with the reason."""
        return attrs.evolve(self, rules=without_rules(self.rules or (), broken)) if broken else self

    @property
    def wants_integers(self) -> bool:
        """Whether quantized operators are computed on the numbers as they are stored."""
        return self.numerics is Numerics.INTEGER

    def in_precision(self, precision: Precision) -> Target:
        """A copy that computes all operators in another precision."""
        return attrs.evolve(self, site=attrs.evolve(self.site, precision=precision))

    @cached_property
    def _f32_site(self) -> Site:
        return attrs.evolve(self.site, precision=Precision.F32)

    def site_of(self, node: Node) -> Site:
        """Where a node would run: ``site``, or the same in f32."""
        if self.in_f32 and not self.in_f32.isdisjoint(node.origins):
            return self._f32_site
        return self.site

    def refusal(self, node: Node) -> Unsupported | None:
        """Why a node cannot run on the device, None where it can."""
        if self.rules is None:
            return self.objection(node)
        site = self.site_of(node)
        refused = tensor_limits(node, self.ops.get(node.op), site) or reference_support(
            node, self.ops
        )
        if refused is not None:
            return refused
        reason = self.ops[node.op].device.limits(node) or unchecked(
            node, self.ops, strict=self.strict
        )
        if reason is not None:
            return Unsupported(reason)  # of an op that the device has, in this form
        found = self.kernels.select(node, site)
        return found if isinstance(found, Unsupported) else self.objection(node)

    def in_integers(self, node: Node) -> Node | Unsupported:
        """The operator that computes a quantized node on stored numbers, if a rule takes it; else
        why the node is computed on real numbers."""
        return integer_node(node, self.ops, self.refusal)

    def rule(self, node: Node) -> KernelRule | Unsupported:
        """The rule that makes a node's kernels, or why there is none."""
        return self.kernels.select(node, self.site_of(node))

    def elementwise(self, node: Node) -> ElementwiseRule | None:
        """The expression by which a node may join another's kernel."""
        return self.kernels.elementwise(node, self.site_of(node))
