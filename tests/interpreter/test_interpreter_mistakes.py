"""Every mistake raises what LiteRT raises, and a message that says what, where and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
import tflgpu.interpreter
from tflgpu.errors import (
    AllocationError,
    ArgumentError,
    InputError,
    OptionError,
    ResizeError,
    StateError,
    TflgpuError,
    UnsupportedError,
)
from tflgpu.interpreter import Interpreter

from tests.interpreter import interpreter_models as models
from tests.running import allocated

litert = pytest.importorskip("ai_edge_litert.interpreter")

X = np.ones((1, 3), np.float32)
Mistake = Callable[[Any], Any]


def fresh(make: Any, content: bytes, **options: Any) -> Any:
    return make.Interpreter(model_content=content, **options)


def chain(make: Any) -> Any:
    return fresh(make, models.chain())


def ready(make: Any) -> Any:
    interpreter = chain(make)
    interpreter.allocate_tensors()
    return interpreter


def resized(make: Any, *shape: int) -> Any:
    interpreter = ready(make)
    interpreter.resize_tensor_input(0, shape)
    return interpreter


def holding(make: Any) -> tuple[Any, Any]:
    interpreter = ready(make)
    return interpreter, interpreter.tensor(0)()[0]


def allocate(interpreter: Any) -> None:
    interpreter.allocate_tensors()


def bad_then_invoke(make: Any) -> None:
    interpreter = resized(make, 5, 4)
    with pytest.raises(RuntimeError):
        interpreter.allocate_tensors()
    interpreter.invoke()


# Each gets the module (tflgpu.interpreter or LiteRT's). By label: the mistake, the exception type
# that both raise, and a pattern that our message has.
MISTAKES: dict[str, tuple[Mistake, type[Exception], str]] = {
    # Making one
    "neither path nor content": (lambda m: m.Interpreter(), ValueError, "neither was given"),
    "both": (lambda m: m.Interpreter("x.tflite", models.chain()), ValueError, "both was given"),
    "empty content": (lambda m: fresh(m, b""), ValueError, "neither was given"),
    "no file": (lambda m: m.Interpreter("no/model.tflite"), ValueError, "no/model.*no such file"),
    "garbage": (lambda m: fresh(m, b"garbage" * 10), ValueError, "not a TFLite model"),
    "cut off": (lambda m: fresh(m, models.chain()[:99]), ValueError, "in memory: "),
    "path of wrong type": (lambda m: m.Interpreter(3), TypeError, "is a path, not int"),
    "content of wrong type": (lambda m: fresh(m, "TFL3"), TypeError, "is bytes, not str"),
    "no threads": (lambda m: fresh(m, models.chain(), num_threads=0), ValueError, "least is 1"),
    "threads as text": (
        lambda m: fresh(m, models.chain(), num_threads="2"), ValueError, "whole number, not str"
    ),
    "threads as a fraction": (
        lambda m: fresh(m, models.chain(), num_threads=4.2), ValueError, "not float 4.2"
    ),
    "no name of a resolver": (
        lambda m: fresh(m, models.chain(), experimental_op_resolver_type="test"), ValueError,
        "not 'test'"
    ),
    "unknown resolver": (
        lambda m: fresh(m, models.chain(), experimental_op_resolver_type=7), ValueError, "not 7"
    ),
    # Order
    "invoke first": (lambda m: chain(m).invoke(), RuntimeError, "call allocate_tensors"),
    "set first": (lambda m: chain(m).set_tensor(0, X), ValueError, r"\('x'\).*allocate_tensors"),
    "get first": (lambda m: chain(m).get_tensor(3), ValueError, r"\('y'\).*allocate_tensors"),
    "view first": (lambda m: chain(m).tensor(0)(), ValueError, "allocate_tensors"),
    "invoke after resize": (lambda m: resized(m, 2, 3).invoke(), RuntimeError, "again after"),
    "set after resize": (
        lambda m: resized(m, 2, 3).set_tensor(0, np.ones((2, 3), np.float32)), ValueError,
        "follow resize",
    ),
    "get after resize": (lambda m: resized(m, 2, 3).get_tensor(0), ValueError, "follow resize"),
    "view after resize": (lambda m: resized(m, 2, 3).tensor(0)(), ValueError, "follow resize"),
    "invoke after a failure": (bad_then_invoke, RuntimeError, "call allocate_tensors"),
    # Indices
    "get 99": (lambda m: ready(m).get_tensor(99), ValueError, "no tensor 99; .* 0 to 3"),
    "get 4": (lambda m: ready(m).get_tensor(4), ValueError, "no tensor 4"),
    "get -1": (lambda m: ready(m).get_tensor(-1), ValueError, "no tensor -1"),
    "get by name": (lambda m: ready(m).get_tensor("x"), TypeError, "whole number.*str 'x'"),
    "get 0.0": (lambda m: ready(m).get_tensor(0.0), TypeError, "whole number.*float"),
    "get None": (lambda m: ready(m).get_tensor(None), TypeError, "whole number"),
    "get of subgraph 1": (lambda m: ready(m).get_tensor(0, 1), ValueError, "no subgraph 1"),
    "get of subgraph -1": (lambda m: ready(m).get_tensor(0, -1), ValueError, "no subgraph -1"),
    "details of subgraph 1": (
        lambda m: ready(m).get_tensor_details(1), ValueError, "no subgraph 1"
    ),
    "get of subgraph []": (
        lambda m: ready(m).get_tensor(0, []), TypeError, "a subgraph index is a whole number.*list"
    ),
    "get of subgraph 0.0": (
        lambda m: ready(m).get_tensor(0, 0.0), TypeError, "a subgraph index is .*float 0.0"
    ),
    "details of subgraph []": (
        lambda m: ready(m).get_tensor_details([]), TypeError, "a subgraph index is .*list"
    ),
    "get intermediate": (
        lambda m: ready(m).get_tensor(2), ValueError, r"\('middle'\).*preserve_all_tensors"
    ),
    "view of 99": (lambda m: ready(m).tensor(99)(), ValueError, "no tensor 99"),
    "details of 4": (lambda m: ready(m)._get_tensor_details(4, 0), ValueError, "no tensor 4"),
    "operator 4": (lambda m: ready(m)._get_op_details(4), ValueError, "no operator 4; .* has 2"),
    "view by name": (lambda m: ready(m).tensor("x")(), TypeError, "whole number"),
    "set 99": (lambda m: ready(m).set_tensor(99, X), ValueError, "no tensor 99"),
    "set -1": (lambda m: ready(m).set_tensor(-1, X), ValueError, "no tensor -1"),
    "set by name": (lambda m: ready(m).set_tensor("x", X), TypeError, "whole number"),
    "set intermediate": (lambda m: ready(m).set_tensor(2, X), ValueError, r"\('middle'\)"),
    # Values
    "float64": (
        lambda m: ready(m).set_tensor(0, X.astype(np.float64)), ValueError,
        r"tensor 0 \('x'\) is of type float32, the value of type float64; .*astype",
    ),
    "int32": (lambda m: ready(m).set_tensor(0, X.astype(np.int32)), ValueError, "type int32"),
    "list of numbers": (lambda m: ready(m).set_tensor(0, [[1, 2, 3]]), ValueError, "type int64"),
    "None": (lambda m: ready(m).set_tensor(0, None), ValueError, "type object"),
    "batch of 2": (
        lambda m: ready(m).set_tensor(0, np.ones((2, 3), np.float32)), ValueError,
        r"tensor 0 \('x'\) has shape \[1, 3\], the value has \[2, 3\]; .*resize_tensor_input",
    ),
    "rank 1": (lambda m: ready(m).set_tensor(0, X[0]), ValueError, r"the value has \[3\]"),
    "rank 3": (lambda m: ready(m).set_tensor(0, X[None]), ValueError, r"has \[1, 1, 3\]"),
    "a scalar": (lambda m: ready(m).set_tensor(0, np.float32(1)), ValueError, r"has \[\]"),
    # Resizing
    "resize 99": (
        lambda m: ready(m).resize_tensor_input(99, [1, 3]), RuntimeError, (r"they are tensor 0 "
                                                                          r"\('x'\)")
    ),
    "resize -1": (lambda m: ready(m).resize_tensor_input(-1, [1, 3]), RuntimeError, "only inputs"),
    "resize a constant": (
        lambda m: ready(m).resize_tensor_input(1, [4]), RuntimeError, "only inputs"
    ),
    "resize by name": (
        lambda m: ready(m).resize_tensor_input("x", [1, 3]), TypeError, "whole number"
    ),
    "negative size": (
        lambda m: ready(m).resize_tensor_input(0, [-1, 3]), RuntimeError, r"\[-1, 3\]: a negative"
    ),
    "size as text": (lambda m: ready(m).resize_tensor_input(0, "a"), ValueError, "not 'a'"),
    "nested size": (lambda m: ready(m).resize_tensor_input(0, [[1, 3]]), ValueError, "a list"),
    "one number": (lambda m: ready(m).resize_tensor_input(0, 3), ValueError, "a list .* not 3"),
    "size None": (lambda m: ready(m).resize_tensor_input(0, None), TypeError, "not None"),
    "strict, fixed size": (
        lambda m: ready(m).resize_tensor_input(0, [2, 4], strict=True), RuntimeError,
        r"to \[2, 4\]: with strict=True .* signature \[-1, 3\]",
    ),
    "strict, other rank": (
        lambda m: ready(m).resize_tensor_input(0, [3], strict=True), RuntimeError, "strict=True"
    ),
    "strict, nothing free": (
        lambda m: fresh(m, models.static()).resize_tensor_input(0, [2, 3], strict=True),
        RuntimeError, r"signature \[1, 3\] can change",
    ),
    # Allocating
    "shapes that do not fit": (
        lambda m: allocate(resized(m, 5, 4)), RuntimeError,
        r"operator 0 \(ADD\).*inputs were resized: tensor 0 \('x'\) to \[5, 4\]",
    ),
    "a file that does not fit": (
        lambda m: allocate(fresh(m, models.mismatch())), RuntimeError, r"operator 0 \(ADD\)"
    ),
    "unknown custom operator": (
        lambda m: allocate(fresh(m, models.custom())), RuntimeError, "#1 Mystery"
    ),
    # Signatures
    "no signature": (
        lambda m: fresh(m, models.static()).get_signature_runner(), ValueError, "has none"
    ),
    "several signatures": (
        lambda m: fresh(m, models.two_subgraphs()).get_signature_runner(), ValueError,
        "has 'main', 'alone'",
    ),
    "unknown signature": (
        lambda m: chain(m).get_signature_runner("x"), ValueError, "no signature 'x'; .* 'serve'"
    ),
    "a runner of no interpreter": (
        lambda m: m.SignatureRunner(None, "serve"), ValueError, "for an interpreter and"
    ),
    "a runner of no key": (
        lambda m: m.SignatureRunner(chain(m), None), ValueError, "for an interpreter and"
    ),
    "empty key": (lambda m: chain(m).get_signature_runner(""), ValueError, "no signature ''"),
    "missing argument": (
        lambda m: chain(m).get_signature_runner()(), ValueError, "'serve' takes image, not no"
    ),
    "unknown argument": (
        lambda m: chain(m).get_signature_runner()(x=X), ValueError, "takes image, not x"
    ),
    "one argument too many": (
        lambda m: chain(m).get_signature_runner()(image=X, x=X), ValueError, "not image, x"
    ),
    "argument of wrong type": (
        lambda m: chain(m).get_signature_runner()(image=X.astype(np.float64)), ValueError,
        "type float64",
    ),
}  # fmt: skip


def view_held(action: Callable[[Any], Any]) -> Mistake:
    def mistake(module: Any) -> None:
        interpreter, view = holding(module)
        action(interpreter)
        del view

    return mistake


for label, action in {
    "invoke": lambda i: i.invoke(),
    "allocate": lambda i: i.allocate_tensors(),
    "resize": lambda i: i.resize_tensor_input(0, [2, 3]),
}.items():
    MISTAKES[f"{label} with a view held"] = (
        view_held(action), RuntimeError, "a NumPy view of a tensor is still held"
    )  # fmt: skip


@pytest.mark.parametrize("label", MISTAKES)
def test_a_mistake_raises_the_same_type_as_in_litert(label: str) -> None:
    mistake, kind, message = MISTAKES[label]
    with pytest.raises(Exception) as theirs:
        mistake(litert)
    assert type(theirs.value) is kind, f"LiteRT raises {type(theirs.value)}"
    with pytest.raises(TflgpuError, match=message) as ours:
        mistake(tflgpu.interpreter)
    assert isinstance(ours.value, kind), f"{type(ours.value).__mro__}"
    if label not in OWN_WORDS:  # scripts, and LiteRT's own tests, look for these
        words = str(theirs.value).partition("\n")[0].strip().rstrip(".")
        assert OTHER_WORDS.get(label, words) in str(ours.value)


#: Where LiteRT's words say nothing to a user, or are another part's than its interpreter's.
OWN_WORDS = {
    "content of wrong type": "a signature in C++", "get by name": "the same", "get 0.0": "the same",
    "get of subgraph []": "of Python", "details of subgraph []": "the same",
    "get of subgraph 0.0": "a signature in C++", "get None": "the same", "view by name": "the same",
    "set by name": "the same",
    "resize by name": "the same",
    "resize 99": "an assertion of C++ code", "resize -1": "the same",
    "strict, other rank": "the same",
    "negative size": "what overflows in C++",
    "size as text": "of int()", "size None": "of int()",
    "invoke after a failure": "XNNPACK's", "shapes that do not fit": "XNNPACK's",
    "a file that does not fit": "XNNPACK's",
    "unknown custom operator": "of an operator; the NumPy side has others",
}  # fmt: skip
#: What is looked for where LiteRT's message goes on with what is its own.
OTHER_WORDS = {
    "no file": "Could not open 'no/model.tflite'",
    "get intermediate": "Tensor data is null",
    "set intermediate": "Cannot set tensor: Tensor is unallocated",
}


def test_words_that_other_versions_of_litert_say() -> None:
    """As they stand in the tests of TensorFlow's interpreter and of LiteRT's: of an index behind
    the model's tensors LiteRT says something else where a kernel has some of its own."""
    for words, call in {
        "Model provided has model identifier 'age'": lambda: Interpreter(model_content=b"garbage"),
        "Tensor with no shape found.": lambda: chain(tflgpu.interpreter)._get_tensor_details(4, 0),
        "Failed to load delegate from nothing.so": lambda: tflgpu.load_delegate("nothing.so"),
        "Failed to load delegate from tflgpu": lambda: tflgpu.load_delegate(
            "tflgpu", {"fail": "1"}
        ),
    }.items():
        with pytest.raises(ValueError, match=words):
            call()


