"""Copies that several threads make."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tflgpu
from tflgpu.backend_kit import split_copy as module
from tflgpu.backend_kit.split_copy import PART, split_copy
from tflgpu.interpreter.copies import copy
from tflgpu.ir.dtypes import Array

from tests.small_models import small_model


@pytest.fixture(autouse=True)
def many_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_processors", lambda: 16)


@pytest.mark.parametrize("extra", [0, 1, 4093])
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_all_of_it_is_copied(parts: int, extra: int) -> None:
    source = np.random.default_rng(parts).integers(0, 256, parts * PART + extra, np.uint8)
    target = np.zeros_like(source)
    assert split_copy(target, source)
    np.testing.assert_array_equal(target, source)


def test_small_ones_and_those_of_a_small_machine_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not split_copy(np.zeros(2 * PART - 1, np.uint8), np.ones(2 * PART - 1, np.uint8))
    monkeypatch.setattr(module, "_processors", lambda: 3)
    assert not split_copy(np.zeros(4 * PART, np.uint8), np.ones(4 * PART, np.uint8))


@pytest.mark.parametrize("nbytes", [0, 12, 40_000, 3 * PART])
def test_of_any_size_and_layout(nbytes: int) -> None:
    source = np.random.default_rng(0).integers(0, 99, nbytes // 4, np.int32)
    for given in (source, source[::-1], source.astype(np.int16)):
        target = np.zeros(source.shape, np.int32)
        copy(target, given)
        np.testing.assert_array_equal(target, given)


def test_one_at_a_time() -> None:
    """What comes while another copy is split is made by its own thread."""
    source = np.ones(3 * PART, np.uint8)
    target = np.zeros_like(source)
    found: list[bool] = []
    with module._busy:
        thread = threading.Thread(target=lambda: found.append(split_copy(target, source)))
        thread.start()
        thread.join()
        copy(target, source)
    assert found == [False]
    assert target.all()


def test_after_a_signal_others_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    source = np.ones(3 * PART, np.uint8)
    assert split_copy(np.zeros_like(source), source)
    before = list(module._helpers)

    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module._Helper, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            split_copy(np.zeros_like(source), source)
    target = np.zeros_like(source)
    assert split_copy(target, source)
    assert target.all()
    assert not set(before) & set(module._helpers)


def test_items_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a batch that a model is called with are copied so, and parts of one."""
    made: list[tuple[int, ...]] = []

    def noted(target: Array, source: Array) -> bool:
        made.append(source.shape)
        return split_copy(target, source)

    monkeypatch.setattr(module, "split_copy", noted)
    items = PART // 256
    content = small_model({"x": (1, 256), "y": (1, 256)}, "y = RELU(x)")
    x = np.random.default_rng(0).standard_normal((2 * items - 8, 256)).astype(np.float32)
    with tflgpu.Model(content, batch=items, backend="cpu_ref") as model:
        (y,) = model(x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert made[0] == (items, 256)
    assert (items - 8, 256) in made
