"""What is known of an op stands in its file: no other file of the core or of a backend names one,
but a pass the ops that it is about."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.schema import BUILTIN_CODES

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "tflgpu"

NAMES = frozenset(builtin_ops()) | frozenset(BUILTIN_CODES)

#: Files that may name ops: which, and why.
ALLOWED: dict[str, tuple[frozenset[str], str]] = {
    "tflite/bodies.py": (
        frozenset({"IF", "WHILE", "CALL_ONCE", "STABLEHLO_CASE", "VAR_HANDLE", "READ_VARIABLE",
                   "ASSIGN_VARIABLE", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT",
                   "HASHTABLE_SIZE"}),
        "are run by the host, between compiled graphs; no graph has a node of them",
    ),
    "flow/list_items.py": (
        frozenset({"SLICE", "CONCATENATION", "RESHAPE", "ADD", "DYNAMIC_UPDATE_SLICE"}),
        "reads what converters make of the first ones, and writes the last",
    ),
    "flow/operators.py": (
        frozenset({"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "HASHTABLE", "HASHTABLE_FIND",
                   "HASHTABLE_IMPORT", "HASHTABLE_SIZE"}), "gives these names"),
    "tools/port.py": (
        frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "QUANTIZE", "DEQUANTIZE", "CAST",
                   "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "STRIDED_SLICE", "TRANSPOSE",
                   "FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV",
                   "BATCH_MATMUL", "Convolution2DTransposeBias", "LOG_SOFTMAX", "SOFTMAX",
                   "LOGISTIC", "TANH", "ARG_MAX", "TFLite_Detection_PostProcess", "ADD",
                   "AVERAGE_POOL_2D", "MEAN", "L2_NORMALIZATION"}),
        "guesses by a model's last operators what its outputs are for people",
    ),
    "passes/batch.py": (
        frozenset({"CONCATENATION", "RESHAPE", "TRANSPOSE"}),
        "brings rows of several items into order by these, and puts columns before indices"),
    "passes/bucket.py": (
        frozenset({"ADD", "MUL", "SELECT_V2"}),
        "masks what does not count, in attention by the mask, and rescales averages"),
    "passes/float_view.py": (
        frozenset({"QUANTIZE", "DEQUANTIZE", "QUANTIZED_TABLE"}),
        "makes these conversions, and takes those of the file away",
    ),
    "passes/digits.py": (frozenset({"STORED_DIGIT", "STORED_SUMS"}), "makes them"),
    "passes/quantized_pairs.py": (
        frozenset({"QUANTIZE", "DEQUANTIZE", "QUANTIZE_AND_DEQUANTIZE"}), ("makes these "
                                                                          "conversions")),
    "passes/hybrid_data.py": (
        frozenset({"QUANTIZE_ON_THE_FLY", "RESHAPE"}), "rounds data by them"),
    "passes/find_attention.py": (
        frozenset({"BATCH_MATMUL", "FULLY_CONNECTED", "MUL", "DIV", "ADD", "SELECT", "SELECT_V2",
                   "SOFTMAX", "TRANSPOSE", "RESHAPE", "ATTENTION"}),
        "reads what converters make of attention, and writes ATTENTION, TRANSPOSE and RESHAPE",
    ),
    "passes/attention_operands.py": (
        frozenset({"MUL", "DIV", "TRANSPOSE", "RESHAPE", "TILE", "BROADCAST_TO"}),
        "reads what converters make of the operands of attention",
    ),
    "passes/dequantize_constants.py": (frozenset({"DEQUANTIZE"}), "is about constants of it"),
    "passes/fuse_normalization.py": (
        frozenset({"MEAN", "SQUARED_DIFFERENCE", "SQUARE", "RSQRT", "SQRT", "ADD", "SUB", "MUL",
                   "DIV", "MEAN_STDDEV_NORMALIZATION"}),
        "reads the chains that converters make of these, and writes one",
    ),
    "passes/fuse_group_norm.py": (
        frozenset({"ADD", "MUL", "SUB", "RESHAPE", "TRANSPOSE", "MEAN_STDDEV_NORMALIZATION"}),
        "reads the chain that PyTorch's exports make of these, and writes the last",
    ),
    "passes/fuse_rms.py": (
        frozenset({"MUL", "RSQRT", "SQUARE", "RMS_NORMALIZATION"}),
        "reads the chain that converters make of these, and writes the last",
    ),
    "passes/global_pool.py": (frozenset({"AVERAGE_POOL_2D", "MEAN"}), "makes one of the other"),
    "passes/join_pixels.py": (
        frozenset({"CONV_2D", "RESHAPE"}), "lets the one read images that the other reshapes"),
    "passes/keep_dims.py": (
        frozenset({"MEAN", "RESHAPE", "SQUARED_DIFFERENCE", "SQUARE", "ADD", "SUB", "MUL", "DIV"}),
        "brings the same chains into one form",
    ),
    "passes/merge_padding.py": (frozenset({"PAD", "PADV2"}), "moves these into filters"),
    "passes/pad_before_maximum.py": (
        frozenset({"PAD", "PADV2", "MAX_POOL_2D"}), "moves the former into the latter"),
    "passes/raise_slices.py": (
        frozenset({"SLICE", "RESHAPE", "FULLY_CONNECTED", "MEAN_STDDEV_NORMALIZATION",
                   "RMS_NORMALIZATION"}),
        "makes the first two, before what makes rows alone"),
    "passes/read_rows.py": (frozenset({"ATTENTION"}), "is about its operands"),
    "passes/merge_moves.py": (
        frozenset({"TRANSPOSE", "RESHAPE"}), "makes these of what they do together"),
    "passes/remove_noops.py": (
        frozenset({"RESHAPE", "TRANSPOSE"}), "makes these of whatever does the same"),
    "passes/sink_reshapes.py": (frozenset({"RESHAPE"}), "moves it"),
    "passes/sink_transposes.py": (
        frozenset({"TRANSPOSE", "RESHAPE"}), "moves the one, through the other"),
    "passes/long_spectrum.py": (
        frozenset({"RESHAPE", "TRANSPOSE", "FULLY_CONNECTED", "BATCH_MATMUL", "SLICE"}),
        "writes these in place of a transform",
    ),
    "passes/spectrum.py": (
        frozenset({"RFFT2D", "COMPLEX_ABS", "REAL", "IMAG", "CAST", "RESHAPE", "SQUEEZE",
        "EXPAND_DIMS",
                   "FULLY_CONNECTED", "SQUARE", "ADD", "SQRT", "PAD", "ATAN2"}),
        ("reads the chains that converters make of the first ones, writes products, and keeps "
        "phases"),
    ),
    "passes/square.py": (frozenset({"MUL", "SQUARE"}), "makes one of the other"),
    str(ROOT / "backends/litert/tflgpu_litert/quirks.py"): (
        frozenset({"ADD", "SUB", "SQUARED_DIFFERENCE", "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL",
                   "GREATER", "GREATER_EQUAL", "CONV_2D", "FULLY_CONNECTED",
                   "BATCH_MATMUL", "BIDIRECTIONAL_SEQUENCE_RNN", "BROADCAST_ARGS", "CONCATENATION",
                   "DEPTHWISE_CONV_2D", "FLOOR_MOD",
                   "LOCAL_RESPONSE_NORMALIZATION", "MaxPoolingWithArgmax2D", "MaxUnpooling2D",
                   "SPARSE_TO_DENSE",
                   "STABLEHLO_GATHER", "STABLEHLO_SCATTER", "LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM",
                   "MATRIX_DIAG", "MATRIX_SET_DIAG", "STRIDED_SLICE", "TRANSPOSE", "SPLIT",
                   "WHILE", "RESHAPE", "BROADCAST_TO", "TILE"}),
        "is about what LiteRT gets wrong of them, or takes long for"),
    str(ROOT / "backends/litert/tflgpu_litert/shapes.py"): (
        frozenset({"MULTINOMIAL"}), "is about what LiteRT does not tell of it",
    ),
    "passes/unfold_normalization.py": (
        frozenset({"RESHAPE", "MEAN_STDDEV_NORMALIZATION"}), "takes the first away around the last"
    ),
    "cli/demo.py": (frozenset({"ADD"}), "writes a model of one for the documents"),
    "tools/check.py": (
        frozenset({"TFLite_Detection_PostProcess"}), "judges its results as boxes"),
    "tools/check_advice.py": (
        frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE"}),
        "says what TFLite's guide to its GPU delegate says of them",
    ),
    "tflite/inline.py": (
        frozenset({"STABLEHLO_COMPOSITE", "RESHAPE", "CONCATENATION"}),
        "writes the first as what it is made of, and copies by the others",
    ),
    "tflite/cut.py": (
        frozenset({"QUANTIZE", "DEQUANTIZE", "QUANTIZE_AND_DEQUANTIZE", "CAST", "ROUND_TO_BF16"}),
        "writes what no file has as the other two, or as two casts",
    ),
    "tflite/states.py": (frozenset({"DEQUANTIZE"}), "is about what LiteRT runs only once"),
    "tflite/schema.py": (
        frozenset({
            "STABLEHLO_CASE",
            "AVERAGE_POOL_2D", "CONV_3D_TRANSPOSE",
            "L2_NORMALIZATION", "L2_POOL_2D", "MAXIMUM", "MAX_POOL_2D", "MEAN", "MINIMUM",
            "MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "REDUCE_ALL", "REDUCE_ANY",
            "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM", "UNIDIRECTIONAL_SEQUENCE_RNN",
        }),
        # Whether tflgpu defines them or not.
        "is the file format: operators whose options have another name",
    ),
    "tflite/converters.py": (
        frozenset({"CAST", "SUB", "MUL", "SLICE", "RESIZE_BILINEAR", "RESHAPE", "TRANSPOSE", "PAD",
                   "ARG_MAX", "QUANTIZE"}),
        "puts these before and after a model",
    ),
    "tflite/edge_edit.py": (
        frozenset({"QUANTIZE", "DEQUANTIZE"}), "puts these before and after a quantized model",
    ),
    "devices/figures.py": (
        frozenset({"RELU", "MAX_POOL_2D", "DEPTHWISE_CONV_2D", "CONV_2D"}),
        "makes the graphs of these that devices are timed by",
    ),
    "compiler/narrow.py": (
        frozenset({"CAST", "NARROW"}), "puts the second before nodes, and the first behind them"),
    "conformance/other_builtins.py": (
        frozenset({
            "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "MULTINOMIAL", "SKIP_GRAM",
            "STABLEHLO_COMPOSITE", "STABLEHLO_RNG_BIT_GENERATOR",
        }),
        "says of those that nobody here defines who runs them",
    ),
    "hosts/layout.py": (frozenset({"CONV_2D"}), "writes the model that a runtime is tried with"),
    "conformance/graph_checks.py": (
        frozenset({"CONV_2D", "ADD", "RELU"}), "makes quantized graphs of these"),
    "conformance/dags.py": (
        frozenset({
            "RELU", "TANH", "LOGISTIC", "ABS", "NEG", "HARD_SWISH", "RELU6", "ADD", "SUB", "MUL",
            "MAXIMUM", "MINIMUM", "CONV_2D", "CONCATENATION", "RESHAPE", "AVERAGE_POOL_2D", "PAD",
            "SLICE",
        }),
        "makes example graphs of these, as a converter would",
    ),
}  # fmt: skip


def files() -> list[Path]:
    """All sources but those of ops and of their kernels."""
    found = [*CORE.rglob("*.py"), *(ROOT / "backends").rglob("*.py")]
    homes = (CORE / "ops", CORE / "kernels")
    return sorted(p for p in found if not any(home in p.parents for home in homes))


def named(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every op that a source names: as a string, or by a constant of an op's
    module that is one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES:
            yield node.lineno, node.value
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tflgpu.ops."):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                value = getattr(module, alias.name, None)
                if isinstance(value, str) and value in NAMES:
                    yield node.lineno, value


def test_no_file_names_an_op_that_it_is_not_about() -> None:
    strange = [
        f"{path.relative_to(ROOT)}:{line} names {name}"
        for path in files()
        for line, name in named(path.read_text(encoding="utf-8"))
        if name not in ALLOWED.get(_place(path), (frozenset(), ""))[0]
    ]
    assert not strange, "say it in the op's file, as a facet: " + "; ".join(strange)


@pytest.mark.parametrize("place", ALLOWED)
def test_what_is_allowed_is_needed(place: str) -> None:
    found = {name for _, name in named((CORE / place).read_text(encoding="utf-8"))}
    assert found == ALLOWED[place][0]


def test_the_reader_of_names_reads_them() -> None:
    source = (
        '"""CONV_2D in a text is none."""\n'
        'kinds = {"CONV_2D": 1}\n'
        "from tflgpu.ops.normalize import NAME, MeanStddev\n"
        'if op == "Convolution2DTransposeBias": pass\n'
    )
    assert sorted(named(source)) == [
        (2, "CONV_2D"), (3, "MEAN_STDDEV_NORMALIZATION"), (4, "Convolution2DTransposeBias"),
    ]  # fmt: skip


def _place(path: Path) -> str:
    return path.relative_to(CORE).as_posix() if CORE in path.parents else path.as_posix()
