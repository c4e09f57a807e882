"""Every way in which tflgpu may differ from LiteRT without being wrong: a name, a reason, a rule.

The first class whose rule holds is taken; a case that is in none is a finding. A rule looks at what
can be seen of the case, as narrowly as the reason allows: a class is a reason, not a rug.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import attrs

from tests.differential.fact import Fact


@attrs.frozen
class Class:
    """A kind of outcome.

    Attributes:
        name: short.
        reason: why it is as it should be.
        rule: whether a case is of this kind.
    """

    name: str
    reason: str
    rule: Callable[[Fact], bool]


def _says(pattern: str, *, error: str = "") -> Callable[[Fact], bool]:
    compiled = re.compile(pattern, re.DOTALL)
    return lambda f: (
        f.ours.state == "refused"
        and (not error or f.ours.error == error)
        and compiled.search(f.ours.message) is not None
    )


def _litert_says(pattern: str) -> Callable[[Fact], bool]:
    compiled = re.compile(pattern, re.DOTALL)
    return lambda f: (
        f.theirs.state == "refused"
        and f.ours.accepted
        and compiled.search(f.theirs.message) is not None
    )


def _foreign_options(fact: Fact) -> bool:
    """Whether the options that ours found are not those with the operator's own name."""
    said = re.search(
        r"operator \d+ \((\w+)\): options of type (?:\d+ are not in|(\w+)Options where \w+ belong)",
        fact.ours.message,
    )
    own = "" if said is None else said[1].replace("_", "").lower()
    return said is not None and (said[2] or "").lower() != own


def _spare_bytes(fact: Fact) -> int:
    """Bytes of a buffer, of which ours complains, beyond those of its tensor."""
    said = re.search(r"tensor \d+ .*: buffer of ([\d,]+) bytes for ([a-z]+)(\d*) of shape "
                     r"\(([\d, ]*)\)",
                     fact.ours.message)  # fmt: skip
    if said is None:
        return 0
    shape = [int(n) for n in said[4].split(",") if n.strip()]
    bytes_of_one = int(said[3]) // 8 if said[3] else 1
    return int(said[1].replace(",", "")) - math.prod(shape) * bytes_of_one


def _unsupported(pattern: str) -> Callable[[Fact], bool]:
    """Refused as beyond tflgpu, for such a reason, with the name of an operator of the model."""
    compiled = re.compile(pattern)
    return lambda f: (
        f.ours.state == "refused"
        and f.ours.error in ("UnsupportedError", "DynamicError")
        and compiled.search(f.ours.message) is not None
        and any(name in f.ours.message for name in f.ops)
    )


#: What a refusal has to name: the operator, the tensor, or the place in the file.
_NAMES = re.compile(
    r"operator \d+|operators: #\d+|tensor \d+|[Tt]he (in|out)put|subgraph|model of [\d,]+ "
    r"bytes|^[A-Z0-9_]{3,}: |#\d+ \w+:"
)

_FINE = ("ok", "refused", "skipped")

_TYPES = (
    r"is unsupported by op|only supports|only currently supports|not "
    r"supported|unsupported|Unsupported|"
    r"Unknown index "
    r"output|is_supported_type|(input|bias|filter|weight|data|lookup|output|value|positions)"
    r"(->|_)?(type|data_type)? ?(!=|==) ?|Output shape is \w+, not|type .*(!=|==)|currently only|"
    r"is_optional_bias_float|Only .*(type|supported)|(MEAN|SUM|REDUCE_\w+)\) failed to "
    r"prepare|requires float|"
    r"Does not support type|permutations array is out of bounds|not currently supported|Unknown "
    r"input type: \d+, only|Unknown shape output data type"
)

_EQUAL = (
    Class("equal: both refuse", "the same answer", lambda f: (
        f.ours.state == "refused" and f.theirs.state == "refused"
        and _NAMES.search(f.ours.message) is not None)),
    Class("equal: both run", "the same answer, as close as rounding lets it be", lambda f: (
        f.ours.accepted and f.theirs.accepted and f.difference is None)),
    Class("too large to be compared", "inputs or outputs of millions of numbers", lambda f: (
        "skipped" in (f.ours.state, f.theirs.state) and f.ours.state in _FINE)),
    Class("LiteRT crashes", "nothing to compare with; ours answers", lambda f: (
        f.ours.state in _FINE and f.theirs.state in ("crash", "hang", "memory"))),
)  # fmt: skip

