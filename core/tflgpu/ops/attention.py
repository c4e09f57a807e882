"""ATTENTION: softmax(scale * q @ k^T + mask) @ v, the op of the composites
"odml.scaled_dot_product_attention" and "odml.sdpa_transposed".

Not a TFLite op: it stands for composites of a file (`tflgpu.ops.base.Composed`). With B items, T
queries, S keys, N heads of queries and K of keys, of which N is a multiple, and H numbers a head:

    operand   tokens first      heads first
    query     [B, T, N, H]      [B, N, T, H]
    key       [B, S, K, H]      [B, K, S, H]
    value     [B, S, K, D]      [B, K, S, D], or [B, K, D, S]
    mask      broadcast to [B, N, T, S]; floats are added to the scores, of booleans False excludes
    result    [B, T, N, D]      [B, N, T, D]

Sources of names, attributes and shapes: litert-torch's `scaled_dot_product_attention.py` and its
GPU composites, and the documents of LiteRT's delegates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.axes import at_least_f32, present
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Composed,
    Draw,
    Fields,
    FileForm,
    OnDevice,
    OpDef,
    Operand,
    Operands,
    Reading,
    Sample,
    graph_attributes,
)
from tflgpu.ops.composed import draw_all, there
from tflgpu.ops.elementwise import FLOATS, check_dtype
from tflgpu.ops.facets import Batched, Items, Work
from tflgpu.ops.items import rows_of
from tflgpu.values import evolve, frozen

NAME = "ATTENTION"

#: What converters put in the place of scores that a boolean mask excludes.
_FILLS = (-10000.0, float(np.finfo(np.float32).min), -math.inf)
_CAPS = ("logit_cap", "softcap")


@frozen
class PackedRows:
    """An operand whose rows of channels lie in a larger tensor, as queries, keys and values do that
    one layer made.

    Attributes:
        shape: The operand's.
        first: Its first row in the tensor.
        steps: Rows from one neighbour to the next along each of its first three axes.
    """

    shape: Shape
    first: int
    steps: tuple[int, int, int]

    @property
    def last(self) -> int:
        """Its last row in the tensor."""
        return self.first + sum((n - 1) * s for n, s in zip(self.shape, self.steps, strict=False))

    def take(self, tensor: Array) -> Array:
        """The operand."""
        places = sum(
            step * index for step, index in zip(self.steps, np.indices(self.shape[:3]), strict=True)
        )
        taken: Array = tensor.reshape(-1, tensor.shape[-1])[places + self.first]
        return taken


@frozen
class Attention:
    """How the operands lie, and what is done to the scores.

    Attributes:
        scale: Scores are multiplied by it.
        cap: Then they become ``cap * tanh(score / cap)``; 0 = they do not.
        heads_first: Whether the axis of heads comes before that of tokens.
        tokens_last: Whether the tokens of the values are their last axis.
        causal: Whether query t sees no key after t.
        fill: What scores become where a boolean mask is False.
        rows: Where queries, keys and values lie in the node's operands; None = they are these.
    """

    scale: float
    cap: float = 0.0
    heads_first: bool = False
    tokens_last: bool = False
    causal: bool = False
    fill: float = _FILLS[0]
    rows: tuple[PackedRows | None, PackedRows | None, PackedRows | None] = (None, None, None)

    def shapes(self, *operands: Shape) -> tuple[Shape, ...]:
        """Those of queries, keys and values, by the shapes of the node's operands."""
        pairs = zip(operands, self.rows, strict=True)
        return tuple(shape if rows is None else rows.shape for shape, rows in pairs)


