"""A real MLServer: the open inference protocol by REST and gRPC, and what goes wrong on the way."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.demo import load_digits
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.integrations.mlserver_process import LONG, Server, put_model, serving, tensor

pytest.importorskip("mlserver", reason='needs pip install "tflgpu[mlserver]"')

import grpc
from mlserver.grpc import dataplane_pb2 as pb
from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub

TABLE = np.arange(20, dtype=np.float32).reshape(5, 4) + 1
DIGITS = load_digits()
IMAGES = DIGITS.images[:8, 0]


def lookup() -> bytes:
    """Rows of a table; NumPy refuses numbers of rows that there are not."""
    tensors = [
        TensorSpec("words", (1, 2), DType.I32), TensorSpec("table", (5, 4), data=TABLE),
        TensorSpec("rows", (1, 2, 4)),
    ]  # fmt: skip
    steps = [OperatorSpec("GATHER", {"axis": 0}, [1, 0], [2])]
    return write_model(ModelSpec(tensors, steps, [0], [2]))


def doubled() -> bytes:
    tensors = [TensorSpec("x", (1, 4)), TensorSpec("y", (1, 4))]
    return write_model(ModelSpec(tensors, [OperatorSpec("ADD", {}, [0, 0], [1])], [0], [1]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("mlserver")
    put_model(folder, "digits", DIGITS.model, {"batch": 8})
    # All four requests of a test are in one batch: it waits for them.
    put_model(folder, "lookup", lookup(), {"batch": 4, "size": 1, "deadline": 60})
    put_model(folder, "adaptive", DIGITS.model, {"size": 1}, max_batch_size=4, max_batch_time=60.0)
    put_model(
        folder, "narrow", doubled(), {"size": 1, "queue_limit": 1}, implementation="brake.Brake"
    )
    with serving(folder, "digits", "lookup", "adaptive", "narrow") as made:
        yield made


@pytest.fixture(scope="module")
def stub(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        yield GRPCInferenceServiceStub(channel)


@pytest.fixture(scope="module")
def expected() -> Any:
    with tflgpu.Model(DIGITS.model, backend="cpu_ref") as model:
        return model(IMAGES)[0]


def output(answer: Any) -> Any:
    (found,) = answer["outputs"]
    return np.reshape(found["data"], found["shape"])


def test_metadata_is_that_of_the_signature(server: Server, stub: Any) -> None:
    status, found = server.get("v2/models/digits")
    assert status == 200
    assert found["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 8, 8, 1]}]
    assert found["outputs"] == [{"name": "digit", "datatype": "FP32", "shape": [-1, 10]}]
    said = stub.ModelMetadata(pb.ModelMetadataRequest(name="digits"), timeout=LONG)
    assert [(each.name, list(each.shape)) for each in said.inputs] == [("image", [-1, 8, 8, 1])]


@pytest.mark.parametrize("count", [1, 8])
def test_rest(server: Server, expected: Any, count: int) -> None:
    status, found = server.infer("digits", tensor("image", IMAGES[:count]), id="seven")
    assert (status, found["id"], found["model_name"]) == (200, "seven", "digits")
    np.testing.assert_allclose(output(found), expected[:count], atol=1e-5)


@pytest.mark.parametrize("raw", [False, True])
def test_grpc(stub: Any, expected: Any, raw: bool) -> None:
    """With contents as lists, and as bytes, which the answer then has as well."""
    given = pb.ModelInferRequest.InferInputTensor(name="image", datatype="FP32", shape=IMAGES.shape)
    request = pb.ModelInferRequest(model_name="digits", inputs=[given])
    if raw:
        request.raw_input_contents.append(IMAGES.astype(np.float32).tobytes())
    else:
        request.inputs[0].contents.fp32_contents.extend(IMAGES.reshape(-1).tolist())
    answer = stub.ModelInfer(request, timeout=LONG)
    (made,) = answer.outputs
    if raw:
        found = np.frombuffer(answer.raw_output_contents[0], np.float32)
    else:
        found = np.array(made.contents.fp32_contents)
    assert (made.name, list(made.shape)) == ("digit", [8, 10])
    np.testing.assert_allclose(found.reshape(8, 10), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (tensor("nonsense", IMAGES), "no input is called 'nonsense'"),
        (tensor("image", IMAGES[:, :4]), "shape"),
        ({**tensor("image", IMAGES), "data": [1, 2]}, "input 'image' is not what its shape"),
        (tensor("image", np.array(["a", "b"]), "BYTES"), "input 'image'"),
    ],
)
def test_what_does_not_fit_is_a_400(server: Server, stub: Any, given: Any, said: str) -> None:
    status, found = server.infer("digits", given)
    assert status == 400
    assert said in found["error"]


def test_errors_of_grpc(stub: Any) -> None:
    given = pb.ModelInferRequest.InferInputTensor(name="nonsense", datatype="FP32", shape=[1])
    given.contents.fp32_contents.append(1)
    with pytest.raises(grpc.RpcError) as error:
        stub.ModelInfer(pb.ModelInferRequest(model_name="digits", inputs=[given]), timeout=LONG)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no input is called 'nonsense'" in error.value.details()


def test_outputs_that_there_are_not(server: Server) -> None:
    status, found = server.infer("digits", tensor("image", IMAGES), outputs=[{"name": "nonsense"}])
    assert status == 400
    assert "no outputs [nonsense]; the model has [digit]" in found["error"]
    status, _ = server.infer("nonsense", tensor("image", IMAGES))
    assert status == 404


def test_a_poisoned_input_fails_alone(server: Server) -> None:
    """Four requests in one batch, of which one asks for a row that there is not."""
    rows = [[0, 1], [4, 3], [2, 99], [3, 3]]

    def ask(row: list[int]) -> tuple[int, Any]:
        return server.infer("lookup", tensor("words", np.array([row], np.int32), "INT32"))

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask, rows))
    assert [status for status, _ in answers] == [200, 200, 400, 200]
    assert "99" in answers[2][1]["error"]
    for row, (status, found) in zip(rows, answers, strict=True):
        if status == 200:
            np.testing.assert_array_equal(output(found)[0], TABLE[row])


def test_mlservers_own_batches(server: Server, expected: Any) -> None:
    """Four requests that it joins and takes apart again."""
    with ThreadPoolExecutor(4) as threads:
        ask = lambda n: server.infer("adaptive", tensor("image", IMAGES[n : n + 1]))  # noqa: E731
        answers = list(threads.map(ask, range(4)))
    for n, (status, found) in enumerate(answers):
        assert status == 200
        np.testing.assert_allclose(output(found)[0], expected[n], atol=1e-5)


def test_back_pressure_is_a_503(server: Server) -> None:
    """One request runs, one of five waits, and the others are refused at once."""
    x = tensor("x", np.full((1, 4), 3.0))
    hold = server.folder / "hold"
    hold.touch()
    with ThreadPoolExecutor(6) as threads:
        try:
            running = threads.submit(server.infer, "narrow", x)
            server.wait_for("inside-*", 1)
            others = [threads.submit(server.infer, "narrow", x) for _ in range(5)]
            refused = list(islice(as_completed(others, LONG), 4))
        finally:
            hold.unlink()
        for each in refused:
            status, found = each.result()
            assert status == 503
            assert "queue_limit" in found["error"]
        (waiting,) = set(others) - set(refused)
        for each in (running, waiting):
            status, found = each.result(LONG)
            assert status == 200
            np.testing.assert_array_equal(output(found), np.full((1, 4), 6.0))


def test_a_slow_client_keeps_no_others(server: Server, expected: Any) -> None:
    """One that sends half of a request, and one that does not read its answer."""
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{"
    with (
        socket.create_connection(("127.0.0.1", server.http), LONG) as half,
        socket.create_connection(("127.0.0.1", server.http), LONG) as silent,
    ):
        half.sendall(head)
        silent.sendall(b"GET /v2/models/digits HTTP/1.1\r\nhost: x\r\n\r\n")
        for n in range(8):
            status, found = server.infer("digits", tensor("image", IMAGES[n : n + 1]))
            assert status == 200
            np.testing.assert_allclose(output(found)[0], expected[n], atol=1e-5)


def test_metrics(server: Server) -> None:
    server.infer("digits", tensor("image", IMAGES[:3]))
    status, text = server.get("metrics", server.metrics)
    assert status == 200
    lines = [line for line in text.splitlines() if 'model_name="digits"' in line]
    assert any(line.startswith("tflgpu_pool_seconds_sum") for line in lines)
    (items,) = (line for line in lines if line.startswith("tflgpu_pool_items_sum"))
    assert float(items.split()[-1]) >= 3


def test_a_model_is_loaded_anew_and_taken_away(server: Server, stub: Any, expected: Any) -> None:
    """By the protocol's repository; requests in between are answered or refused by name."""
    for way, wanted in (("load", {200}), ("unload", {404}), ("load", {200})):
        status, _ = server.repository("adaptive", way)
        assert status == 200
        status, _ = server.get("v2/models/adaptive/ready")
        assert status in wanted


def test_a_worker_that_is_killed(server: Server) -> None:
    """The request that it had is an error, and the ones after it are answered by another."""
    x = tensor("x", np.full((1, 4), 3.0))
    (server.folder / "hold").touch()
    before = len(list(server.folder.glob("inside-*")))
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(server.infer, "narrow", x)
        server.wait_for("inside-*", before + 1)
        os.kill(int((server.folder / "pid").read_text()), signal.SIGKILL)
        (server.folder / "hold").unlink()
        status, found = lost.result(LONG)
    assert status >= 500, found
    end = time.monotonic() + LONG
    while status != 200:  # MLServer starts another worker, which loads all models
        assert time.monotonic() < end, server.log
        status, found = server.infer("narrow", x)
    np.testing.assert_array_equal(output(found), np.full((1, 4), 6.0))


def test_it_ends_when_it_is_told(tmp_path: Path) -> None:
    put_model(tmp_path, "digits", DIGITS.model, {})
    with serving(tmp_path, "digits") as server:
        assert server.close() in {0, -signal.SIGTERM}
        assert "Traceback" not in server.log
