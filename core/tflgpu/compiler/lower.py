"""Makes a plan of a part: chooses rules, groups nodes, sets layouts, assigns memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tflgpu.compiler.build import OverLimit, build_checked, check_limits
from tflgpu.compiler.constants import ConstantItem, Constants
from tflgpu.compiler.fuse import Group, Neighbours
from tflgpu.compiler.join_chains import JoinChains
from tflgpu.compiler.join_moves import JoinMoves
from tflgpu.compiler.join_products import join_products, stack_products
from tflgpu.compiler.join_reads import JoinReads, inlined_in
from tflgpu.compiler.join_row_changes import change_of, join_row_changes
from tflgpu.compiler.join_rows import join_rows
from tflgpu.compiler.levels import Touched, schedule_of
from tflgpu.compiler.match_groups import match_groups
from tflgpu.compiler.plan import (
    ConstRef,
    InputRef,
    OutputRef,
    Plan,
    PlannedDispatch,
    PlannedIO,
    Ref,
)
from tflgpu.compiler.side_by_side import is_small, side_by_side
from tflgpu.compiler.skip_absent import SkipAbsent
from tflgpu.errors import KernelError
from tflgpu.ir.absent import AbsentPositions
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node, Value
from tflgpu.ir.rewrite import merged_origins
from tflgpu.language.budget import MAX_KERNEL, cost
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import Scalar
from tflgpu.lowering.absent import AbsentInPart
from tflgpu.lowering.bodies import KernelBodies
from tflgpu.lowering.inlined import Within
from tflgpu.lowering.layout import Layout, LayoutKind
from tflgpu.lowering.lowering import (
    Binding,
    Constant,
    Dispatch,
    Lowering,
    NewState,
    Temp,
)
from tflgpu.lowering.rule import ElementwiseRule, GroupRule, KernelRule, Site
from tflgpu.lowering.stored_types import storage_of
from tflgpu.ops.moves import Moves
from tflgpu.values import evolve, frozen


@frozen
class LoweringInput:
    """A partition: nodes in topological order between its inputs and outputs.

    ``rules`` and ``views`` are by ``id(node)``: the rule chosen for each node, and the nodes
    that only reinterpret their operand row-major. ``states`` are the nodes' variables, each of one
    node: inputs of the plan behind ``inputs``, and with their new contents outputs behind
    ``outputs``. ``moves`` is what a node does that only moves elements (`Movement.moves`),
    ``keeps_values`` as `Movement.keeps_values`. ``absent`` are positions that may not count; an
    input of the partition says how many. ``begin`` is `Target.begin`.
    """

    nodes: Sequence[Node]
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    rules: Mapping[int, KernelRule]
    elementwise: Callable[[Node], ElementwiseRule | None]
    views: frozenset[int]
    site: Site
    fuse: bool = True
    groups: Callable[[Node], Sequence[GroupRule]] = lambda node: ()
    saves_memory: bool = False
    site_of: Callable[[Node], Site] | None = None
    states: Sequence[Value] = ()
    moves: Callable[[Node], Moves | None] = lambda node: None
    keeps_values: Callable[[Node], bool] = lambda node: False
    absent: AbsentPositions | None = None
    begin: Callable[[Kernel], object] = lambda kernel: None

    def at(self, node: Node) -> Site:
        """Where a node runs: ``site``, in the node's own precision if it has one."""
        return self.site if self.site_of is None else self.site_of(node)


@frozen
class _Placed:
    """A dispatch whose bindings are still tensors."""

    dispatch: Dispatch
    group: int
    origins: tuple[int, ...]