@frozen
class AttentionSizes:
    """The sizes of a node's operands, by the names of the module's table."""

    items: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    depth: int
    width: int

    @classmethod
    def of(cls, attributes: Attention, q: Shape, k: Shape, v: Shape) -> AttentionSizes:
        """The sizes; which of them fit together is another question."""
        q, k, v = attributes.shapes(q, k, v)
        head, token = (1, 2) if attributes.heads_first else (2, 1)
        return cls(
            q[0], q[token], k[token], q[head], k[head], q[3], v[2 if attributes.tokens_last else 3]
        )

    @property
    def share(self) -> int:
        """Queries, of all heads, that read the same keys."""
        return self.heads // self.key_heads * self.queries

    @property
    def scores(self) -> Shape:
        """The shape that a mask is broadcast to."""
        return (self.items, self.heads, self.queries, self.keys)

    def operands(self, attributes: Attention) -> tuple[Shape, Shape, Shape, Shape]:
        """Those of the query, the keys, the values and the result."""
        first = attributes.heads_first
        tokens, keys = (self.queries, self.heads), (self.keys, self.key_heads)
        query, made = (
            (self.items, *(tokens[::-1] if first else tokens), wide)
            for wide in (self.depth, self.width)
        )
        key = (self.items, *(keys[::-1] if first else keys), self.depth)
        return query, key, self.values(attributes), made

    def values(self, attributes: Attention) -> Shape:
        """The shape of the values."""
        if attributes.tokens_last:
            return (self.items, self.key_heads, self.width, self.keys)
        if attributes.heads_first:
            return (self.items, self.key_heads, self.keys, self.width)
        return (self.items, self.keys, self.key_heads, self.width)


def _infer(attributes: Attention, operands: Operands) -> list[TensorSpec]:
    if len(operands) not in (3, 4) or any(o is None for o in operands[:3]):
        raise ModelError(f"{NAME} takes a query, keys, values and a mask, got {len(operands)}")
    given = [o for o in operands[:3] if o is not None]
    for operand, rows in zip(given, attributes.rows, strict=True):
        check_dtype(NAME, operand.dtype, FLOATS)
        if operand.dtype is not given[0].dtype or (operand.rank != 4 and rows is None):
            said = ", ".join(str(o.spec) for o in given)
            raise ModelError(f"{NAME}: operands {said}; all are of rank 4")
        if rows is not None and not _holds(operand.shape, rows):
            raise ModelError(f"{NAME}: {operand.spec} has no rows {rows}")
    if attributes.tokens_last and attributes.rows[2] is not None:
        raise ModelError(f"{NAME}: rows of values whose tokens are the last axis")
    q, k, v = attributes.shapes(*(o.shape for o in given))
    sizes = AttentionSizes.of(attributes, *(o.shape for o in given))
    fits = k[0] == sizes.items and k[3] == sizes.depth
    if not fits or v != sizes.values(attributes) or not _divides(sizes):
        said = ", ".join(map(listed, (q, k, v)))
        raise ModelError(f"{NAME}: {said} do not fit together")
    mask = operands[3] if len(operands) == 4 else None
    if mask is not None:
        check_dtype(NAME, mask.dtype, frozenset({given[0].dtype, DType.BOOL}))
        _check_mask(mask.shape, sizes)
    return [TensorSpec((*q[:3], sizes.width), given[0].dtype)]


def _holds(shape: Shape, rows: PackedRows) -> bool:
    """Whether a tensor has such rows."""
    fits = len(rows.shape) == 4 and shape[-1:] == rows.shape[3:]
    return fits and min(rows.first, *rows.steps) >= 0 and rows.last < math.prod(shape[:-1])


def _divides(sizes: AttentionSizes) -> bool:
    return sizes.key_heads > 0 and sizes.heads % sizes.key_heads == 0 and sizes.keys > 0


def _check_mask(shape: Shape, sizes: AttentionSizes) -> None:
    whole = (1,) * (4 - len(shape)) + tuple(shape)
    fits = all(m in (1, s) for m, s in zip(whole, sizes.scores, strict=False))
    if len(whole) != 4 or not fits or whole[3] != sizes.keys:
        raise ModelError(f"{NAME}: a mask of shape {list(shape)} for scores {list(sizes.scores)}")


def _heads_first(array: Array, attributes: Attention) -> Array:
    wide = at_least_f32(array)
    return wide if attributes.heads_first else wide.swapaxes(1, 2)


