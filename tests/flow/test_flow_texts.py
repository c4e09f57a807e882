"""Tensors of texts: operators, branches and loops on them, and what an interpreter takes and gives.

All of it is held against LiteRT's kernels (its references have no tables).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter, Model
from tflgpu.errors import InputError, TflgpuError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.base import Fields
from tflgpu.ops.skip_gram import SKIP_GRAM
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import TensorSpec

from tests.flow.flow_models import BOOL, I32, Op, branch, loop, model, number, subgraph, tensor
from tests.running import allocated, first_results

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

TEXT, I64 = DType.STRING, DType.I64
SIX = [b"a", b"", b"ccc", "ü".encode(), b"e\0f", b"\xff"]


def texts(data: Sequence[Any], shape: Sequence[int] | None = None) -> Array:
    found = np.empty(len(data), np.object_)
    found[:] = data
    return found.reshape(len(data) if shape is None else shape)


def fixed(name: str, data: Array, dtype: DType) -> TensorSpec:
    return TensorSpec(name, data.shape, dtype, data)


def one(
    op: str, given: Sequence[Array], results: Sequence[tuple[Sequence[int], DType]],
    constants: Sequence[int] = (), **fields: Any,
) -> bytes:  # fmt: skip
    """A model of one operator, some of whose operands are constants."""
    tensors = []
    for i, array in enumerate(given):
        dtype = TEXT if array.dtype.hasobject else DType.from_numpy(array.dtype)
        is_fixed = i in constants
        tensors.append(
            fixed(f"i{i}", array, dtype) if is_fixed else tensor(f"i{i}", array.shape, dtype)
        )
    inputs = [t.name for t in tensors]
    outputs = [f"o{i}" for i in range(len(results))]
    tensors += [tensor(n, s, d) for n, (s, d) in zip(outputs, results, strict=True)]
    free = " ".join(n for i, n in enumerate(inputs) if i not in constants)
    made = (op, " ".join(inputs), " ".join(outputs), fields)
    return model(subgraph(tensors, [made], free, " ".join(outputs)))


def run(interpreter: Any, feeds: Sequence[Array]) -> list[Array]:
    return first_results(interpreter, feeds)


def theirs(content: bytes, feeds: Sequence[Array]) -> list[Array]:
    kind = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return run(litert.Interpreter(model_content=content, experimental_op_resolver_type=kind), feeds)


def assert_same(
    content: bytes, feeds: Sequence[Array], delegates: list[GpuDelegate] | None = None
) -> None:
    made = run(Interpreter(model_content=content, experimental_delegates=delegates or []), feeds)
    for mine, wanted in zip(made, theirs(content, feeds), strict=True):
        assert type(mine) is type(wanted)
        assert mine.dtype == wanted.dtype
        assert mine.shape == wanted.shape
        assert mine.tolist() == wanted.tolist()


def _i32(*data: int, shape: Sequence[int] | None = None) -> Array:
    return np.array(data, np.int32).reshape(len(data) if shape is None else shape)


V, M = texts(SIX), texts(SIX, (2, 3))
OTHER = texts([b"a", b"q", b"ccc", b"", b"e", b"\xff"], (2, 3))
WORD = np.full((), b"zz", "S2")  # LiteRT reads a scalar object's address for its text

HASHES = np.linspace(-3, 4, 8, dtype=np.float32).reshape(2, 4)

#: Operator, operands, results, which operands are constants, options.
CASES: dict[str, tuple[Any, ...]] = {
    "reshape": ("RESHAPE", [M, _i32(3, -1)], [((3, 2), TEXT)], (1,)),
    "reshape_at_run_time": ("RESHAPE", [M, _i32(3, 2)], [((3, 2), TEXT)]),
    "gather": ("GATHER", [V, _i32(1, 0, 5)], [((3,), TEXT)]),
    "gather_matrix": ("GATHER", [V, _i32(1, 0, 5, 2, shape=(2, 2))], [((2, 2), TEXT)], (0,)),
    "gather_one": ("GATHER", [V, np.array(3)], [((), TEXT)]),
    "gather_none": ("GATHER", [V, _i32()], [((0,), TEXT)]),
    "gather_nd": ("GATHER_ND", [M, _i32(1, 0, 0, 2, shape=(2, 2))], [((2,), TEXT)]),
    "gather_nd_rows": ("GATHER_ND", [M, _i32(1, 0, shape=(2, 1))], [((2, 3), TEXT)]),
    "slice": ("SLICE", [M, _i32(0, 1), _i32(2, 2)], [((2, 2), TEXT)], (1, 2)),
    "slice_at_run_time": ("SLICE", [V, _i32(1), _i32(-1)], [((5,), TEXT)]),
    "backwards": ("STRIDED_SLICE", [V, _i32(5), _i32(0), _i32(-2)], [((3,), TEXT)], (1, 2, 3)),
    "fill_none": ("FILL", [_i32(2, 0), WORD.astype(object)], [((2, 0), TEXT)], (1,)),
    "tile": ("TILE", [M, _i32(2, 1)], [((4, 3), TEXT)], (1,)),
    "expand": ("EXPAND_DIMS", [M, np.array(-1, np.int32)], [((2, 3, 1), TEXT)], (1,)),
    "squeeze": ("SQUEEZE", [texts(SIX, (1, 6, 1))], [((6,), TEXT)]),
    "equal": ("EQUAL", [M, OTHER], [((2, 3), BOOL)]),
    "equal_none": ("EQUAL", [V[:0], V[:0]], [((0,), BOOL)]),
    "not_equal": ("NOT_EQUAL", [M, texts(SIX[:2], (2, 1))], [((2, 3), BOOL)], (1,)),
    "shape": ("SHAPE", [M], [((2,), I64)], (), {"out_type": I64.tflite}),
    "rank": ("RANK", [M], [((), I32)]),
    "hashes": ("LSH_PROJECTION", [HASHES, V], [((8,), I32)], (0,), {"type": 2}),
    "hashes_joined": ("LSH_PROJECTION", [HASHES, M, HASHES[:2, 0]], [((2,), I32)], (0, 2),
    {"type": 1}),
    "by_key": (
        "HASHTABLE_LOOKUP", [_i32(5, 7, 6, 5), _i32(5, 6), V[2:4]], [((4,), TEXT), ((4,),
        DType.U8)],
        (1, 2),
    ),
    "constants": ("TILE", [V, _i32(2)], [((12,), TEXT)], (0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operator(name: str) -> None:
    op, given, results, *rest = CASES[name]
    constants, fields = (*rest, *((), {})[len(rest) :])
    feeds = [a for i, a in enumerate(given) if i not in constants]
    assert_same(one(op, given, results, constants, **fields), feeds)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_skip_gram(size: int, every: bool) -> None:
    rng = np.random.default_rng(size)
    options = {"ngram_size": size, "max_skip_size": size % 2 + 1, "include_all_ngrams": every}
    content = one("SKIP_GRAM", [texts([b""])], [((1,), TEXT)], **options)
    mine = Interpreter(model_content=content, experimental_delegates=[])
    found = [b"", b" a ", b" a b", "ü \tb\vc".encode()]
    found += [bytes(rng.choice(list(b"ab \n\0"), 9).astype(np.uint8)) for _ in range(40)]
    for text in found:
        (made,), (wanted,) = run(mine, [texts([text])]), theirs(content, [texts([text])])
        assert made.tolist() == wanted.tolist(), text


def test_skip_gram_does_not_begin_what_it_cannot_finish() -> None:
    """Of 40 words, 39 with any gaps: 40 groups, and 2 ** 40 beginnings."""
    fields = {"ngram_size": 39, "max_skip_size": 40, "include_all_ngrams": False}
    attributes = SKIP_GRAM.parse(Fields("SKIP_GRAM", fields))
    words = [b"%d" % i for i in range(40)]
    (found,) = SKIP_GRAM.reference(attributes, [texts([b" ".join(words)])])
    left_out = [b" ".join(words[:i] + words[i + 1 :]) for i in reversed(range(40))]
    assert found.tolist() == left_out


def test_skip_gram_takes_the_first_text() -> None:
    options = {"ngram_size": 1, "max_skip_size": 0}
    assert_same(one("SKIP_GRAM", [V[:2]], [((1,), TEXT)], **options), [texts([b"x y", b"z"])])


def test_texts_and_numbers_in_one_model(delegates: list[GpuDelegate]) -> None:
    ops: list[Op] = [
        ("EQUAL", "x word", "hits"), ("CAST", "hits", "ones"), ("MUL", "ones scale", "y"),
        ("SHAPE", "x", "shape", {"out_type": I32.tflite}), ("FILL", "shape word", "words"),
        ("GATHER", "x at", "picked"),
    ]  # fmt: skip
    main = subgraph(
        [
            tensor("x", (6,), TEXT), tensor("scale", (6,)), tensor("at", (2,), I32),
            fixed("word", texts([b"a"], ()), TEXT), tensor("hits", (6,), BOOL), tensor("ones", (6,
            )),
            tensor("y", (6,)), tensor("shape", (1,), I32), tensor("words", (6,), TEXT),
            tensor("picked", (2,), TEXT),
        ],
        ops, "x scale at", "y words picked",
    )  # fmt: skip
    feeds = [
        texts([b"a", b"b", b"a", b"", b"aa", b"a"]),
        np.arange(6, dtype=np.float32),
        _i32(4, 1),
    ]
    assert_same(model(main), feeds, delegates)


A, B = tensor("a", (2,), TEXT), tensor("b", (2,), TEXT)


def test_a_branch() -> None:
    main = subgraph(
        [tensor("c", (), BOOL), A, B, tensor("y", (2,), TEXT)],
        [("IF", "c a b", "y", branch(1, 2))], "c a b", "y",
    )  # fmt: skip
    content = model(main, subgraph([A, B], [], "a b", "a"), subgraph([A, B], [], "a b", "b"))
    for choice in (True, False):
        assert_same(content, [np.array(choice), texts([b"a", b""]), texts([b"c", b"long"])])


@pytest.mark.parametrize("turns", [False, True], ids=["passed on", "turned"])
def test_a_loop(turns: bool, by_numpy: list[GpuDelegate]) -> None:
    state = [tensor("i", (), I32), A]
    cond = subgraph(
        [*state, number("n", 3), tensor("c", (), BOOL)], [("LESS", "i n", "c")], "i a", "c"
    )
    back = {"begin_mask": 1, "end_mask": 1}
    zero, step = fixed("zero", _i32(0), I32), fixed("step", _i32(-1), I32)
    ops: list[Op] = [("ADD", "i one", "j")]
    ops += [("STRIDED_SLICE", "a zero zero step", "b", back)] if turns else []
    body = subgraph(
        [*state, number("one", 1), tensor("j", (), I32), B, zero, step], ops, "i a",
        "j b" if turns else "j a",
    )  # fmt: skip
    main = subgraph(
        [*state, tensor("j", (), I32), B], [("WHILE", "i a", "j b", loop(1, 2))], "i a", "j b"
    )
    content, x = model(main, cond, body), texts([b"a", b"bbb"])
    for start in (0, 1, 5):
        if turns or start > 2:
            assert_same(content, [np.array(start, np.int32), x], by_numpy)
        else:  # LiteRT loses what its body hands on
            made = run(
                Interpreter(model_content=content, experimental_delegates=by_numpy),
                [np.array(start, np.int32), x],
            )
            assert [m.tolist() for m in made] == [3, x.tolist()]


COPY = one("RESHAPE", [V[:2], _i32(1, 2)], [((1, 2), TEXT)], (1,))


@pytest.mark.parametrize(
    "value",
    [
        np.array([b"a\0", b"b\0c"]), np.array(["ü", ""]), np.array(["a", "b"]).astype(">U3"),
        texts([np.bytes_(b"q"), np.str_("w")]), texts([b"a\0", "ü"]),
        texts([b"a", b"x", b"b", b"y"])[::2], np.array([b"a", b"x", b"b", b"y"])[::2],
    ],
    ids=["S", "U", "big-endian U", "scalars", "mixed", "strided", "strided S"],
)  # fmt: skip
def test_what_set_tensor_takes(value: Array) -> None:
    assert_same(COPY, [value])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (texts([None, b"a"]), "NoneType"), (texts([bytearray(b"a"), b"b"]), "bytearray"),
        (texts([b"a", 1.5]), "float"), (texts(["\ud800", b"b"]), "UTF-8"),
        (np.array([1, 2]), "int64"), (texts([b"a", b"b"], (1, 2)), "shape"),
        (texts([b"a", b"b", b"c"]), "shape"),
    ],
    ids=["None", "bytearray", "float", "surrogate", "numbers", "rank", "size"],
)  # fmt: skip
def test_what_set_tensor_refuses(value: Array, message: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        theirs(COPY, [value])
    mine = Interpreter(model_content=COPY, experimental_delegates=[])
    with pytest.raises(InputError, match=message):
        run(mine, [value])


def test_what_was_set_is_kept_and_given_back_as_copies() -> None:
    mine = allocated(Interpreter(model_content=COPY, experimental_delegates=[]))
    assert mine.get_tensor(0).tolist() == [b"", b""]  # LiteRT crashes here
    value = texts([b"a", b"b"])
    for text in (b"c", "d"):  # the second goes the way of what was set before
        value[0] = text
        mine.set_tensor(0, value)
        value[0] = b"changed"
        assert mine.get_tensor(0).tolist() == [text if isinstance(text, bytes) else b"d", b"b"]
    mine.get_tensor(0)[0] = b"changed"
    mine.invoke()
    assert mine.get_tensor(2).tolist() == [[b"d", b"b"]]
    with pytest.raises(InputError, match="no view"):
        mine.tensor(0)()


def test_details_and_resizing() -> None:
    free = one("RESHAPE", [V[:2], _i32(-1)], [((2,), TEXT)], (1,))
    both = [
        Interpreter(model_content=free, experimental_delegates=[]),
        litert.Interpreter(model_content=free),
    ]
    found = []
    for interpreter in both:
        interpreter.resize_tensor_input(0, [3])
        made = run(interpreter, [V[:3]])
        details = (*interpreter.get_input_details(), *interpreter.get_output_details())
        found.append(
            (made[0].tolist(), [(d["dtype"], d["shape"].tolist(), d["name"]) for d in details])
        )
    assert found[0] == found[1]


def test_a_scalar() -> None:
    content = one("RESHAPE", [WORD.astype(object), _i32(1)], [((1,), TEXT)], (1,))
    assert_same(content, [WORD])
    mine = Interpreter(model_content=content, experimental_delegates=[])
    assert run(mine, [np.array("ü", object)])[0].tolist() == ["ü".encode()]


@pytest.mark.parametrize("op", ["CONCATENATION", "SELECT_V2", "PACK", "ADD"])
def test_an_operator_that_takes_none(op: str) -> None:
    given = [np.ones(6, np.bool_), V, V] if op == "SELECT_V2" else [V, V]
    shape = {"CONCATENATION": (12,), "PACK": (2, 6)}.get(op, (6,))
    content = one(op, given, [(shape, TEXT)], **({"values_count": 2} if op == "PACK" else {}))
    with pytest.raises(RuntimeError, match=r"."):
        theirs(content, given)
    with pytest.raises(UnsupportedError, match=f"{op}.*string"):
        run(Interpreter(model_content=content, experimental_delegates=[]), given)


def test_an_index_outside() -> None:
    content = one("GATHER", [V, _i32(6)], [((1,), TEXT)])
    with pytest.raises(InputError, match=r"operator 0 \(GATHER\).*6 is outside \[0, 6\)"):
        run(Interpreter(model_content=content, experimental_delegates=[]), [V, _i32(6)])


def test_damaged_constants() -> None:
    content = bytearray(one("TILE", [V, _i32(2)], [((12,), TEXT)], (0, 1)))
    start = content.index(np.array([6, 32, 33, 33], "<i4").tobytes())
    rng, refused = np.random.default_rng(0), 0
    for _ in range(300):
        damaged = bytearray(content)
        damaged[start + int(rng.integers(0, 42))] = int(rng.integers(0, 256))
        try:
            read_model(bytes(damaged))
            run(Interpreter(model_content=bytes(damaged), experimental_delegates=[]), [])
        except TflgpuError as error:
            refused += 1
            assert "tensor 0" in str(error)
    assert refused > 100


def test_a_constant_that_is_a_result(delegates: list[GpuDelegate]) -> None:
    main = subgraph(
        [tensor("x"), fixed("k", V, TEXT), tensor("y"), tensor("unused", (2,), TEXT)],
        [("ABS", "x", "y")], "x unused", "y k",
    )  # fmt: skip
    assert_same(model(main), [np.array([1, -2], np.float32), V[:2]], delegates)


def test_a_model_without_operators() -> None:
    content = model(subgraph([A], [], "a", "a"))
    made = run(Interpreter(model_content=content, experimental_delegates=[]), [V[:2]])
    assert made[0].tolist() == SIX[:2]


def test_a_model_as_a_function() -> None:
    with Model(COPY) as copy:
        assert copy([b"a\0", "ü"])[0].tolist() == [[b"a\0", "ü".encode()]]
        assert copy(V[2:4])[0].tolist() == [SIX[2:4]]
        with pytest.raises(InputError, match="int64"):
            copy(np.array([1, 2]))