def lower(part: LoweringInput, alignment: int) -> Plan:
    """Make the plan of a partition.

    Raises:
        OverLimit: a kernel is over a limit of the device.
        RuleError: a plugin's rule failed; names the plugin.
        KernelError: a generator broke a rule of the language.
    """
    storage = _Storage(part)
    bodies = KernelBodies()
    groups = _groups(part, storage, bodies)
    placed: list[_Placed] = []
    index = 0
    waiting = groups[::-1]
    normalizations = _normalizations(groups)
    absent = AbsentInPart.of(part.absent, part.inputs, storage.members)
    while waiting:
        group = waiting.pop()
        low = _lowering(group, part.at(group.head), storage, bodies)
        low.absent = absent
        behind = None if group.before or group.stacked else normalizations.get(group.result.id)
        if behind is not None and part.at(behind.head).precision is low.precision:
            low.behind = behind.result, behind.head.attrs.epsilon
        try:
            made = _dispatches(group, part.at(group.head), low)
        except OverLimit:
            if not group.before and not group.inlined and not group.stacked:
                raise
            # Too much for one kernel; each of the nodes may have one of its own all the same.
            waiting += reversed(group.apart(part.rules))
            continue
        if made is None:
            if group.inlined or group.stacked:
                waiting += reversed(group.apart(part.rules))
            else:
                waiting += reversed(group.cut(lambda node: part.rules[id(node)]))
            continue
        nodes = group.nodes
        if behind is not None and low.made_behind:
            waiting.remove(behind)
            nodes += behind.nodes
            made[-1] = evolve(made[-1], label=f"{made[-1].label} + {behind.label}")
        placed += [_Placed(d, index, merged_origins(*nodes)) for d in made]
        index += 1
        for each in made if absent is None else ():  # those for fewer positions are others
            if not is_small(each.kernel, each.groups, part.site.caps):
                part.begin(each.kernel)
    if absent is not None:
        kept = frozenset(v.id for v in part.outputs)
        skip = SkipAbsent(absent, storage.layout, part.site.caps, kept)
        made = skip.apply([item.dispatch for item in placed])
        placed = [evolve(i, dispatch=d) for i, d in zip(placed, made, strict=True)]
    return _assemble(part, storage, placed, alignment)


def halved_values(part: LoweringInput) -> frozenset[int]:
    """The ids of the tensors that lie between two kernels in 16 bits, although they are f32.

    A group that turns out to be too much for one kernel is cut; what lies between its pieces is not
    among them.
    """
    storage = _Storage(part)
    stored = [v for group in _groups(part, storage, KernelBodies()) for v in group.results]
    return frozenset(
        member.id
        for value in stored
        if value.dtype is DType.F32 and storage.layout(value).storage is Scalar.F16
        for member in storage.members(value)
    )


def _groups(part: LoweringInput, storage: _Storage, bodies: KernelBodies) -> list[Group]:
    """The groups of nodes that run as one kernel each."""
    kernels = [n for n in part.nodes if id(n) not in storage.aliased]
    kept = [storage.root(v) for v in part.outputs] + storage.pinned
    groups = [Group(node, part.rules[id(node)]) for node in kernels]
    if not part.fuse:
        return groups
    neighbours = Neighbours(groups, storage.root, kept, part.at)
    match_groups(neighbours, part.groups)
    JoinChains(neighbours, part.elementwise).join()
    if len(neighbours.groups) == 1:
        return neighbours.groups
    join_rows(neighbours, part.elementwise)
    neighbours = Neighbours(neighbours.groups, storage.root, part.outputs, part.at)
    neighbours.join(JoinMoves(neighbours, part.moves))

    def launches(group: Group) -> list[Dispatch] | None:
        try:
            site = part.at(group.head)
            return _dispatches(group, site, _lowering(group, site, storage, bodies))
        except KernelError:
            return None

    neighbours.join(JoinReads(neighbours, part.keeps_values, launches))
    neighbours.join(partial(join_row_changes, neighbours), backwards=True)
    neighbours.join(partial(join_products, neighbours))
    stack_products(neighbours)
    return neighbours.groups


