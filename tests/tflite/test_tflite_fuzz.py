"""A short run of the fuzzer; ``python -m tests.tflite.fuzz`` makes a long one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tflgpu.tflite.read import read_model

from tests.tflite import fuzz


def test_damaged_models_are_refused_or_keep_their_promises() -> None:
    result = fuzz.run(2000, seed=20, models=fuzz.bases())
    assert not result.failures, result.failures[0]
    # Were all refused, or for few reasons, then the cases would not reach past the first checks.
    assert result.accepted > 200
    assert result.refused > 1000
    assert len(result.messages) > 30


def test_damaged_real_models(find_model: Callable[[str], Path]) -> None:
    names = ("tflm_mnist_lstm_fp32", "mp_selfie_segmentation_f16")
    models = fuzz.bases()
    models.files = [find_model(name).read_bytes() for name in names]
    result = fuzz.run(300, seed=21, models=models)
    assert not result.failures, result.failures[0]
    assert result.accepted > 30


def test_cases_are_made_from_seed_and_number_alone() -> None:
    models = fuzz.bases()
    assert fuzz.make_case(3, 14, models) == fuzz.make_case(3, 14, models)
    assert fuzz.make_case(3, 14, models) != fuzz.make_case(4, 14, models)


def test_the_fuzzer_sees_a_crash_and_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: bytes) -> None:
        raise IndexError("out of range")

    def hang(_: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzz, "read_model", crash)
    assert "IndexError" in fuzz.run(1, 0, fuzz.bases()).failures[0]
    if hasattr(fuzz.signal, "setitimer"):
        monkeypatch.setattr(fuzz, "read_model", hang)
        assert "Hang" in fuzz.run(1, 0, fuzz.bases(), cap=0.05).failures[0]


def test_the_fuzzer_sees_a_broken_promise() -> None:
    import attrs

    model = read_model(fuzz.bases().files[0])
    op = attrs.evolve(model.main.operators[0], inputs=(99,))
    broken = attrs.evolve(model, subgraphs=(attrs.evolve(model.main, operators=(op,)),))
    with pytest.raises(fuzz.Broken, match="operator 0 reads"):
        fuzz.check_promises(broken)