# Where we are stricter than LiteRT, on purpose: it does something that can only be meant otherwise.
STRICTER: dict[str, tuple[Mistake, type[TflgpuError], str]] = {
    "get False": (lambda m: ready(m).get_tensor(False), ArgumentError, "not bool False"),
    "set False": (lambda m: ready(m).set_tensor(False, X), ArgumentError, "not bool False"),
    "resize False": (
        lambda m: ready(m).resize_tensor_input(False, [1, 3]),
        ArgumentError,
        "not bool False",
    ),
    "set a constant": (
        lambda m: ready(m).set_tensor(1, models.C),
        InputError,
        r"\('c'\) is a constant",
    ),
    "set masked elements": (
        lambda m: ready(m).set_tensor(0, np.ma.masked_equal(X, 1)),
        InputError,
        r"\('x'\): elements are masked",
    ),
    "resize an output": (
        lambda m: ready(m).resize_tensor_input(3, [2, 3]),
        ResizeError,
        "tensor 3 is not an input",
    ),
    "fractional sizes": (
        lambda m: ready(m).resize_tensor_input(0, [1.5, 3]),
        InputError,
        "whole numbers",
    ),
    "read an output that is out of date": (
        lambda m: resized(m, 2, 3).get_tensor(3),
        StateError,
        "follow resize",
    ),
}


