"""From a model file to a graph: every operator parsed, every shape inferred anew.

Operators that are not understood become nodes whose attributes are `UnknownOp`, so that a report
can name all of them at once. Operators that compute shapes are evaluated here: a graph has no
runtime shapes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from tflgpu.errors import DynamicError, InputError, ModelError, UnsupportedError
from tflgpu.errors.blame import clipped, quoted
from tflgpu.ir.budget import bytes_of, check_size, spend
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import FileOptions, Graph, Node, TensorSpec, Value
from tflgpu.ir.stored_reals import ConstantData
from tflgpu.lowering.reason import NeedsConstant, Unsupported
from tflgpu.ops.base import Fields, OpDef, Operand, graph_attributes, known_operands
from tflgpu.ops.unknown import ForeignOp, UnknownOp
from tflgpu.tflite.blocks import by_blocks, of_bf16, real_numbers
from tflgpu.tflite.bodies import RUN_BY_HOST, run_by_host, runs_subgraphs
from tflgpu.tflite.evaluate import FAILURES, evaluate, operands_of
from tflgpu.tflite.model_file import ModelFile, OperatorInfo, SubgraphInfo, TensorInfo
from tflgpu.tflite.narrow import Narrow, held_type
from tflgpu.tflite.result_types import settled
from tflgpu.tflite.schema import BUILTIN_CODES
from tflgpu.tflite.states import check_states, kept_after_all
from tflgpu.tflite.tensor_fields import tensor_fields

_LOG = logging.getLogger("tflgpu")

#: What the results of an operator are that nobody here defines, from somebody who has kernels for
#: it; or why they cannot run it. Its operands' shapes are known.
Foreign = Callable[[Node], Sequence[TensorSpec] | Unsupported]


def build_graph(
    model: ModelFile,
    subgraph: int,
    ops: Mapping[str, OpDef],
    shapes: Mapping[int, tuple[int, ...]] | None = None,
    warn: Callable[[str], object] = _LOG.warning,
    foreign: Foreign | None = None,
) -> Graph:
    """The graph of one subgraph of a model.

    Args:
        model: The file.
        subgraph: Which of its subgraphs.
        ops: Op definitions by name.
        shapes: New shapes of inputs, by tensor index; the shapes of everything that depends on
            them are inferred.
        warn: Takes what is wrong with the file but does no harm; by default the log.
        foreign: Who is asked for operators that are not understood. A node that they can run has
            `ForeignOp` attributes.

    Returns:
        A graph whose value ids are tensor indices and whose constants view the file.

    Raises:
        ModelError: The subgraph is malformed: an operator's operands or options are not what any
            version of it takes, a tensor is read before it is made or made twice, or a type in
            the file is not the one its operator makes. (A shape in the file that is not the one
            its operator makes is replaced by that, as in LiteRT; a warning says so.)
        InputError: ``shapes`` names a tensor that is not an input, or a negative size.
    """
    bodies = model.subgraphs
    return build_subgraph(bodies[subgraph], ops, shapes, warn, foreign, bodies)


def build_subgraph(
    info: SubgraphInfo,
    ops: Mapping[str, OpDef],
    shapes: Mapping[int, tuple[int, ...]] | None = None,
    warn: Callable[[str], object] = _LOG.warning,
    foreign: Foreign | None = None,
    bodies: Sequence[SubgraphInfo] = (),
    unknown: Collection[int] = (),
) -> Graph:
    """The graph of a subgraph that need not come from a file. Operators may run ``bodies``, the
    model's subgraphs; the shapes of ``unknown`` inputs are only the file's."""
    info = settled(info, ops)
    graph = Graph(info.name or "main")
    edge = {*info.inputs, *info.outputs}
    spend("nodes", len(info.tensors), "the tensors of a subgraph")
    for tensor in info.tensors:
        _add_tensor(graph, tensor, info.tensors, edge)
    graph.inputs = [graph.values[i] for i in info.inputs]
    graph.outputs = [graph.values[i] for i in info.outputs]
    for value in graph.inputs:
        if value.is_const:
            raise ModelError(f"{value.named} is an input of the model and has a constant")
    for index in unknown:
        graph.values[index].shape_known = False
    resized = _resize_inputs(graph, shapes or {})
    for value in (*graph.inputs, *(v for v in graph.values.values() if v.is_variable)):
        check_size(value.shape, value.dtype, value.named)
    building = _Building(graph, info, ops, resized, foreign, bodies)
    for operator in info.operators:
        building.add(operator)
    if building.stale:
        warn(
            f"tflgpu: {len(building.stale)} shapes in the file are not what the operators make and "
            f"were inferred anew; the first: {building.stale[0]}"
        )
    for output in graph.outputs:
        if output.id not in building.ready:
            raise ModelError(f"{output.named} is an output of the model, but nothing makes it")
        if output.id in building.spent:
            raise UnsupportedError(
                f"{output.named} is a result that others read and is made twice: by operator "
                f"{building.made_by[output.id]}, and by {building.spent[output.id]}, whose state "
                "it is"
            )
    graph.prune()
    return graph


def _add_tensor(
    graph: Graph, info: TensorInfo, tensors: Sequence[TensorInfo], edge: Collection[int]
) -> None:
    data, dtype = info.data, held_type(info, edge)
    if data is not None and info.sparsity is not None:
        where = f"the sparse tensor {info.index} ({quoted(info.name)})"
        check_size(info.shape, dtype, where)
        spend("nbytes", bytes_of(info.shape, dtype), where)
        data = info.sparsity.densify(data, info.shape)
        data.setflags(write=False)
    if data is not None and info.dtype is DType.BF16:
        data, dtype = of_bf16(data), DType.F32
        data.setflags(write=False)
    held: ConstantData | None = data
    quant, name = info.quantization, info.name
    if data is not None and info.blockwise is not None:
        real = real_numbers(info, tensors)
        if not isinstance(real, Unsupported):  # else a node that reads it says why it cannot
            held, dtype, quant = real, DType.F32, None
    value = graph.add_value(info.shape, dtype, name=name, data=held, quant=quant, id=info.index)
    value.is_variable = info.is_variable
    value.packed = info.dtype if info.dtype.packed else None
    if info.shape_signature != info.shape:
        value.shape_signature = info.shape_signature


def _resize_inputs(graph: Graph, shapes: Mapping[int, tuple[int, ...]]) -> bool:
    inputs = {v.id: v for v in graph.inputs}
    resized = False
    for index, shape in shapes.items():
        if index not in inputs:
            raise InputError(
                f"tensor {index} is not an input and cannot be resized; inputs are {sorted(inputs)}"
            )
        if any(size < 0 for size in shape):
            raise InputError(f"{inputs[index].named}: cannot be resized to {tuple(shape)}")
        resized |= inputs[index].shape != tuple(shape)
        inputs[index].shape = tuple(int(size) for size in shape)
    return resized


class _Building:
    """The graph so far, and which of its tensors have been made."""

    def __init__(
        self,
        graph: Graph,
        info: SubgraphInfo,
        ops: Mapping[str, OpDef],
        resized: bool,
        foreign: Foreign | None,
        bodies: Sequence[SubgraphInfo],
    ) -> None:
        self.graph = graph
        self.info = info
        self.ops = ops
        self.resized = resized
        self.foreign = foreign
        self.bodies = bodies
        self.narrow = Narrow(graph, info.tensors)
        self.stale: list[str] = []
        self.used: set[int] = set()  # read or written so far
        self.spent: dict[int, str] = {}  # made by an operator, then changed in place by which one
        self.makers: dict[int, tuple[OperatorInfo, Node]] = {}  # of variables
        given = {v.id for v in graph.values.values() if v.is_const or v.is_variable}
        self.ready = {v.id for v in graph.inputs} | given
        self.made_by = {i: op.index for op in reversed(info.operators) for i in op.outputs}

    def add(self, operator: OperatorInfo) -> None:
        """Make the operator's node, or evaluate it."""
        where = f"operator {operator.index} ({clipped(operator.name)})"
        spend("nodes", 1 + len(operator.inputs) + len(operator.outputs), where)
        inputs = [self._input(i, where) for i in operator.inputs]
        outputs = [self._output(i, where) for i in operator.outputs]
        node = Node(
            operator.name,
            None,
            list(inputs),
            outputs,
            operator.version,
            (operator.index,),
            _source(operator, self.info, self.bodies, self.graph),
        )
        definition = self.ops.get(operator.name)
        is_namesake = operator.is_custom and operator.name in BUILTIN_CODES
        if is_namesake or (definition is not None and definition.parse is graph_attributes):
            definition = None  # an author's own op; what has only its name may not stand for it
        if definition is not None and definition.owner:
            where += f" of plugin {definition.owner}"
        narrow = self.narrow.refuses(node, definition)
        reason = _why_not(operator, node, definition) or self._blocks(node) or narrow
        is_host = _is_hosts(operator, definition)
        unknown = None if reason is None else UnknownOp(reason, host=is_host)
        if (
            unknown is not None and not is_namesake and narrow is None
        ):  # others would see other types
            unknown = self._pass_on(node, unknown, where)
        late = next((v for v in inputs if v is not None and v.id in self.spent), None)
        if late is not None:
            unknown = UnknownOp(
                f"{late.named} is read after {self.spent[late.id]}, whose state it is"
            )
        if definition is not None and unknown is None:
            unknown = self._define(operator, node, definition, where)
        if unknown is not None:
            node.attrs = unknown
        is_foreign = isinstance(unknown, ForeignOp)
        if not is_foreign and (unknown is not None or _placeholder(node) is not None):
            # Said here once, for all that comes after: such a shape is a placeholder.
            for value in outputs:
                value.shape_known = False
        self.ready.update(v.id for v in outputs)
        variables = [v.id for v in outputs if self.info.tensors[v.id].is_variable]
        self.makers.update(dict.fromkeys(variables, (operator, node)))
        stored = []
        if definition is not None and unknown is None:
            stored = self.narrow.store(node, definition)
        if definition is None or unknown is not None or not evaluate(node, definition, where):
            self.graph.nodes.append(node)
        for each in stored:
            if not evaluate(each, self.ops[each.op], where):
                self.graph.nodes.append(each)

    def _blocks(self, node: Node) -> str | None:
        """Why a tensor that is quantized by blocks cannot be read; None where all can."""
        tensors = self.info.tensors
        for value in (*node.inputs, *node.outputs):
            if value is None or value.id >= len(tensors):
                continue  # what is read in the place of an input has no blocks
            if by_blocks(value, tensors[value.id]):
                found = real_numbers(tensors[value.id], tensors)
                assert isinstance(found, Unsupported)
                return f"{value.named}: {found.reason}"
        return None

    def _define(
        self, operator: OperatorInfo, node: Node, definition: OpDef, where: str
    ) -> UnknownOp | None:
        """Parse the options and infer the shapes; the reason where this op is beyond tflgpu."""
        values = {**operator.fields, **tensor_fields(node)}
        fields = Fields(operator.name, values, operator.custom_options)
        operands = known_operands(node.inputs)
        try:
            node.attrs = definition.parse(fields)
            self._refit(node, definition, operands)
            specs = definition.infer(node.attrs, operands)
        except UnsupportedError as error:
            unknown = UnknownOp(str(error), dynamic=isinstance(error, DynamicError))
            return self._pass_on(node, unknown, where)
        except ModelError as error:
            placeholder = _placeholder(node)
            if placeholder is not None:  # which need not fit together with anything
                maker = self.made_by.get(placeholder.id)
                made = "" if maker is None else f": operator {maker} makes it"
                return UnknownOp(
                    f"the shape of {placeholder.named} is not known before the model runs{made}",
                    dynamic=True,
                )
            raise ModelError(f"{where}: {error}{operands_of(node)}") from error
        except FAILURES as error:
            raise ModelError(
                f"{where}: {type(error).__name__}: {error}{operands_of(node)}"
            ) from error
        if len(specs) != len(node.outputs):
            raise ModelError(
                f"{where}: makes {len(specs)} tensors, but the file gives it {len(node.outputs)}"
            )
        states = check_states(node, definition, self.info.tensors, where)
        if not isinstance(states, Unsupported):
            states = self._keep(states)
        if isinstance(states, Unsupported):
            return UnknownOp(states.reason)
        self.spent.update(dict.fromkeys(states, node.label))
        known = all(v.shape_known for v in node.inputs if v is not None)
        for value, spec in zip(node.outputs, specs, strict=True):
            self._settle(value, spec, where, known)
        return None

    def _refit(self, node: Node, definition: OpDef, operands: list[Operand | None]) -> None:
        """Replace what constants of the file say of shapes that are others here. What operators
        computed is as it should be, or LiteRT's kernels refuse it too."""
        if definition.file.refit is None:
            return
        for i, data in definition.file.refit(node.attrs, operands, self.resized).items():
            old = node.input(i)
            if old.id < len(self.info.tensors) and self.info.tensors[old.id].data is not None:
                data.setflags(write=False)
                value = self.graph.add_value(data.shape, old.dtype, name=old.name, data=data)
                node.inputs[i], operands[i] = value, Operand(value.spec, data)

    def _keep(self, states: tuple[int, ...]) -> tuple[int, ...] | Unsupported:
        """Those of the states that are no variables even so: others are made once and kept."""
        begins: list[int] = []
        kept: list[int] = []
        for index in states:
            value, made = self.graph.values[index], self.makers.get(index)
            if made is None:
                begins.append(index)
                continue
            found = kept_after_all(value, *made, self.ops.get(made[1].op), self.info)
            if isinstance(found, Unsupported):
                return found
            (kept if found else begins).append(index)
        for index in kept:
            value, node = self.graph.values[index], self.makers[index][1]
            value.is_variable, value.data = True, None
            self.graph.nodes = [n for n in self.graph.nodes if n is not node]
        return tuple(begins)

    def _pass_on(self, node: Node, unknown: UnknownOp, where: str) -> UnknownOp:
        """Ask who may have kernels for an operator that is not understood."""
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        if self.foreign is None or unknown.dynamic:
            return unknown
        if _placeholder(node) is not None or not all(v.dtype.has_numpy for v in values):
            return unknown
        found = self.foreign(node)
        if isinstance(found, Unsupported):
            late = isinstance(found, NeedsConstant) and node.op not in self.ops
            return UnknownOp(f"{unknown.reason}; {found.reason}", dynamic=late, host=unknown.host)
        for value, spec in zip(node.outputs, found, strict=True):
            self._settle(value, spec, where, known=True)
        return ForeignOp(unknown.reason, host=unknown.host)

    def _input(self, index: int, where: str) -> Value | None:
        if index < 0:
            return None
        value = self.graph.values[index]
        self.used.add(index)
        if index not in self.ready:
            maker = self.made_by.get(index)
            why = (
                "which is no input, constant or result of any operator"
                if maker is None
                else f"which operator {maker} makes only later"
            )
            raise ModelError(f"{where} reads {value.named}, {why}")
        return self.narrow.read(value)

    def _output(self, index: int, where: str) -> Value:
        value = self.graph.values[index]
        if value.is_variable and index not in self.used and value not in self.graph.inputs:
            # Written in every run before anything reads it: it carries nothing from run to run.
            value.is_variable = False
        elif index in self.ready:
            raise ModelError(f"{where} writes {value.named}, which is {self._is(value)}")
        self.used.add(index)
        return value

    def _is(self, value: Value) -> str:
        """Describes a tensor that an operator must not write."""
        if value in self.graph.inputs:
            return "an input of the model"
        if self.info.tensors[value.id].data is not None:
            return "a constant"
        if value.is_variable:
            return "a variable (a state tensor) that an earlier operator reads"
        return f"the result of operator {self.made_by[value.id]} already"

    def _settle(self, value: Value, spec: TensorSpec, where: str, known: bool) -> None:
        """Give a result its inferred shape, and note where the file says otherwise; that says
        nothing where the operands' shapes are not ``known``."""
        if spec.dtype is not value.dtype:
            raise ModelError(
                f"{where}: {value.named} is {value.dtype.value} in the file, but the operator "
                f"makes {spec.dtype.value}"
            )
        info = self.info.tensors[value.id]
        fixed = -1 not in info.shape_signature and (bool(info.shape) or info.has_rank)
        if fixed and known and not self.resized and spec.shape != value.shape:
            # Tools that give a model new input shapes often leave the others as they were. What
            # an operator makes follows from its operands alone, and LiteRT does not look here.
            self.stale.append(
                f"{where}: {value.named} has shape {list(value.shape)} in the file, but the "
                f"operator makes {list(spec.shape)}"
            )
        check_size(spec.shape, spec.dtype, f"{where}: {value.named}")
        value.shape = spec.shape