def _reference(attributes: Attention, arrays: Arrays) -> list[Array]:
    given = present(arrays[0])
    taken = [
        present(a) if rows is None else rows.take(present(a))
        for a, rows in zip(arrays[:3], attributes.rows, strict=True)
    ]
    q, k = (_heads_first(a, attributes) for a in taken[:2])
    v = at_least_f32(taken[2])
    if attributes.tokens_last:
        v = v.swapaxes(2, 3)
    elif not attributes.heads_first:
        v = v.swapaxes(1, 2)
    share = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a, share, axis=1) for a in (k, v))
    scores = np.matmul(q, k.swapaxes(2, 3)) * np.float32(attributes.scale)
    if attributes.cap:
        cap = np.float32(attributes.cap)
        scores = cap * np.tanh(scores / cap)
    mask = arrays[3] if len(arrays) > 3 else None
    if mask is not None:
        is_bool = mask.dtype == np.bool_
        fill = np.float32(attributes.fill)
        scores = np.where(mask, scores, fill) if is_bool else scores + at_least_f32(mask)
    if attributes.causal:
        late = np.arange(scores.shape[3]) > np.arange(scores.shape[2])[:, None]
        scores = np.where(late, np.float32(-np.inf), scores)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares = shares / shares.sum(-1, keepdims=True)
    made = np.matmul(shares, v)
    made = made if attributes.heads_first else made.swapaxes(1, 2)
    return [np.ascontiguousarray(made).astype(given.dtype)]


# Composites


def _which(operands: Sequence[Operand]) -> tuple[int, ...]:
    """Positions of those that matter. Whole numbers say how much of a cache is in use, of which
    what these composites are made of makes nothing."""
    if len(operands) > 3 and not operands[3].dtype.is_int:
        return (0, 1, 2, 3)
    return (0, 1, 2)


def _readings(
    fields: Fields, operands: Operands, scales: Sequence[float], *, transposed: bool
) -> list[Reading]:
    if len(operands) == 5 and operands[4] is None:
        operands = operands[:4]  # how much of a cache is in use, of which nothing is made
    given = there(operands, 3, 5)
    which = _which(given)
    if given[0].rank != 4:
        raise UnsupportedError(f"its query has shape {list(given[0].shape)}, not four axes")
    cap = next((fields.number(c) for c in _CAPS if fields.get(c) is not None), 0.0)
    scale = fields.get("scale")
    found = []
    for one in scales if scale is None else (fields.number("scale"),):
        plain = Attention(one, max(cap, 0.0), transposed, transposed)
        if len(which) == 3:
            found += [plain, evolve(plain, causal=True)]
        elif given[3].dtype is DType.BOOL:
            found += [evolve(plain, fill=fill) for fill in _FILLS]
        else:
            found.append(plain)
    if transposed:
        found += [evolve(reading, tokens_last=False) for reading in found]
    return [Reading(reading, which) for reading in found]


def _read(fields: Fields, operands: Operands) -> list[Reading]:
    q = operands[0] if operands else None
    depth = 1 if q is None or not q.rank else max(1, q.shape[-1])
    return _readings(fields, operands, (1 / math.sqrt(depth), 1.0), transposed=False)


def _read_transposed(fields: Fields, operands: Operands) -> list[Reading]:
    # The layouts that it may name are those that are tried.
    if fields.integer("k_ts_idx", 2) != 2 or fields.integer("v_ts_idx", 3) not in (2, 3):
        raise UnsupportedError("its keys lie in another order than [items, heads, tokens, numbers]")
    return _readings(fields, operands, (1.0,), transposed=True)


def _draw(rng: np.random.Generator, operands: Operands) -> list[Array | None]:
    """With a boolean mask some scores are far below zero, so that it shows what takes the place of
    those that are excluded, and some queries have no key left."""
    drawn = draw_all(rng, operands)
    mask = operands[3] if len(operands) > 3 else None
    if mask is None or mask.dtype is not DType.BOOL or not mask.rank:
        return drawn
    q, k, chosen = drawn[0], drawn[1], drawn[3]
    assert q is not None
    assert k is not None
    assert chosen is not None
    far = rng.random((*q.shape[:-1], 1)) < 0.5
    drawn[0] = np.where(far, -4000 * (1 + np.abs(q)), q).astype(q.dtype)
    drawn[1] = (1 + np.abs(k)).astype(k.dtype)
    chosen &= rng.random((*mask.shape[:-1], 1)) < 0.8
    return drawn


# Samples


