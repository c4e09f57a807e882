"""What the interpreter says of a model equals what LiteRT says, key by key and type by type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import interpreter_models
import numpy as np
import pytest
from tflgpu.interpreter import Interpreter

litert = pytest.importorskip("ai_edge_litert.interpreter")


def assert_same(ours: Any, theirs: Any, where: str = "details") -> None:
    """Equal values of equal types, all the way down."""
    assert type(ours) is type(theirs), f"{where}: {type(ours)} for {type(theirs)}"
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype, where
        assert ours.shape == theirs.shape, where
        np.testing.assert_array_equal(ours, theirs, where)
    else:
        assert ours == theirs, where


def assert_same_interface(ours: Interpreter, theirs: Any) -> None:
    assert_same(ours.get_input_details(), theirs.get_input_details(), "inputs")
    assert_same(ours.get_output_details(), theirs.get_output_details(), "outputs")
    assert_same(ours.get_signature_list(), theirs.get_signature_list(), "signatures")
    for key in theirs.get_signature_list():
        a, b = ours.get_signature_runner(key), theirs.get_signature_runner(key)
        assert_same(a.get_input_details(), b.get_input_details(), f"{key} inputs")
        assert_same(a.get_output_details(), b.get_output_details(), f"{key} outputs")


def assert_same_model(content: bytes) -> None:
    ours = Interpreter(model_content=content)
    theirs = litert.Interpreter(model_content=content)
    assert_same_interface(ours, theirs)
    assert ours.num_subgraphs() == theirs.num_subgraphs()
    for index in range(ours.num_subgraphs()):
        assert_same(ours.get_tensor_details(index), theirs.get_tensor_details(index))
    assert_same(ours._get_ops_details(), theirs._get_ops_details(), "operators")


@pytest.mark.parametrize("name", interpreter_models.ALL)
def test_a_written_model_is_described_as_in_litert(name: str) -> None:
    assert_same_model(interpreter_models.ALL[name]())


@pytest.mark.parametrize("name", ["per_axis", "i4", "words"])
def test_constants_read_as_in_litert_before_allocation(name: str) -> None:
    content = interpreter_models.types()
    ours, theirs = Interpreter(model_content=content), litert.Interpreter(model_content=content)
    (index,) = (d["index"] for d in ours.get_tensor_details() if d["name"] == name)
    assert_same(ours.get_tensor(index), theirs.get_tensor(index))


def test_a_signature_that_the_file_lacks_follows_a_resize_as_in_litert() -> None:
    content = interpreter_models.static()
    ours, theirs = Interpreter(model_content=content), litert.Interpreter(model_content=content)
    for interpreter in (ours, theirs):
        size = [7, *interpreter.get_input_details()[0]["shape"][1:]]
        interpreter.resize_tensor_input(0, size)
        interpreter.allocate_tensors()
        assert list(interpreter.get_input_details()[0]["shape_signature"]) == size
        interpreter.resize_tensor_input(0, size, strict=True)  # as it is
        with pytest.raises(RuntimeError):
            interpreter.resize_tensor_input(0, [1, *size[1:]], strict=True)
    assert_same_interface(ours, theirs)


def test_details_follow_a_resize_as_in_litert() -> None:
    content = interpreter_models.chain()
    ours, theirs = Interpreter(model_content=content), litert.Interpreter(model_content=content)
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        interpreter.resize_tensor_input(0, [7, 3])
    assert_same_interface(ours, theirs)  # the input has changed, the output not yet
    assert list(ours.get_output_details()[0]["shape"]) == [1, 3]
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    assert_same_interface(ours, theirs)
    assert list(ours.get_output_details()[0]["shape"]) == [7, 3]


def test_details_are_copies() -> None:
    interpreter = Interpreter(model_content=interpreter_models.chain())
    interpreter.get_input_details()[0]["shape"][0] = 99
    assert list(interpreter.get_input_details()[0]["shape"]) == [1, 3]


def test_real_models_are_described_as_in_litert(models_dir: Path) -> None:
    paths = sorted(models_dir.glob("*.tflite"))
    assert paths, f"{models_dir} holds no models"
    for path in paths:
        assert_same_model(path.read_bytes())
