"""Tables of keys and values, held against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import ModelError, StateError, TflgpuError
from tflgpu.flow.list_items import with_items_written
from tflgpu.ir.dtypes import Array, DType
from tflgpu.runtime.session import Session
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import OperatorSpec, SubgraphSpec, TensorSpec

from tests.flow.flow_models import (
    I32,
    RESOURCE,
    Op,
    const,
    loop,
    model,
    number,
    subgraph,
    tensor,
    up_to,
    variable,
)
from tests.running import allocate_and_run, results

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

TEXT, I64 = DType.STRING, DType.I64
Results = list[tuple[Any, Any, Any]]
#: LiteRT's references have no tables.
KIND = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES


def array(*data: Any, shape: Sequence[int] | None = None) -> Array:
    found = np.array(data, np.int64 if all(isinstance(d, int) for d in data) else object)
    return found if shape is None else found.reshape(shape)


NONE = np.empty(0, object)


def fixed(name: str, data: Array) -> TensorSpec:
    return TensorSpec(name, data.shape, TEXT if data.dtype.hasobject else I64, data)


def types(key: DType, value: DType, number: int = 7) -> dict[str, int]:
    return {"table_id": number, "key_dtype": key.tflite, "value_dtype": value.tflite}


def table(
    keys: Array, values: Array, default: Array, shape: Sequence[int], *, imports: int = 1
) -> bytes:
    """Looks up what it is given, in a table that a subgraph fills once."""
    k, v = (TEXT if a.dtype.hasobject else I64 for a in (keys, values))
    make = ("HASHTABLE", "", "h", types(k, v))
    fill: Op = ("HASHTABLE_IMPORT", "h k v", "")
    once: list[Op] = [("CALL_ONCE", "", "", {"init_subgraph_index": 1})] if imports else []
    main = subgraph(
        [
            tensor("h", (1,), RESOURCE), tensor("q", shape, k), fixed("d", default),
            tensor("r", shape, v), tensor("n", (1,), I64),
        ],
        [*once, make, ("HASHTABLE_FIND", "h q d", "r"), ("HASHTABLE_SIZE", "h", "n")], "q", "r n",
    )  # fmt: skip
    first = subgraph(
        [tensor("h", (1,), RESOURCE), fixed("k", keys), fixed("v", values)],
        [make, *[fill] * imports], "", "", "init",
    )  # fmt: skip
    return model(main, first)


def runs(interpreter: Any, feeds: Sequence[Sequence[Array]]) -> Results:
    interpreter.allocate_tensors()
    found = []
    for feed in feeds:
        made = results(interpreter, feed)
        found += [(m.dtype, m.shape, m.tolist()) for m in made]
    return found


def mine(
    content: bytes, feeds: Sequence[Sequence[Array]], delegates: list[GpuDelegate] | None = None
) -> Results:
    return runs(Interpreter(model_content=content, experimental_delegates=delegates or []), feeds)


def theirs(content: bytes, feeds: Sequence[Sequence[Array]]) -> Results:
    made = litert.Interpreter(model_content=content, experimental_op_resolver_type=KIND)
    return runs(made, feeds)


TO_NUMBERS = array(b"a", b"", "ü".encode(), b"a"), array(1, 2, 3, 4), array(-1)
TO_TEXTS = array(1, 2, -(2**63), 1), array(b"one", b"", b"least", b"uno"), array(b"?")


@pytest.mark.parametrize("imports", [1, 2])
@pytest.mark.parametrize(
    ("entries", "asked"),
    [
        (TO_NUMBERS, array(b"a", b"", b"x", "ü".encode())),
        (TO_NUMBERS, array("a", "", "ü", shape=(3, 1))),
        (TO_TEXTS, array(1, 2, -(2**63), 2**63 - 1, shape=(2, 2))),
        (TO_TEXTS, np.array(1)),
        (TO_NUMBERS, NONE),
        ((NONE, array(), array(-1)), array(b"a")),
        ((*TO_NUMBERS[:2], np.array(-3)), array(b"z")),
        ((*TO_NUMBERS[:2], array(-3, -4)), array(b"z", b"a")),
        ((array(b"k", b"l", shape=(2, 1)), array(1, 2, shape=(2, 1)), array(-1)), array(b"l")),
    ],
    ids=["texts", "str", "numbers", "one", "none", "empty", "scalar", "two defaults", "rank 2"],
)  # fmt: skip
def test_lookups(entries: tuple[Array, Array, Array], asked: Array, imports: int) -> None:
    content = table(*entries, asked.shape, imports=imports)
    assert mine(content, [[asked]]) == theirs(content, [[asked]])


#: In one subgraph, with keys and values that are given: what is first imported stays.
ALONE = {"make": ("HASHTABLE", "", "h", types(TEXT, I64)), "fill": ("HASHTABLE_IMPORT", "h k v",
""),
         "find": ("HASHTABLE_FIND", "h q d", "r"), "size": ("HASHTABLE_SIZE", "h",
         "n")}  # fmt: skip


def alone(*order: str) -> bytes:
    tensors = [
        tensor("h", (1,), RESOURCE), tensor("q", (1,), TEXT), tensor("k", (1,), TEXT),
        tensor("v", (1,), I64), fixed("d", array(-1)), tensor("r", (1,), I64), tensor("n", (1,),
        I64),
    ]  # fmt: skip
    ops: list[Any] = [ALONE[name] for name in order]
    return model(subgraph(tensors, ops, "q k v", "r n"))


FEEDS = [
    [array(b"a"), array(b"a"), array(1)], [array(b"b"), array(b"b"), array(2)],
    [array(b"a"), array(b"a"), array(7)],
]  # fmt: skip


@pytest.mark.parametrize(
    "order", ["make fill find size", "make size fill find", "make fill size find"]
)
def test_the_first_import_stays(order: str, delegates: list[GpuDelegate]) -> None:
    content = alone(*order.split())
    assert mine(content, FEEDS, delegates) == theirs(content, FEEDS)


def test_tables_outlive_a_reset_and_an_allocation() -> None:
    content, found = alone("make", "fill", "find", "size"), []
    for interpreter in (
        Interpreter(model_content=content, experimental_delegates=[]),
        litert.Interpreter(model_content=content, experimental_op_resolver_type=KIND),
    ):
        made = runs(interpreter, FEEDS[:1])
        interpreter.reset_all_variables()
        made += runs(interpreter, FEEDS[1:])
        found.append(made)
    assert found[0] == found[1]
    assert found[0][4][2] == [1]


def test_a_run_that_fails_fills_nothing() -> None:
    """The second operator that fails is a look-up in a table of another number."""
    tensors = [
        tensor("h", (1,), RESOURCE), tensor("g", (1,), RESOURCE), tensor("q", (1,), TEXT),
        tensor("k", (1,), TEXT), tensor("v", (1,), I64), fixed("d", array(-1)),
        tensor("r", (1,), I64), tensor("b", (), DType.BOOL), tensor("n", (1,), I64),
    ]  # fmt: skip
    other = ("HASHTABLE", "", "g", types(TEXT, I64, 8))
    ops: list[Any] = [
        ALONE["make"], other, ("HASHTABLE_SIZE", "h", "n"), ALONE["fill"],
        ("HASHTABLE_FIND", "g q d", "r"),
    ]  # fmt: skip
    content = model(subgraph(tensors, ops, "q k v", "r n"))
    interpreter = Interpreter(model_content=content, experimental_delegates=[])
    for _ in range(2):
        with pytest.raises(StateError, match=r"HASHTABLE_FIND.*table '8'.*before HASHTABLE_IMPORT"):
            runs(interpreter, FEEDS[:1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (alone("make", "find", "size", "fill"), "before HASHTABLE_IMPORT"),
        (table(array(b"a"), array(b"b"), array(b"c"), (1,)), "i64, the other texts"),
        (table(array(1), array(1), array(1), (1,)), "i64, the other texts"),
        (table(array(b"a", b"b"), array(1), array(-1), (1,)), "differ in shape"),
        (table(array(b"a"), array(1), array(-1), (1,), imports=0), "before HASHTABLE_IMPORT"),
    ],
    ids=["too early", "texts", "numbers", "lengths", "never"],
)
def test_what_is_refused(content: bytes, message: str) -> None:
    probe = Interpreter(model_content=content, experimental_delegates=[])
    dtypes = [d["dtype"] for d in probe.get_input_details()]
    feed = [array(1) if d is np.int64 else array(b"a") for d in dtypes]
    with pytest.raises(RuntimeError, match=r"."):
        theirs(content, [feed])
    with pytest.raises(TflgpuError, match=message):
        mine(content, [feed])


def _two(first: Any, second: Any) -> bytes:
    tensors = [
        tensor("h", (1,), RESOURCE), tensor("g", (1,), RESOURCE), tensor("q", (1,), I64),
        fixed("d", array(b"?")), tensor("r", (1,), TEXT), fixed("k", array(b"a")),
        fixed("v", array(1)),
    ]  # fmt: skip
    find = ("HASHTABLE_FIND", "g q d", "r")
    ops = [first, ("HASHTABLE_IMPORT", "h k v", ""), second, find]
    return model(subgraph(tensors, ops, "q", "r"))


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (
            _two(ALONE["make"], ("HASHTABLE", "", "g", types(I64, TEXT))), StateError,
            "has keys of string and values of i64, and is used as one of i64 and string",
        ),
        (_two(ALONE["make"], ("VAR_HANDLE", "", "g", variable())), ModelError, ("takes a table, "
                                                                               "not variable")),
        (
            _two(("HASHTABLE", "", "h", {"table_id": 1}), ("VAR_HANDLE", "", "g", variable())),
            ModelError,
            "a table of types 0 and 0",
        ),
    ],
    ids=["other types", "variable", "no types"],
)  # fmt: skip
def test_what_does_not_go_together(content: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(RuntimeError, match=r"."):
        theirs(content, [[array(1)]])
    with pytest.raises(error, match=message):
        mine(content, [[array(1)]])


# Loops that fill a list, in the operators that converters write for that.


JOIN = {"axis": 0}
ROUNDS = 5


def _body(**changed: Any) -> SubgraphSpec:
    """``list[i] = x[i] + 1`` of rows of three, and ``i += 1``; with other numbers where told."""
    told = {"step": 1, "zero": 0, "rest": -1, "all": -1, "outputs": "i2 xs new", **changed}
    tensors = [
        tensor("i", (), I32), tensor("xs", (ROUNDS, 3)), tensor("list", (ROUNDS, 3)),
        number("one", 1), number("step", told["step"]), const("row", [1, 3], I32),
        const("flat", [1], I32), const("rest", [told["rest"]], I32), const("none", [told["zero"]],
        I32),
        const("start", [0, 0], I32), const("every", [told["all"], -1], I32), const("added", 1.0),
        tensor("i2", (), I32), tensor("next", (), I32), tensor("x", (3,)), tensor("y", (3,)),
        tensor("item", (1, 3)), tensor("iv", (1,), I32), tensor("size", (2,), I32),
        TensorSpec("before", (1, 1), shape_signature=(-1, -1)), tensor("nv", (1,), I32),
        tensor("begin", (2,), I32),
        TensorSpec("behind", (1, 3), shape_signature=(-1, 3)), tensor("new", (ROUNDS, 3)),
    ]  # fmt: skip
    ops = [
        ("ADD", "i one", "i2"), ("ADD", "i step", "next"), ("GATHER", "xs i", "x", JOIN),
        ("ADD", "x added", "y"), ("RESHAPE", "y row", "item"), ("RESHAPE", "i flat", "iv"),
        ("CONCATENATION", "iv rest", "size", JOIN), ("SLICE", "list start size", "before"),
        ("RESHAPE", "next flat", "nv"), ("CONCATENATION", "nv none", "begin", JOIN),
        ("SLICE", "list begin every", "behind"),
        ("CONCATENATION", "before item behind", "new", JOIN),
    ]  # fmt: skip
    return subgraph(tensors, ops, "i xs list", told["outputs"], "body")


def _body_with_a_slice() -> SubgraphSpec:
    """The same, and ``xs += x[i]`` by a slice from i to i + 1, behind the operators that go."""
    body = _body()
    tensors = [
        *body.tensors,
        const("ones", [1], I32),
        tensor("taken", (3,)),
        tensor("sums", (ROUNDS, 3)),
    ]
    names = [t.name for t in tensors]

    def at(text: str) -> list[int]:
        return [names.index(n) for n in text.split()]

    more = [
        OperatorSpec("STRIDED_SLICE", {"shrink_axis_mask": 1}, at("xs iv nv ones"), at("taken")),
        OperatorSpec("ADD", {}, at("xs taken"), at("sums")),
    ]
    return SubgraphSpec(
        tensors, [*body.operators, *more], body.inputs, at("i2 sums new"), body.name
    )


def _whole(body: SubgraphSpec, limit: int = ROUNDS) -> bytes:
    xs, filled = (tensor(name, (ROUNDS, 3)) for name in ("xs", "list"))
    main = subgraph(
        [
            xs, number("zero", 0), const("empty", np.zeros((ROUNDS, 3))), tensor("io", (), I32),
            tensor("xo", (ROUNDS, 3)), tensor("made", (ROUNDS, 3)),
        ],
        [("WHILE", "zero xs empty", "io xo made", loop(1, 2))], "xs", "made",
    )  # fmt: skip
    cond = up_to(limit, filled)
    cond = SubgraphSpec(
        [cond.tensors[0], xs, *cond.tensors[2:]], cond.operators, cond.inputs, cond.outputs, "cond"
    )
    return model(main, cond, body)


def _rewritten(body: SubgraphSpec) -> list[str]:
    info = read_model(_whole(body)).subgraphs[2]
    return [o.name for o in with_items_written(info).operators]


def test_a_loop_that_fills_a_list_is_one_run(
    by_numpy: list[GpuDelegate], monkeypatch: pytest.MonkeyPatch
) -> None:
    content, runs, run = _whole(_body()), [], Session.run
    monkeypatch.setattr(Session, "run", lambda self: runs.append(self) or run(self))
    ours = Interpreter(model_content=content, experimental_delegates=by_numpy)
    theirs = litert.Interpreter(model_content=content)
    xs = np.arange(ROUNDS * 3, dtype=np.float32).reshape(ROUNDS, 3)
    for interpreter in (ours, theirs):
        allocate_and_run(interpreter, {0: xs})
        np.testing.assert_array_equal(interpreter.get_tensor(5), xs + 1)
    assert len(runs) == 1  # of a block of five rounds


@pytest.mark.needs("cpu_ref")
def test_an_item_outside_the_list() -> None:
    """With `strict` it is refused, as by LiteRT's SLICE; otherwise the last item is what came
    last."""
    content, xs = _whole(_body(), 7), np.arange(21, dtype=np.float32).reshape(7, 3)

    def run(interpreter: Any) -> Any:
        interpreter.resize_tensor_input(0, xs.shape)
        allocate_and_run(interpreter, {0: xs})
        return interpreter.get_tensor(5)

    with pytest.raises(RuntimeError, match="SLICE"):
        run(litert.Interpreter(model_content=content))
    for strict in (True, False):
        with GpuDelegate(backend="cpu_ref", strict=strict) as delegate:
            ours = Interpreter(model_content=content, experimental_delegates=[delegate])
            if strict:
                with pytest.raises(RuntimeError, match=r"SLICE: begin .* outside dimension 0"):
                    run(ours)
            else:
                np.testing.assert_array_equal(run(ours), xs[[0, 1, 2, 3, 6]] + 1)


@pytest.mark.needs("cpu_ref")
def test_strict_fills_a_list() -> None:
    xs = np.arange(ROUNDS * 3, dtype=np.float32).reshape(ROUNDS, 3)
    with GpuDelegate(backend="cpu_ref", strict=True) as delegate:
        ours = Interpreter(model_content=_whole(_body()), experimental_delegates=[delegate])
        allocate_and_run(ours, {0: xs})
        np.testing.assert_array_equal(ours.get_tensor(5), xs + 1)


def test_what_comes_behind_keeps_its_number(by_numpy: list[GpuDelegate]) -> None:
    content, found = _whole(_body_with_a_slice()), []
    ours = Interpreter(model_content=content, experimental_delegates=by_numpy)
    for interpreter in (ours, litert.Interpreter(model_content=content)):
        allocate_and_run(
            interpreter, {0: np.arange(ROUNDS * 3, dtype=np.float32).reshape(ROUNDS, 3)}
        )
        found.append(interpreter.get_tensor(5))
    np.testing.assert_array_equal(*found)


def test_the_two_slices_are_one_update() -> None:
    names = _rewritten(_body())
    assert names.count("DYNAMIC_UPDATE_SLICE") == 1
    assert "SLICE" not in names
    assert len(names) == 11


@pytest.mark.parametrize(
    "changed",
    [
        {"step": 2},  # an item is left out
        {"zero": 1},  # of its columns, all but the first
        {"rest": 2},  # two columns of what is before
        {"all": 1},  # one item of what is behind
        {"outputs": "i2 before new"},  # somebody reads what is before
    ],
    ids=str,
)
def test_what_only_looks_like_it_stays(changed: dict[str, Any]) -> None:
    assert "DYNAMIC_UPDATE_SLICE" not in _rewritten(_body(**changed))