#: LiteRT runs it, ours says no.
_REFUSED = (
    Class("unsupported: what is only known while the model runs", "sizes, axes and shapes have "
          "to be known before: a graph has no shapes at run time", _unsupported(
              r"must be a constant|only known while the model runs|not known before the model|"
              r"DynamicError")),
    Class("unsupported: a variable of another operator", "only an operator with state keeps one",
          _unsupported(r"is a variable \(a state tensor\)|variable is several")),
    Class("unsupported: an op, a version, options or a type", "well-formed, but not run here; "
          "the error names operator and reason", _unsupported(
              r"is not defined; a plugin|newer than \d+|control flow|is not supported|"
              r"are not supported|not supported|only|cannot|needs|takes")),
    Class("LiteRT takes a wrong type in the file", "it computes in the type of one tensor and "
          "reads another's bytes, or leaves the result as it was; ours says that the file is wrong",
          _says(r"tensor .* is \w+ in the file, but the operator makes", error="AllocationError")),
    Class("LiteRT takes a tensor that is written twice or before it is made",
          "what it reads there is left to chance; ours says that the graph is no graph",
          _says(r"writes tensor .* which is an input, a constant or another|makes only later")),
    Class("LiteRT takes options that the schema does not define",
          "an activation or padding of no meaning is taken for none",
          _says(r"unknown (fused activation|padding) code")),
    Class("LiteRT takes a damaged file", "it does not look at what it does not use: signatures of "
          "shapes, intermediates, buffers elsewhere",
          _says(r"shape signature .* for shape|intermediate \d+ is tensor|external buffer|vtable "
                r"of \d+ bytes")),
    Class("LiteRT takes PADV2 without the value to pad with", "it pads with zeros, as PAD does",
          _says(r"PADV2(: operand 2 is absent| takes 3 operands, got 2)", error="AllocationError")),
    Class("LiteRT takes results that the operator does not make", "and leaves them as they were",
          _says(r"makes \d+ tensors, but the file gives it", error="AllocationError")),
    Class("LiteRT takes a depth of 8 bits for 32", "it reads three bytes of what lies behind it",
          _says(r"ONE_HOT: depth \(operand 1\) is [iu]8", error="AllocationError")),
    Class("LiteRT takes operands without elements", "there is nothing to compute in a product over "
          "no elements or a batch of none; ours refuses empty images and rows",
          _says(r"the input of shape \[.*\] is empty|leaves no output")),
    Class("LiteRT reads outside of the operand", "a slice that starts behind the end and shrinks, "
          "or a reflection wider than what is reflected: what it finds there has no meaning",
          _says(r"outside a dimension of \d+ that it shrinks|are more than (REFLECT|SYMMETRIC) "
                r"finds|"
                r"ATAN2 does not broadcast|LOG_SOFTMAX needs a last axis")),
    Class("LiteRT takes rows that are no rows", "FULLY_CONNECTED of an input that is no whole "
          "number of rows of the weights: it rounds the batch down",
          _says(r"is not made of rows of \d+, the depth of the weights")),
    Class("LiteRT takes an operand of any type", "it reads the bytes of a filter or a slope as "
          "floats, whatever they are", _says(r"PRELU: alpha is \w+, the operand|the filter takes "
                                             r".*, not \w+")),
    Class("LiteRT takes a bias of any shape", "it looks at the number of elements, or not even "
                                              "that",
          _says(r"the bias has shape .* for \d+ output channels")),
    Class("LiteRT takes an input that has a constant", "whether what is set or what is in the file "
          "is read is left to chance", _says(r"is an input of the model and has a constant")),
    Class("LiteRT takes options that exclude each other", "what it makes of them is left to chance",
          _says(r"align_corners and half_pixel_centers exclude each other")),
    Class("LiteRT takes a zero point that the type does not have", "no stored number would stand "
          "for 0; ours says that the file is wrong", _says(r"zero point -?\d+ is (outside|not a "
                                                           r"32-bit)")),
    Class("LiteRT takes options of another op", "it reads their bytes as those of the op's own, or "
          "takes none where it does not know them",
          lambda f: f.ours.error == "ModelError" and _foreign_options(f)),
    Class("LiteRT takes a buffer larger than its tensor", "it reads the front of it; rule: so it "
          "is, by the type and the shape in the error",
          lambda f: f.ours.error == "ModelError" and _spare_bytes(f) > 0),
    Class("LiteRT takes an axis of several numbers", "it reads the first",
          _says(r"SPLIT(_V)?: axis \(operand \d\) has \d+ elements \[", error="AllocationError")),
    Class("LiteRT takes a slice whose operands do not fit", "it counts the entries of one operand, "
          "reads as many of the others, and the operand's dimensions past its last",
          _says(r"STRIDED_SLICE: (begin .* differ in length|\d+ entries for an operand of rank "
                r"\d+)",
                error="AllocationError")),
    Class("LiteRT adds new axes that no entry of STRIDED_SLICE has", "and takes them from the "
          "operand's own; TensorFlow passes over such bits of the mask",
          _says(r"STRIDED_SLICE: new_axis_mask .* speaks of more", error="AllocationError")),
    Class("LiteRT takes axes that are no permutation", "one axis twice and another never: it looks "
          "only at whether each is an axis",
          _says(r"TRANSPOSE: perm \[.*\] is no permutation of", error="AllocationError")),
    Class("LiteRT makes images without elements", "of a size or a window of 0, which stands for no "
          "image; rule: a result of LiteRT is empty", lambda f: (
              _says(r"option filter_(height|width) is 0, must|size \(operand 1\) is \[[\d, ]*\b0\b",
                    error="AllocationError")(f)
              and any(o.size == 0 for run in f.theirs.outputs for o in run))),
    Class("LiteRT does not count the scales of a resized input", "it reads as many as there are "
          "elements left along the axis; rule: the input with scales was resized",
          lambda f: bool(f.script.resize)
          and _says(r"\d+ scales along axis \d+ of shape", error="AllocationError")(f)),
    Class("LiteRT looks up nothing in a table without rows", "and leaves the result as the memory "
          "was, whatever the index", _says(r"EMBEDDING_LOOKUP: index -?\d+ is outside \[0, 0\)",
                                           error="InputError")),
    Class("LiteRT leaves the clips of a basic LSTM out", "the file asks for them, its kernel has "
          "none and says nothing", _says(r"LSTM: the basic kernel clips nothing",
          error="AllocationError")),
    Class("LiteRT reduces a single truth value", "there is nothing to add in a scalar, so that it "
          "hands it on; of more elements it says no too",
          _says(r"takes .*, not bool \(operands: %\d+:bool\[\],", error="AllocationError")),
    Class("LiteRT passes over a new shape that is no whole number", "and takes the one in the "
          "options; rule: RESHAPE has one there", lambda f: (
              _says(r"RESHAPE: new shape \(operand 1\) is \w+, not a whole number")(f)
              and f.model is not None
              and any(o.name == "RESHAPE" and o.fields.get("new_shape")
                      for o in f.model.main.operators))),
    Class("LiteRT takes whole numbers without a scale", "conversions then multiply by 0",
          _says(r"QUANTIZE: the [iu]\d+ operand has no scale")),
)  # fmt: skip