def _source(
    operator: OperatorInfo, info: SubgraphInfo, bodies: Sequence[SubgraphInfo], graph: Graph
) -> FileOptions:
    gap, place = operator.gap, operator.place
    for index in (*operator.inputs, *operator.outputs):
        if index >= 0 and by_blocks(graph.values[index], info.tensors[index]):
            gap, place = f"tensor {index} is quantized by blocks", None
    run = bodies if runs_subgraphs(operator.fields) else ()
    between = tuple(None if i < 0 else graph.values[i] for i in operator.intermediates)
    options = operator.is_custom, operator.fields, operator.custom_options
    return FileOptions(operator.name, *options, run, gap, place, between, operator.composites)


def _placeholder(node: Node) -> Value | None:
    """An operand of which only the file says a shape."""
    return next((v for v in node.inputs if v is not None and not v.shape_known), None)


def _is_hosts(operator: OperatorInfo, definition: OpDef | None) -> bool:
    """Whether an interpreter runs an operator, where it is what its definition is of."""
    is_known = not operator.is_custom if definition is None else definition.contents.texts
    return is_known and run_by_host(operator)


def _why_not(operator: OperatorInfo, node: Node, definition: OpDef | None) -> str | None:
    """Why tflgpu cannot run the operator with any options; None where it can."""
    if _is_hosts(operator, definition):
        what = "control flow and variables" if operator.name in RUN_BY_HOST else "texts (strings)"
        return f"{what} are the interpreter's own"
    if definition is None and runs_subgraphs(operator.fields):
        return "control flow (an operator that runs other subgraphs) of this kind is not supported"
    if definition is None:
        kind = "custom op" if operator.is_custom else "op"
        return f"{kind} {clipped(operator.name)} is not defined; a plugin can define it"
    if operator.version > definition.file.max_version:
        return (
            f"version {operator.version} of {operator.name} is newer than "
            f"{definition.file.max_version}, the newest understood"
        )
    for value in (*node.inputs, *node.outputs):
        if value is not None and not value.dtype.has_numpy:
            return f"{value.named} is of type {value.dtype.value}, which is not supported"
    return None
