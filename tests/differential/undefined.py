"""Models that LiteRT runs to a result which means nothing, and what is done with them here.

The walk over element types (`tests.differential.element_types`) counts what is listed apart, with
the reason; whatever else it finds has none. An entry says of which models, by the operator and by
what the walk calls them ("few i32->f64 scaled"), and what happens here: they are refused, or
computed as the operator is defined.
"""

from __future__ import annotations

import re

import attrs

REFUSED = "refused"
DEFINED = "as defined"


@attrs.frozen
class Undefined:
    """Some models.

    Attributes:
        op: Pattern of the operator's whole name.
        models: Pattern that is found in a model's label.
        here: `REFUSED` or `DEFINED`.
        why: What LiteRT does.
        varies: Whether its result is another with every content of the memory it comes from.
    """

    op: str
    models: str
    here: str
    why: str
    varies: bool = False

    def covers(self, op: str, label: str, here: str) -> bool:
        """Whether a model is one of these."""
        fits = re.fullmatch(self.op, op) and re.search(self.models, label)
        return bool(fits) and self.here == here


_PACKED = "->(i2|i4|u4)( scaled)?$"
_SMALL = "->(i8|u8|i16)$"

UNDEFINED = (
    Undefined(
        "BATCH_MATMUL|DIV|ELU|EXP|GELU|HARD_SWISH|LEAKY_RELU|MEAN|MUL|PRELU|REDUCE_PROD|RELU|RELU6|"
        "RELU_0_TO_1|RELU_N1_TO_1|SOFTMAX|SUM|TANH", _SMALL, REFUSED,
        "divides by a scale that is not there, and so 0: the same number, whatever the operands, "
        "is made of a NaN or an infinity, of which C++ leaves the integer undefined",
    ),
    Undefined(
        "NOT_EQUAL", "->i16$", REFUSED, "compares quantized bytes only, and writes no result",
        varies=True,
    ),
    Undefined(
        "BITCAST", f"to_(bits|floats).*{_PACKED}", REFUSED,
        "copies the operand's bytes into a packed result that has fewer",
    ),
    Undefined(
        "BITCAST", "to_(bits|floats).*->bool", REFUSED, "makes booleans of bytes that are neither",
    ),
    Undefined(
        "FAKE_QUANT", "->(?!f32)", REFUSED, "takes the bits of all elements for those of f32 "
                                            "numbers",
    ),
    *(
        Undefined(
            "LSH_PROJECTION", " f32->(?!f32)", here, "takes the bits of hashes and weights for "
                                                     "those of f32"
        )
        for here in (REFUSED, DEFINED)
    ),
    Undefined(
        "LSH_PROJECTION", " i32->(?!i32)", REFUSED,
        "writes i32 numbers into a result of another type, beyond its end where it is smaller",
    ),
    *(
        Undefined(
            op, f" i32->(?!{taken})", REFUSED,
            "reads i32 numbers where there are others, beyond their end where they are smaller",
        )
        for op, taken in (("SPLIT", "i32|u32|i64|u64"), ("TRANSPOSE", "i32|u32"))
    ),
    Undefined(
        "BROADCAST_TO|EMBEDDING_LOOKUP|GATHER|HASHTABLE_LOOKUP", _PACKED, DEFINED,
        "copies bytes as if each element had one, beyond the end of packed ones", varies=True,
    ),
    Undefined("STABLEHLO_PAD", _PACKED, DEFINED, "copies bytes as if each element had one"),
    Undefined(
        "MATRIX_DIAG|MATRIX_SET_DIAG", "->(?!(f32|i32|u32|i64|i16|i8|u8)( scaled)?$)", DEFINED,
 "moves what it has no case for as f32 elements",
    ),
    Undefined(
        "SOFTMAX", "->u8 scaled", DEFINED, "stores u8 numbers without their tensor's zero point",
    ),
)  # fmt: skip


def undefined(op: str, label: str, here: str) -> Undefined | None:
    """The entry of a model; None where there is none."""
    return next((u for u in UNDEFINED if u.covers(op, label, here)), None)