#: Ours runs it, LiteRT says no.
_MORE = (
    Class("ours has more types", "LiteRT's kernel lacks the type, the definition of the op does "
                                 "not",
          _litert_says(_TYPES)),
    Class("ours has more versions", "LiteRT's builtin kernels lack the op or the version",
          _litert_says(r"Didn't find op for builtin opcode|unresolved custom op")),
    Class("ours has more activations", "LiteRT's kernel has no such fused activation, or asks for "
          "a bias", _litert_says(r"activation != kTfLiteActNone|has_bias was not true|activation "
                                 r"== ")),
    Class("ours computes with scales that LiteRT's integer kernels cannot",
          "ours computes quantized models on real numbers, for which any scale will do",
          _litert_says(r"scale_diff / output_scale|params\.(scale|zero_point) (!=|==)|zero_point|"
                       r"multiplier|_scale|scale was not|affine_quantization->scale->size "
                       r"==|invalid quantization parameters")),
    Class("an index outside of the operand, on a device", "LiteRT ends the run; a kernel cannot, "
          "and stays inside; ours without a delegate refuses too", lambda f: f.script.delegate and
          _litert_says(r"index out of bounds|indices_has_only_positive")(f)),
    Class("sizes of another rank", "as many numbers as there have to be, however they lie",
          _litert_says(r"NumDimensions\((size|op_context->perm|op_context.(begin|end))\)")),
    Class("division by zero", "LiteRT's integer kernels end the run; ours gives what the op's "
          "reference defines", _litert_says(r"Division by 0|data\[i\] != (zero_point|0)|only "
                                            r"defined for positive")),
    Class("a bias that is said to be absent", "-1 in place of it, as other ops have it; LiteRT's "
          "convolutions ask for a list without it", _litert_says(
              r"Tensor at index 2 was optional but was expected\n.*CONV_2D\) failed")),
    Class("a bias of another rank", "as many numbers as output channels, however they lie",
          _litert_says(r"NumDimensions\(bias\)")),
    Class("ours has no such limit", "LiteRT's kernel refuses empty operands, dilations beyond 16 "
          "bits, and slopes that broadcast the input",
          _litert_says(r"NumElements\(input\) > 0|INT16_MAX|activations\.cc:\d+ HaveSameShapes")),
    Class("LiteRT does not hand out a result without elements", "get_tensor of it raises; rule: "
          "one of our outputs is empty", lambda f: (
              _litert_says("Invalid tensor size|Tensor data is null")(f) and f.theirs.stage == "get"
              and any(o.size == 0 for run in f.ours.outputs for o in run))),
    Class("LiteRT's RESHAPE does not write a variable", "which then has no memory when it is "
          "read; ours takes a variable that is written first for a plain result", lambda f: (
              _litert_says(r"Input tensor \d+ lacks data")(f) and "RESHAPE" in f.ops
              and f.model is not None and any(t.is_variable for t in f.model.main.tensors))),
    Class("TRANSPOSE_CONV to a shape the input does not reach", "the output shape is an operand, "
          "and what no product reaches is the bias; LiteRT asks for one shape",
          _litert_says(r"transpose_conv\.cc:\d+ computed_input_")),
    Class("an operator whose results nothing needs", "ours does not run it, LiteRT does and fails; "
          "rule: no output of the model depends on the operator that LiteRT names",
          lambda f: f.ours.accepted and f.theirs.state == "refused" and f.unread),
    Class("SELECT by a condition that broadcasts", "LiteRT asks for a scalar, a number per row, or "
          "the shape of the operands; ours reads any other as SELECT_V2 does",
          _litert_says(r"select\.cc:\d+ data->has_low_rank_input_condition")),
    Class("LiteRT does not hand out a damaged name", "details of an input or output with a name "
          "that is no UTF-8; ours replaces what is not", lambda f: (
              f.ours.accepted and f.theirs.error == "UnicodeDecodeError")),
    Class("LiteRT's verifier refuses a damaged name", "ours reads what is there, and computes "
          "without names; rule: a name has control characters", lambda f: (
              _litert_says(r"The model is not a valid Flatbuffer")(f) and f.theirs.stage == "read"
              and f.model is not None
              and any(not t.name.isprintable() for t in f.model.main.tensors))),
    Class("LiteRT's SLICE does not follow a resize after a run", "its result keeps the shape of "
          "the run before, and prepare fails", _litert_says(r"slice\.cc:\d+ output_shape_vector")),
)  # fmt: skip


