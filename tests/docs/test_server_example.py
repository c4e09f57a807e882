"""examples/server.py: 24 clients at once, each answered with its own results; and what it refuses."""

from __future__ import annotations

import io
import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "core/tflgpu/demo/digits.tflite"
CLIENTS = 24


@pytest.fixture(params=[1, 8], ids=["one", "batches"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.syspath_prepend(ROOT / "examples")
    import server

    several = {"batch": request.param, "sizes": [request.param]}
    with tflgpu.Pool(MODEL, size=2, **several) as pool, server.serve(pool, "127.0.0.1", 0) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()
        thread.join(30)
    del sys.modules["server"]


def post(url: str, body: bytes) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def body(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_many_clients(url: str) -> None:
    with tflgpu.Model(MODEL) as model:
        shape = model._inputs[0].shape
        images = np.random.default_rng(0).random((CLIENTS, *shape[1:]), np.float32)
        wanted = [model(image[None])[0] for image in images]
        name = model.output_names[0]
    together = threading.Barrier(CLIENTS)

    def client(n: int) -> tuple[int, Any]:
        together.wait(60)
        return post(f"{url}/predict", body(images[n][None]))

    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = list(threads.map(client, range(CLIENTS)))
    assert [status for status, _ in answers] == [200] * CLIENTS
    for (_, said), result in zip(answers, wanted, strict=True):
        np.testing.assert_allclose(said[name], result, atol=1e-6)
    assert len({json.dumps(said) for _, said in answers}) == CLIENTS


def test_json_has_no_nan(url: str) -> None:
    request = urllib.request.Request(f"{url}/predict", body(np.full((1, 8, 8, 1), np.nan)))
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    assert "null" in text
    assert "NaN" not in text


def test_what_is_refused(url: str) -> None:
    assert post(f"{url}/other", b"x")[0] == 404
    assert post(f"{url}/predict", b"no array")[0] == 400
    status, said = post(f"{url}/predict", body(np.zeros((2, 2), np.float32)))
    assert status == 400
    assert "shape" in said["error"]
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    status, said = post(f"{url}/predict", pickled.getvalue())
    assert status == 400
    assert post(f"{url}/predict", b"PK\x03\x04 no archives")[0] == 400
    with urllib.request.urlopen(url, timeout=60) as answer:
        told = json.load(answer)
    assert len(told["copies that are free"]) == 2
    assert isinstance(told["runs by items"], dict)
