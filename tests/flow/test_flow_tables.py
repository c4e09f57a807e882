"""Tables of keys and values, held against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flow_models import RESOURCE, Op, model, subgraph, tensor, variable
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import ModelError, StateError, TflgpuError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import TensorSpec

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
        for detail, value in zip(interpreter.get_input_details(), feed, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        made = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
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