def _differs(*kinds: str) -> Callable[[Fact], bool]:
    def rule(f: Fact) -> bool:
        found = f.difference
        return found is not None and (found.kind in kinds or not kinds)

    return rule


def _is_longer(f: Fact) -> bool:
    """Whether LiteRT's output is ours and more, in some dimensions."""
    found = f.difference
    if found is None or found.got is None or found.wanted is None:
        return False
    got, wanted = found.got.shape, found.wanted.shape
    return len(got) == len(wanted) and all(a <= b for a, b in zip(got, wanted, strict=True))


_MOVES = frozenset(
    {"MAXIMUM", "MINIMUM", "RESHAPE", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "TILE", "PAD", "PADV2",
     "MIRROR_PAD", "GATHER", "PACK", "UNPACK", "SPLIT", "SQUEEZE", "EXPAND_DIMS", "BROADCAST_TO",
     "MAX_POOL_2D", "AVERAGE_POOL_2D", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR",
     "DEPTH_TO_SPACE",
     "SPACE_TO_DEPTH", "REDUCE_MAX", "REDUCE_MIN", "SELECT", "SELECT_V2", "CONCATENATION"}
)  # fmt: skip
_VALUES = _differs("value", "nan", "infinite")

#: Both run it, and the results differ.
_DIFFERENT = (
    Class("LiteRT gives another answer each time", "it reads what nothing wrote; rule: two runs of "
          "it differ", lambda f: _VALUES(f) and not f.steady),
    Class("LiteRT saturates", "its kernels with a fused activation clamp to the finite numbers "
          "where none is asked for, so that infinities become 3.4e38; rule: our references, so "
          "clamped, give what LiteRT gives", lambda f: _VALUES(f) and f.litert_does("saturate")),
    Class("LiteRT's MAXIMUM and MINIMUM of NaN depend on the order", "it compares, and takes the "
          "second operand where the comparison fails, in reductions too; ours gives NaN whichever "
          "it is; rule: our references, so compared, give what LiteRT gives",
          lambda f: _VALUES(f) and f.litert_does("order", "saturate")),
    Class("LiteRT's MAX_POOL_2D leaves NaN out", "a window of NaN alone becomes -3.4e38; ours "
          "hands NaN on, as its MAXIMUM and REDUCE_MAX do; rule: our references, with NaN left "
          "out there, give what LiteRT gives", lambda f: _VALUES(f) and f.litert_does("pool",
          "saturate")),
    Class("LiteRT's STRIDED_SLICE with offset reads outside of the operand", "it does not cut "
          "what is counted from begin at the end of a dimension; rule: its result is larger than "
          "ours",
          lambda f: _differs("shape")(f) and f.model is not None
          and any(o.fields.get("offset") for o in f.model.main.operators) and _is_longer(f)),
    Class("LiteRT's sets of kernels disagree about a shape, ours is with XNNPACK", "an end that is "
          "counted from begin and masked is the dimension's there; rule: the same model, XNNPACK "
          "in place of the builtin kernels",
          lambda f: _differs("shape")(f) and f.agrees_with("xnnpack")),
    Class("LiteRT leaves the zero point of weights out", "floats by weights of 8 bits: its kernels "
          "take them for symmetric; rule: our references, so computed, give what LiteRT gives",
          lambda f: _VALUES(f) and f.hybrid and f.ours_as_defined and f.litert_does("no zero "
                                                                                    "point")),
    Class("LiteRT adds up what it has saturated", "sums of 3.4e38 in place of infinities are "
          "large, infinite or NaN by the order of adding; rule: our references, so clamped, give "
          "what LiteRT gives wherever neither is large, and ours is as defined",
          lambda f: _VALUES(f) and f.odd and f.sums_of_saturated),
    Class("LiteRT's DEPTHWISE_CONV_2D leaves padding out", "an infinite weight times padding is "
          "NaN here and in XNNPACK, and in LiteRT's own CONV_2D; rule: our references, with "
          "padding left out, give what LiteRT gives", lambda f: _VALUES(f) and (
              f.litert_does("pads", "saturate") or f.litert_does("pads"))),
    Class("LiteRT's LOCAL_RESPONSE_NORMALIZATION carries its sums", "from channel to channel, so "
          "that an infinity that has left the window leaves NaN, and a large number the sum of "
          "none; rule: our references, so summed, give what LiteRT gives",
          lambda f: _VALUES(f) and f.litert_does("rolling")),
    Class("LiteRT's RESIZE_BILINEAR multiplies by weights of 0", "which of an infinite neighbour "
          "is NaN; XNNPACK, where it has the operator, and ours let it take no part; rule: our "
          "references, so weighted, give what LiteRT gives",
          lambda f: _VALUES(f) and f.litert_does("weighs")),
    Class("LiteRT's sets of kernels disagree, ours is with XNNPACK", "the same model, XNNPACK in "
          "place of the builtin kernels", lambda f: _VALUES(f) and f.agrees_with("xnnpack")),
    Class("LiteRT's sets of kernels disagree, ours is with the reference", "the same model, the "
          "reference kernels in place of the optimized ones",
          lambda f: _VALUES(f) and f.agrees_with("reference")),
    Class("LiteRT's TRANSPOSE of a scalar writes nothing", "what it gives is what the memory held; "
          "rule: there is one, and ours is as defined",
          lambda f: _VALUES(f) and f.transposes_scalar and f.ours_as_defined),
    Class("a sum beyond f32", "whether it is infinite, or comes back, or is NaN depends on the "
          "order of adding, and LiteRT saturates besides; rule: in 64 bits it is finite and near "
          "3.4e38 or above; a product, where some of its factors are",
          lambda f: _VALUES(f) and f.overflows),
    Class("numbers that 8 bits do not have", "LiteRT rounds activations to 8 bits, where NaN and "
          "infinity have no number; ours computes on real numbers and may keep them",
          lambda f: _VALUES(f) and (f.hybrid or f.quantized) and f.odd
          and f.ours_as_defined),
    Class("LiteRT's sums of 32 bits wrap", "a bias of 2^30 or more in a quantized product; ours "
          "clamps, as real numbers do", lambda f: _VALUES(f) and f.quantized and f.wraps
          and f.ours_as_defined),
    Class("LiteRT reads a filter of another type as floats", "16-bit or whole numbers, "
          "multiplied by floats: it looks at bytes; ours at numbers",
          lambda f: _VALUES(f) and f.foreign_filter
          and f.ours_as_defined),
    Class("LiteRT compares stored numbers of different scales", "MAXIMUM and MINIMUM of its "
          "integer kernels, and what only moves numbers, do not look at scales; ours compares "
          "and moves what the numbers stand for", lambda f: _VALUES(f) and f.scales_differ(_MOVES)
          and f.ours_as_defined),
)  # fmt: skip

