"""examples/server.py: 24 clients at once, each answered with its own results; and what it
refuses."""

from __future__ import annotations

import http.client
import importlib
import io
import json
import re
import socket
import struct
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
from tflgpu.demo import load_digits

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "core/tflgpu/demo/digits.tflite"
CLIENTS = 24


@pytest.fixture(scope="module")
def program() -> Iterator[Any]:
    """The module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        yield importlib.import_module("server")
    del sys.modules["server"]


@pytest.fixture(scope="module", params=[1, 8], ids=["one", "batches"])
def url(request: pytest.FixtureRequest, program: Any) -> Iterator[str]:
    several = {"batch": request.param, "sizes": [request.param]}
    named = {"labels": [f"a {n}" for n in range(10)], "mean": 0, "std": 255}
    with (
        tflgpu.Pool(MODEL, size=2, **several) as pool,
        tflgpu.Task(pool, **named) as task,
        program.serve(pool, task, "127.0.0.1", 0) as made,
    ):
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()
        thread.join(30)


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


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


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


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_photos(url: str, kind: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs tflgpu[image]")
    digits = load_digits()
    for pixels, label in zip(digits.images[:5], digits.labels, strict=False):
        photo = image.fromarray(np.rint(pixels[0, :, :, 0] * 255).astype(np.uint8))
        sent = io.BytesIO()
        photo.resize((80, 80), image.Resampling.NEAREST).convert("RGB").save(sent, kind)
        status, said = post(f"{url}/predict", sent.getvalue())
        assert status == 200, said
        assert said["labels"][0]["name"] == f"a {label}"
    status, said = post(f"{url}/predict", b"\xff\xd8\xff no photo")
    assert (status, "readable image" in said["error"]) == (400, True)


def test_health_and_metrics(url: str) -> None:
    assert post(f"{url}/predict", body(np.zeros((1, 8, 8, 1), np.float32)))[0] == 200
    assert post(f"{url}/predict", b"no array")[0] == 400
    with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
        assert json.load(answer) == {"status": "ok"}
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    counts = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    ok, bad = (int(counts[f'tflgpu_requests_total{{status="{s}"}}']) for s in (200, 400))
    assert min(ok, bad) >= 1
    assert int(counts["tflgpu_request_seconds_count"]) >= ok + bad
    assert float(counts["tflgpu_request_seconds_sum"]) > 0


def test_a_device_that_fails_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    import server

    class Failing:
        def __call__(self, *arrays: Any, timeout: float) -> None:
            raise tflgpu.DeviceError("the device is gone")

    with server.serve(Failing(), None, "127.0.0.1", 0) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{made.server_address[1]}"
        status, said = post(f"{url}/predict", body(np.zeros((1, 8, 8, 1), np.float32)))
        assert (status, said) == (500, {"error": "the device is gone"})
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{url}/health", timeout=60)
        made.shutdown()
        thread.join(30)


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
    # A run of the model has 8 items where requests are gathered; a request has any number.
    assert re.search(r"float32\[(1|-1), 8, 8, 1\]", said["error"])
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    status, said = post(f"{url}/predict", pickled.getvalue())
    assert status == 400
    assert post(f"{url}/predict", b"PK\x03\x04 no archives")[0] == 400
    with urllib.request.urlopen(url, timeout=60) as answer:
        told = json.load(answer)
    assert len(told["copies that are free"]) == 2
    assert isinstance(told["runs by items"], dict)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}/favicon.ico", timeout=60)


def test_a_connection_outlives_a_refused_request(url: str) -> None:
    """The body that comes with a wrong path is no request of its own."""
    connection = http.client.HTTPConnection(*address(url), timeout=60)
    sent = body(np.zeros((1, 8, 8, 1), np.float32))
    for path, status in (("/other", 404), ("/predict", 200), ("/other", 404), ("/predict", 200)):
        connection.request("POST", path, sent)
        answer = connection.getresponse()
        assert (answer.status, answer.read()[:1]) == (status, b"{")
    connection.close()


@pytest.mark.parametrize("length", ["none", "abc", "-1", "1_0", "99999999999999", "1000"])
def test_lengths_that_are_no_length(url: str, length: str) -> None:
    """What follows is never taken for a request: one answer, and the connection ends."""
    said = "" if length == "none" else f"Content-Length: {length}\r\n"
    with socket.create_connection(address(url), timeout=60) as client:
        client.sendall(
            f"POST /predict HTTP/1.1\r\nHost: x\r\n{said}\r\nGET / HTTP/1.1\r\n\r\n".encode()
        )
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert length.encode() in answer


@pytest.mark.parametrize(
    "said",
    [
        "Content-Length: 1\r\nContent-Length: 9",
        f"Content-Length: {'9' * 5000}",
        "Transfer-Encoding: chunked\r\nContent-Length: 1",
    ],
    ids=["two", "5000 digits", "chunks"],
)
def test_lengths_that_contradict_each_other(url: str, said: str) -> None:
    with socket.create_connection(address(url), timeout=60) as client:
        client.sendall(f"POST /predict HTTP/1.1\r\n{said}\r\n\r\nxGET / HTTP/1.1\r\n\r\n".encode())
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "header",
    ["{", "{[]: 1}", "'''", "(" * 300, "[" * 3000, "\t 1\n 2", "{1: 2, 'a': 3}"]
    + [
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size},)}}"
        for size in ("9" * 30, "True", 999999999999, -1)
    ],
)
def test_arrays_with_a_damaged_header(
    url: str, header: str, capfd: pytest.CaptureFixture[str]
) -> None:
    sent = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64)
    status, said = post(f"{url}/predict", sent)
    assert (status, "the body is no array" in said["error"]) == (400, True)
    assert "Traceback" not in capfd.readouterr().err


def test_clients_that_leave_are_no_fault(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    sent = body(np.zeros((1, 8, 8, 1), np.float32))
    head = f"POST /predict HTTP/1.1\r\nContent-Length: {len(sent)}\r\n\r\n".encode()
    for _ in range(8):
        with socket.create_connection(address(url), timeout=60) as client:
            reset = struct.pack("ii", 1, 0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            client.sendall(head + sent + head + sent)
    assert post(f"{url}/predict", sent)[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_wrong_call_is_one_line(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, said in (
            ([tmp_path / "absent.tflite"], "no such file"),
            ([MODEL, "--batch", 0], "batch is 0"),
            ([MODEL, "--port", taken.getsockname()[1]], "in use"),
        ):
            monkeypatch.setattr(sys, "argv", ["server.py", *map(str, arguments)])
            with pytest.raises(SystemExit, match=said):
                program.main()