def _normalizations(groups: Sequence[Group]) -> dict[int, Group]:
    """The groups that normalize the rows of a tensor, and do nothing else, by the id of it."""
    return {
        group.head.input(0).id: group
        for group in groups
        if (change := change_of(group)) is not None and change.centred and not group.inlined
    }


def _lowering(group: Group, site: Site, storage: _Storage, bodies: KernelBodies) -> Lowering:
    low = Lowering(
        group.head,
        site.caps,
        site.precision,
        storage.layout,
        group.fused,
        group.before,
        site.integers,
        bodies,
        inlined_in(group, storage.members),
        site.choices,
    )
    low.stacked = tuple(Within(low, each.head, each.fused) for each in group.stacked)
    return low


def _dispatches(group: Group, site: Site, low: Lowering) -> list[Dispatch] | None:
    """The launches of a group; None where a kernel is over its budget for its chain, which its
    head may store in many places."""
    if group.owners:
        build_checked(group, low)
    else:
        group.rule.build(low)
    costs = [cost(item.kernel) for item in low.dispatches]
    if (group.fused or group.stacked) and max(costs, default=0) > MAX_KERNEL:
        return None
    check_limits(group, low.dispatches, costs, site.caps)
    # Whose kernel it is: a device names the dispatch where one fails, or writes outside its
    # buffers.
    owner = group.rule.owner
    label = f"{group.label} ({group.rule} of plugin {owner})" if owner else group.label
    return [evolve(d, label=label) for d in low.dispatches]


class _Storage:
    """Which values share a buffer, and how each lies in it.

    A view node (RESHAPE and the like) makes its result an alias of its operand where the bytes
    are the same; what is left of the view nodes runs as a copy kernel.
    """

    def __init__(self, part: LoweringInput) -> None:
        self._site = part.site
        self._edge = {v.id for v in (*part.inputs, *part.outputs, *part.states)}
        self._precisions = {v.id: part.at(n).precision for n in part.nodes for v in n.outputs}
        made = (v for node in part.nodes for v in node.outputs)
        self._root = {v.id: v for v in (*part.inputs, *part.states, *made)}
        self._members = {key: [value] for key, value in self._root.items()}
        self.aliased: set[int] = set()
        for node in part.nodes:
            if id(node) in part.views and self._try_alias(node):
                self.aliased.add(id(node))

    @property
    def pinned(self) -> list[Value]:
        """Values that several names stand for: no chain may run past them."""
        return [m for members in self._members.values() if len(members) > 1 for m in members]

    def root(self, value: Value) -> Value:
        """The value whose buffer this one lies in."""
        return self._root[value.id]

    def layout(self, value: Value) -> Layout:
        """How a value lies in its buffer.

        Raises:
            KernelError: it is no tensor of the part.
        """
        if value.id not in self._root:
            raise KernelError(f"{value} is no tensor of the part that its kernel would run in")
        return self._layout(value, self._is_edge(self.members(value)))

    def members(self, value: Value) -> list[Value]:
        """All values that share a buffer with this one, itself included."""
        return self._members[self.root(value).id]

    def _is_edge(self, members: Sequence[Value]) -> bool:
        return any(m.id in self._edge for m in members)

    def _layout(self, value: Value, edge: bool) -> Layout:
        if edge:
            return Layout(value.shape, LayoutKind.LINEAR, _at_edge(value, self._site))
        precision = self._precisions[value.id]
        storage = storage_of(value, precision, self._site.caps, self._site.integers)
        return Layout(value.shape, LayoutKind.C4, storage)

    def _try_alias(self, node: Node) -> bool:
        source, result = node.input(0), node.outputs[0]
        if source.is_const or source.dtype is not result.dtype:
            return False
        members = self.members(source) + self.members(result)
        if sum(m.id in self._edge for m in members) > 1:
            return False  # two edges have a buffer each: a copy must run
        edge = self._is_edge(members)
        layouts = [self._layout(m, edge) for m in members]
        if not all(layouts[0].same_bytes(layout) for layout in layouts[1:]):
            return False
        root = self.root(source)
        del self._members[self.root(result).id]
        self._members[root.id] = members
        for member in members:
            self._root[member.id] = root
        return True


