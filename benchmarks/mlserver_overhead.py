"""What MLServer takes besides `Pool`: requests a second and the time of one, by REST and by gRPC.

    python -m benchmarks.mlserver_overhead --backend opencl
    python -m benchmarks.mlserver_overhead --model mobilenet_v2_1.0_224_f32 --backend opencl

It starts a real MLServer on the model and asks it from threads of this process, which take turns
for the processor with it: JSON by REST, and bytes by gRPC (`raw_input_contents`). MLServer has one
worker process (its default), or none (``parallel_workers: 0``). The first line is the same pool in
this process. "CPU" is the processor time for a request: of this process, or of the server and its
workers, which other programs on the machine change less than they change the rest. Needs
``pip install "tflgpu[mlserver]"``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tflgpu import Pool
from tflgpu.demo import load_digits
from tflgpu.tools.load import Caller, by_threads, one_by_one

from benchmarks.run import find_model

_LONG = 120.0


@contextmanager
def server(content: bytes, options: dict[str, Any], workers: int) -> Iterator[tuple[int, int, int]]:
    """The ports for REST and gRPC, and the process, of an MLServer that serves a model."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as a, socket.socket() as b:
        folder, ports = Path(name), []
        for each in (a, b):
            each.bind(("127.0.0.1", 0))
            ports.append(each.getsockname()[1])
        a.close()
        b.close()
        (folder / "model.tflite").write_bytes(content)
        said = {
            "name": "model",
            "implementation": "tflgpu.integrations.mlserver.TfliteRuntime",
            "parameters": {"uri": "./model.tflite", "extra": options},
        }
        (folder / "model-settings.json").write_text(json.dumps(said), encoding="utf-8")
        environment = {
            **os.environ,
            "MLSERVER_HTTP_PORT": str(ports[0]),
            "MLSERVER_GRPC_PORT": str(ports[1]),
            "MLSERVER_METRICS_ENDPOINT": "",
            "MLSERVER_PARALLEL_WORKERS": str(workers),
            "MLSERVER_DEBUG": "false",
        }
        command = [str(Path(sys.executable).with_name("mlserver")), "start", name]
        with (folder / "log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
        try:
            end = time.monotonic() + _LONG
            while not _is_ready(ports[0]):
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit((folder / "log").read_text(encoding="utf-8"))
                time.sleep(0.1)
            yield ports[0], ports[1], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_LONG)


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LONG)
    try:
        connection.request("GET", "/v2/models/model/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def rest(port: int, name: str, image: Any) -> Caller:
    """A caller of `by_threads` that asks by REST, by a connection of its thread's."""
    data = image.ravel().tolist()
    tensor = {"name": name, "shape": image.shape, "datatype": "FP32", "data": data}
    body = json.dumps({"inputs": [tensor]})

    def caller(_: int, going: Callable[[int], bool]) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LONG)

        def call() -> None:
            connection.request(
                "POST", "/v2/models/model/infer", body, {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == 200, said

        return one_by_one(call, [()])(0, going)

    return caller


def by_grpc(port: int, name: str, image: Any) -> Caller:
    """A caller of `by_threads` that asks by gRPC, by a channel of its thread's."""
    import grpc
    from mlserver.grpc import dataplane_pb2 as pb
    from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub

    request = pb.ModelInferRequest(
        model_name="model",
        inputs=[{"name": name, "datatype": "FP32", "shape": image.shape}],
        raw_input_contents=[image.tobytes()],
    )

    def caller(_: int, going: Callable[[int], bool]) -> list[float]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = GRPCInferenceServiceStub(channel)
            return one_by_one(lambda: stub.ModelInfer(request, timeout=_LONG), [()])(0, going)

    return caller


def processor_time(pid: int) -> float:
    """Seconds that a process and those that it started have computed, so far as they live."""
    own = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = int(own[11]) + int(own[12])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return ticks / os.sysconf("SC_CLK_TCK") + sum(processor_time(int(each)) for each in children)


def main() -> None:
    """Measure as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a name or path; the demo's model where nothing is said")
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=5.0)
    said = parser.parse_args()
    content = find_model(said.model).read_bytes() if said.model else load_digits().model
    options = {"backend": said.backend, "batch": said.batch}
    for threads in said.threads:
        with Pool(content, **options) as pool:
            (port,) = pool.inputs
            shape = [1, *port.open_shape[1:]]
            image = np.random.default_rng(0).random(shape).astype(np.float32)
            caller = one_by_one(pool, [(image,)])
            _measure(f"Pool, {threads} threads", caller, threads, said.seconds, os.getpid())
    for workers in (1, 0):
        with server(content, options, workers) as (http_port, grpc_port, pid):
            for threads in said.threads:
                for way, caller in (
                    ("REST", rest(http_port, port.name, image)),
                    ("gRPC", by_grpc(grpc_port, port.name, image)),
                ):
                    what = f"{way}, {threads} threads, {workers} workers"
                    _measure(what, caller, threads, said.seconds, pid)


def _measure(what: str, caller: Caller, threads: int, seconds: float, pid: int) -> None:
    by_threads(caller, threads, seconds=seconds / 4)
    before = processor_time(pid)
    found = by_threads(caller, threads, seconds=seconds)
    cpu = 1e3 * (processor_time(pid) - before) / len(found.times)
    p50 = 1e3 * float(np.median(found.times))
    print(
        f"{what:28} {found.rate:8.0f} requests/s, p50 {p50:7.2f} ms, CPU {cpu:6.2f} ms", flush=True
    )


if __name__ == "__main__":
    main()