def _sample(
    id: str,
    b: int,
    t: int,
    s: int,
    n: int,
    kv: int,
    h: int,
    d: int = 0,
    mask: tuple[int, ...] | None = None,
    mask_type: DType = DType.F32,
    *,
    packed: bool = False,
    **more: Any,
) -> Sample:
    attributes = Attention(0.5, **more)
    shapes = AttentionSizes(b, t, s, n, kv, h, d or h).operands(attributes)[:3]
    if packed:  # as one layer makes all three
        steps = (t * 3 * n, 1, 3 * n) if attributes.heads_first else (t * 3 * n, 3 * n, 1)
        q, k, v = (PackedRows(shape, at * n, steps) for at, shape in enumerate(shapes))
        attributes = evolve(attributes, rows=(q, k, v))
        shapes = ((b, t, 3, n, h),) * 3
    args = [Arg(shape) for shape in shapes]
    if mask is not None:
        args.append(Arg(mask, mask_type, -3, 1))
    return Sample.of(id, attributes, *args, accumulates=h + s)


def _samples() -> list[Sample]:
    return [
        _sample("odd", 2, 3, 7, 3, 3, 5, mask=(2, 1, 3, 7)),
        _sample("groups", 1, 5, 13, 4, 2, 8, 6, cap=2.0),
        _sample("heads_first", 1, 1, 37, 2, 1, 8, heads_first=True, tokens_last=True,
                mask=(1, 1, 1, 37), mask_type=DType.BOOL),
        _sample("causal", 1, 9, 9, 1, 1, 4, heads_first=True, causal=True),
        _sample("long", 1, 2, 300, 1, 1, 12, mask=(300,)),
        _sample("tiles", 1, 20, 37, 4, 2, 24, 40, mask=(1, 1, 20, 37)),
        _sample("many_keys", 1, 2, 1100, 2, 1, 8, mask=(1100,), mask_type=DType.BOOL),
        _sample("packed", 2, 5, 5, 3, 3, 6, packed=True),
        _sample("packed_heads_first", 2, 7, 7, 2, 2, 8, packed=True, heads_first=True),
    ]  # fmt: skip


def _generate(draw: Draw) -> Sample:
    shared, kv = draw.integer(1, 3), draw.integer(1, 2)
    t, s = draw.size(9), draw.size()
    first = draw.choice([False, True])
    mask = draw.choice([None, (1, 1, t, s), (s,)])
    return _sample(
        "drawn", draw.integer(1, 2), t, s, shared * kv, kv, draw.size(9), draw.size(9), mask,
        draw.choice([DType.F32, DType.BOOL]), heads_first=first,
        tokens_last=draw.choice([False, True]) if first else False,
        causal=draw.choice([False, True]), cap=draw.choice([0.0, 1.5]), fill=draw.choice([-3.0,
        -1e4]),
    )  # fmt: skip


def _work(node: Node) -> Work:
    q, k, v = (node.input(i).shape for i in range(3))
    sizes = AttentionSizes.of(node.attrs, q, k, v)
    return Work.of(node, 2 * math.prod(sizes.scores) * (sizes.depth + sizes.width))


def _batch(node: Node, items: Items) -> Batched | str:
    """Items lie along the first axis, which is the composite's own; a mask may be the same for
    all."""
    if any(node.attrs.rows):
        return "its operands lie in one another"
    mask = node.optional_input(3)
    if mask is not None and 3 not in items.operands:
        if len(mask.shape) == 4 and mask.shape[0] != 1:
            return "operand 3 is the same for all items, and has several"
        items = evolve(items, operands=items.operands | {3})
    refused = rows_of(node, items, (0, 1, 2, 3), 1)
    return Batched(node.attrs) if refused is None else refused


_ATTRIBUTES = frozenset({"scale", *_CAPS})
#: How caches lie, and whether the operators before are their updates.
_OF_CACHES = frozenset({"k_ts_idx", "v_ts_idx", "from_cache_update", "is_causal"})
_COMPOSED = (
    Composed(("odml.scaled_dot_product_attention",), _read, _ATTRIBUTES, _draw),
    Composed(("odml.sdpa_transposed",), _read_transposed, _ATTRIBUTES | _OF_CACHES, _draw),
)

OPS = (
    OpDef(
        NAME,
        graph_attributes,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        device=OnDevice(work=_work),
        generate=_generate,
        batch=_batch,
        file=FileForm(composed=_COMPOSED),
    ),
)