def _assemble(
    part: LoweringInput, storage: _Storage, placed: Sequence[_Placed], alignment: int
) -> Plan:
    refs: dict[object, Ref] = {}
    for kind, values in ((InputRef, (*part.inputs, *part.states)), (OutputRef, part.outputs)):
        for i, value in enumerate(values):
            refs[storage.root(value).id] = kind(i)
    for i, value in enumerate(part.states, len(part.outputs)):
        refs[_state_key(value)] = OutputRef(i)

    touched = [_touched(item, storage) for item in placed]
    nbytes = {
        key: _nbytes(binding, storage)
        for item in placed
        for binding in item.dispatch.bindings
        if (key := _key(binding, item, storage)) is not None and key not in refs
    }
    limit = part.site.caps.max_buffer_bytes
    schedule = schedule_of(touched, nbytes, alignment, limit, search=part.saves_memory)
    refs.update(schedule.refs)

    constants: list[ConstantItem] = []

    def planned(item: _Placed) -> PlannedDispatch:
        bound: list[Ref] = []
        for binding in item.dispatch.bindings:
            if isinstance(binding, Constant):
                bound.append(ConstRef(len(constants)))
                constants.append(binding.data)
            else:
                bound.append(refs[_key(binding, item, storage)])
        d = item.dispatch
        return PlannedDispatch(
            d.kernel, d.groups, tuple(bound), d.label, item.origins, d.tuned, d.fewer
        )

    dispatches: list[PlannedDispatch] = []
    for level in schedule.levels:
        made = [planned(placed[i]) for i in level]
        dispatches += side_by_side(made, part.site.caps) if part.fuse else made
    # The largest are what a first run waits for.
    for each in sorted(dispatches, key=lambda d: -cost(d.kernel)):
        part.begin(each.kernel)
    return Plan(
        schedule.arenas,
        alignment,
        Constants(tuple(constants)),
        _edge_io((*part.inputs, *part.states), part.site),
        _edge_io((*part.outputs, *part.states), part.site),
        tuple(dispatches),
    )


def _touched(item: _Placed, storage: _Storage) -> Touched:
    buffers = item.dispatch.kernel.buffers
    bound = [
        (buffer.access, _key(binding, item, storage))
        for buffer, binding in zip(buffers, item.dispatch.bindings, strict=True)
        if not isinstance(binding, Constant)
    ]
    return Touched(
        tuple(key for access, key in bound if access != "write"),
        tuple(key for access, key in bound if access != "read"),
    )


def _nbytes(binding: Binding, storage: _Storage) -> int:
    if isinstance(binding, Temp):
        return binding.layout.nbytes
    return max(storage.layout(m).nbytes for m in storage.members(binding))  # type: ignore[arg-type]


def _state_key(variable: Value) -> object:
    return ("state", variable.id)


def _key(binding: Binding, item: _Placed, storage: _Storage) -> object:
    if isinstance(binding, Constant):
        return None
    if isinstance(binding, Temp):
        return ("temp", item.group, binding.id)
    if isinstance(binding, NewState):
        return _state_key(binding.variable)
    assert isinstance(binding, Value)
    return storage.root(binding).id


def _at_edge(value: Value, site: Site) -> Scalar:
    stored = site.integers.edge(value.dtype, site.caps)
    if stored is None:
        raise KernelError(f"{value.name}: {value.dtype.value} cannot cross to a device")
    return stored


def _edge_io(values: Sequence[Value], site: Site) -> tuple[PlannedIO, ...]:
    found = []
    for value in values:
        storage = _at_edge(value, site)
        dtype = DType.from_numpy(storage.numpy)
        nbytes = value.elements * storage.itemsize
        found.append(PlannedIO(value.name, value.shape, dtype, nbytes))
    return tuple(found)