CLASSES: tuple[Class, ...] = (*_EQUAL, *_REFUSED, *_MORE, *_DIFFERENT)


def classify(fact: Fact) -> Class | None:
    """The class of a case, None for a finding."""
    return next((c for c in CLASSES if c.rule(fact)), None)


def sentence(fact: Fact) -> str:
    """What a finding is, in one line."""
    ours, theirs = fact.ours, fact.theirs
    if ours.state not in _FINE:
        return f"ours: {ours.state} at {ours.stage}: {ours.error}: {ours.message}"
    if ours.state == "refused" and theirs.accepted:
        return f"LiteRT runs it; ours at {ours.stage}: {ours.error}: {ours.message}"
    if ours.accepted and theirs.state == "refused":
        return f"ours runs it; LiteRT at {theirs.stage}: {theirs.error}: {theirs.message}"
    found = fact.difference
    return "nothing" if found is None else f"{found.kind}: {found.sentence}"


def signature(fact: Fact) -> str:
    """A sentence without numbers and names, to tell kinds of findings apart."""
    text = sentence(fact)
    text = re.sub(r"'[^']*'|\[[-\d, ]*\]", "_", text.splitlines()[0] if text else "")
    text = re.sub(r"tensor _? ?\([^)]*\)|\bnew\d+|\bt\d+\b|\bresult\d+|\boperand\d+", "T", text)
    text = re.sub(r"np\.\w+\([^)]*\)", "#", text)
    ops = ",".join(sorted(fact.ops)) if fact.difference is not None and len(fact.ops) < 4 else ""
    return re.sub(r"-?\d[\d.e+-]*", "#", text)[:240] + (f" {{{ops}}}" if ops else "")