@pytest.mark.parametrize("label", STRICTER)
def test_what_litert_lets_pass_and_we_do_not(label: str) -> None:
    mistake, kind, message = STRICTER[label]
    mistake(litert)
    with pytest.raises(kind, match=message):
        mistake(tflgpu.interpreter)


def test_delegates_that_are_not_ours_are_refused_with_a_reason() -> None:
    content = models.chain()
    for given, message in (
        (["delegate"], "takes tflgpu.GpuDelegate, not str.*ai_edge_litert"),
        (3, "is a list of GpuDelegate, not int"),
    ):
        with pytest.raises(OptionError, match=message):
            Interpreter(model_content=content, experimental_delegates=given)  # type: ignore[arg-type]


def test_a_signature_argument_that_is_no_array() -> None:
    runner = chain(__import__("tflgpu.interpreter", fromlist=["x"])).get_signature_runner()
    with pytest.raises(InputError, match="of type float32, the value of type float64"):
        runner(image=[[1.0, 2.0, 3.0]])


def test_lists_of_no_one_shape_are_no_array() -> None:
    interpreter = ready(tflgpu.interpreter)
    ragged: Any = [[1.0], [2.0, 3.0]]
    for call in (
        lambda: interpreter.set_tensor(0, ragged),
        lambda: interpreter.invoke_async({0: ragged}),
        lambda: interpreter.get_signature_runner()(image=ragged),
    ):
        with pytest.raises(InputError, match=r"\('x'\): no array can be made of it"):
            call()


