"""`tflgpu.integrations.ray` by itself: batches, rows that do not fit, a worker's GPU."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.compat.entry import Judgement
from tflgpu.contract.device import DeviceInfo
from tflgpu.demo import load_digits
from tflgpu.devices.choose import Choice
from tflgpu.errors import DeviceLostError
from tflgpu.integrations import ray as adapter
from tflgpu.integrations.ray import Predictor, worker_options
from tflgpu_cpu_ref.recording import CpuRefRecording

UUID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
MADE = "digit"
RETRY = {"on_error": "retry"}


def mapped(predictor: Predictor, **columns: Any) -> dict[str, Any]:
    return asyncio.run(predictor(columns))


def predictor_of(**options: Any) -> Predictor:
    return Predictor(load_digits().model, backend="cpu_ref", **options)


def wanted(count: int) -> Any:
    digits = load_digits()
    with tflgpu.Model(digits.model, backend="cpu_ref") as model:
        assert (model.input_names, model.output_names) == (("image",), (MADE,))
        return model(digits.images[:count, 0])[0]


def images_of(*spoiled: int, count: int) -> Any:
    """A column of images, of which some lack columns of pixels."""
    column = np.empty(count, np.object_)
    for n in range(count):
        image = load_digits().images[n, 0]
        column[n] = image[:, :4] if n in spoiled else image
    return column


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("rows", [0, 3, 10])
def test_batches_of_any_size(batch: int, rows: int) -> None:
    images = load_digits().images[:rows, 0]
    found = mapped(predictor_of(batch=batch), image=images, id=np.arange(rows))
    assert set(found) == {MADE, "id"}
    np.testing.assert_allclose(found[MADE], wanted(rows), atol=1e-5)
    assert found["id"].tolist() == list(range(rows))


def test_several_batches_are_under_way_at_once() -> None:
    predictor, images = predictor_of(batch=4), load_digits().images[:12, 0]

    async def use() -> Any:
        parts = [images[:5], images[5:6], images[6:]]
        return await asyncio.gather(*(predictor({"image": part}) for part in parts))

    found = [part[MADE] for part in asyncio.run(use())]
    assert [len(part) for part in found] == [5, 1, 6]
    np.testing.assert_allclose(np.concatenate(found), wanted(12), atol=1e-5)


def test_columns_that_do_not_fit() -> None:
    images = load_digits().images[:2, 0]
    with pytest.raises(tflgpu.InputError, match="no columns"):
        mapped(predictor_of(), id=np.arange(2))
    with pytest.raises(tflgpu.InputError, match="rename columns"):
        mapped(predictor_of(), image=images, **{MADE: np.arange(2)})
    with pytest.raises(tflgpu.InputError, match=r"columns \[why\].*rename columns"):
        mapped(predictor_of(errors="why"), image=images, why=np.arange(2))
    found = mapped(predictor_of(), image=images_of(count=2))
    np.testing.assert_array_equal(found[MADE], mapped(predictor_of(), image=images)[MADE])


@pytest.mark.parametrize("batch", [1, 4])
def test_a_row_that_does_not_fit_is_named(batch: int) -> None:
    with pytest.raises(tflgpu.InputError, match=r"row 5 of a batch of 7: .*\[1, 8, 4, 1\].*image"):
        mapped(predictor_of(batch=batch), image=images_of(5, count=7))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("spoiled", [(), (2,), (0, 5, 6)])
def test_others_are_computed_beside_it(batch: int, spoiled: tuple[int, ...]) -> None:
    predictor = predictor_of(batch=batch, errors="why")
    found = mapped(predictor, image=images_of(*spoiled, count=7), id=np.arange(7))
    good = [n for n in range(7) if n not in spoiled]
    np.testing.assert_allclose(found[MADE][good], wanted(7)[good], atol=1e-5)
    assert np.isnan(found[MADE][list(spoiled)]).all()
    assert [n for n in range(7) if "[1, 8, 4, 1]" in found["why"][n]] == list(spoiled)
    assert [n for n in range(7) if not found["why"][n]] == good


def test_a_device_that_is_lost_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its rows are computed again."""
    predictor = predictor_of(batch=4, device=1)
    left, run = [3], CpuRefRecording._run

    def _run(recording: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise DeviceLostError("it is gone")
        run(recording)

    monkeypatch.setattr(CpuRefRecording, "_run", _run)
    found = mapped(predictor, image=load_digits().images[:20, 0])
    assert left[0] < 0
    np.testing.assert_allclose(found[MADE], wanted(20), atol=1e-5)


class Worker:
    """A worker of Ray's to which GPUs were assigned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *numbers: str, **environ: str) -> None:
        context = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": list(numbers), "TPU": []})
        engine = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
        monkeypatch.setitem(sys.modules, "ray", engine)
        for name in ("TFLGPU_DEVICE", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)


def test_the_gpu_that_was_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    Worker(monkeypatch, "1", CUDA_VISIBLE_DEVICES=f"GPU-{UUID}")
    assert worker_options({"size": 3}) == RETRY | {"size": 3, "devices": [f"uuid:{UUID}"]}


def test_a_list_of_the_node_goes_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    Worker(monkeypatch, "2", "0", CUDA_VISIBLE_DEVICES="2,0")
    assert worker_options({}, ["a", 7, "c"]) == RETRY | {"devices": ["c", "a"]}
    with pytest.raises(tflgpu.OptionError, match="GPU 2, 0 to this worker, and gpus has 2 devices"):
        worker_options({}, ["a", "b"])
    Worker(monkeypatch)
    with pytest.raises(tflgpu.OptionError, match="no GPU to this worker, and gpus has 1 devices"):
        worker_options({}, ["a"])


@pytest.mark.parametrize(
    "options", [{"device": 0}, {"devices": [0, 1], "on_error": "cpu"}, {"backend": "cpu"}]
)
def test_what_is_named_stays(monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    Worker(monkeypatch, "0", CUDA_VISIBLE_DEVICES="0")
    assert worker_options(options, ["a"]) == RETRY | options


def test_a_variable_that_names_the_device_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    Worker(monkeypatch, "0", CUDA_VISIBLE_DEVICES="0", TFLGPU_DEVICE=f"uuid:{UUID}")
    assert worker_options({"batch": 2}) == RETRY | {"batch": 2}


def test_no_other_gpu_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    Worker(monkeypatch, "0", HIP_VISIBLE_DEVICES="0")
    with pytest.raises(tflgpu.DeviceError, match="HIP_VISIBLE_DEVICES=0 assigns a GPU"):
        worker_options({})
    Worker(monkeypatch, "0")
    with pytest.raises(tflgpu.DeviceError, match="GPU 0 to this worker, and no environment"):
        worker_options({})
    Worker(monkeypatch, "0", CUDA_VISIBLE_DEVICES="-1")
    with pytest.raises(tflgpu.DeviceError, match="no environment variable says which"):
        worker_options({})


@pytest.mark.parametrize("is_gpu", [False, True])
def test_a_worker_without_a_gpu_takes_none(monkeypatch: pytest.MonkeyPatch, is_gpu: bool) -> None:
    Worker(monkeypatch, CUDA_VISIBLE_DEVICES="")
    info = DeviceInfo("toy", 0, "Toy GPU", is_gpu=is_gpu)
    found = SimpleNamespace(choice=Choice(info, (), Judgement()))
    monkeypatch.setattr(adapter, "CompatibilityList", lambda: found)
    assert worker_options({"backend": "toy"}) == RETRY | {"backend": "toy"}
    if not is_gpu:
        assert worker_options({}) == RETRY
        return
    with pytest.raises(tflgpu.DeviceError, match=r"no GPU to this worker, .* Toy GPU.*num_gpus=1"):
        worker_options({})


def test_outside_of_ray_nothing_is_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    Worker(monkeypatch, "0", CUDA_VISIBLE_DEVICES="0")
    monkeypatch.delitem(sys.modules, "ray")
    assert worker_options({"batch": 2}) == RETRY | {"batch": 2}
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    assert worker_options({"batch": 2}, ["a"]) == RETRY | {"batch": 2}