@pytest.mark.parametrize("key", [[], {}, 3, b"serve", np.zeros(2)], ids=repr)
def test_a_key_of_a_signature_that_is_no_text(key: Any) -> None:
    with pytest.raises(InputError, match=r"no signature .*; the model has 'serve'"):
        Interpreter(model_content=models.chain()).get_signature_runner(key)


@pytest.mark.parametrize("index", [False, 0.0, "x", None])
def test_an_index_of_invoke_async_that_is_no_number(index: Any) -> None:
    interpreter = allocated(Interpreter(model_content=models.chain(), experimental_delegates=[]))
    with pytest.raises(ArgumentError, match=r"a tensor index, as .* is, is a whole number, not"):
        interpreter.invoke_async({index: X})


def test_sizes_over_all_memory_are_refused() -> None:
    interpreter = Interpreter(model_content=models.chain())
    with pytest.raises(ResizeError, match="too large"):
        interpreter.resize_tensor_input(0, [2**40, 2**40])


def test_types_of_the_errors_are_what_the_table_relies_on() -> None:
    assert issubclass(AllocationError, RuntimeError)
    assert issubclass(ArgumentError, TypeError)
    assert issubclass(UnsupportedError, RuntimeError)


def test_a_path_may_be_str_bytes_or_path(tmp_path: Path) -> None:
    file = tmp_path / "m.tflite"
    file.write_bytes(models.chain())
    for path in (file, str(file), str(file).encode()):
        assert Interpreter(path).get_input_details()[0]["name"] == "x"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"num_threads": True}, OptionError, "num_threads is a whole number, not bool"),
        ({"num_threads": "three"}, OptionError, "num_threads is a whole number, not str"),
        ({"num_threads": -5}, OptionError, "num_threads is -5; the least is 1"),
        ({"experimental_op_resolver_type": 3}, OptionError, "one of AUTO"),
        ({"experimental_preserve_all_tensors": "maybe"}, OptionError, "preserve_all_tensors is"),
        ({"experimental_disable_delegate_clustering": 2}, OptionError, "clustering is True or"),
        ({"experimental_default_delegate_latest_features": []}, OptionError, "features is True"),
        ({"model_path": "also.tflite"}, OptionError, "both was given"),
        ({"model_content": np.zeros(3)}, ArgumentError, "is bytes, not ndarray"),
        ({"model_content": "a.tflite"}, ArgumentError, "is bytes, not str"),
        ({"model_content": None, "model_path": np.zeros(3)}, ArgumentError, "is a path, not nda"),
    ],
)
def test_arguments_out_of_their_range(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Interpreter(**{"model_content": models.chain(), **arguments})


def test_a_word_for_no_is_no() -> None:
    interpreter = allocated(
        Interpreter(
            model_content=models.chain(),
            experimental_preserve_all_tensors="no",  # type: ignore[arg-type]
        )
    )
    with pytest.raises(InputError, match="not kept"):
        interpreter.get_tensor(2)


def test_strict_is_a_truth_value() -> None:
    interpreter = Interpreter(model_content=models.chain())
    with pytest.raises(OptionError, match="strict is True or False"):
        interpreter.resize_tensor_input(0, [1, 3], strict="sometimes")  # type: ignore[arg-type]
