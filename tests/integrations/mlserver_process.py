"""A real MLServer in a process of its own, and what is asked of it by REST and by gRPC."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Seconds after which a server that does not answer fails the test.
LONG = 120.0
#: A runtime for models that wait as long as there is a file ``hold`` in the folder of the server,
#: and leave a file ``inside`` for each run that has begun. Its worker writes its number.
BRAKE = """
import os, pathlib, time, uuid
from tflgpu.integrations.mlserver import TfliteRuntime
from tflgpu.interpreter.model import Model

HERE = pathlib.Path(__file__).parent


def slow(method):
    def call(*args, **named):
        if (HERE / "hold").exists():
            (HERE / f"inside-{uuid.uuid4()}").touch()
        while (HERE / "hold").exists():
            time.sleep(0.01)
        return method(*args, **named)

    return call


for name in ("__call__", "_begin", "_together"):
    setattr(Model, name, slow(getattr(Model, name)))


class Brake(TfliteRuntime):
    async def load(self):
        (HERE / "pid").write_text(str(os.getpid()))
        return await super().load()
"""


class Server:
    """An MLServer that serves the models of a folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "brake.py").write_text(BRAKE)
        self.folder = folder
        with socket.socket() as a, socket.socket() as b, socket.socket() as c:
            for each in (a, b, c):
                each.bind(("127.0.0.1", 0))
            self.http, self.grpc, self.metrics = (each.getsockname()[1] for each in (a, b, c))
        names = {"HTTP_PORT": self.http, "GRPC_PORT": self.grpc, "METRICS_PORT": self.metrics}
        environment = {
            **os.environ, **{f"MLSERVER_{name}": str(port) for name, port in names.items()},
            "MLSERVER_HOST": "127.0.0.1", "MLSERVER_DEBUG": "false", "PYTHONPATH": str(folder),
        }  # fmt: skip
        command = [str(Path(sys.executable).with_name("mlserver")), "start", str(folder)]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    def wait_until_ready(self, *models: str) -> None:
        end = time.monotonic() + LONG
        while True:
            try:
                if all(self.get(f"v2/models/{name}/ready")[0] == 200 for name in models):
                    return
            except OSError:
                pass
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.1)

    def wait_for(self, pattern: str, count: int) -> None:
        """Until there are so many files."""
        end = time.monotonic() + LONG
        while len(list(self.folder.glob(pattern))) < count:
            assert time.monotonic() < end, self.log
            time.sleep(0.01)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def get(self, path: str, port: int | None = None) -> tuple[int, Any]:
        return self._asked(urllib.request.Request(f"http://127.0.0.1:{port or self.http}/{path}"))

    def infer(self, model: str, *tensors: Mapping[str, Any], **others: Any) -> tuple[int, Any]:
        """The status, and what the body says."""
        body = json.dumps({"inputs": tensors, **others}).encode()
        address = f"http://127.0.0.1:{self.http}/v2/models/{model}/infer"
        head = {"content-type": "application/json"}
        return self._asked(urllib.request.Request(address, body, head))

    def repository(self, model: str, action: str) -> tuple[int, Any]:
        """Load or unload a model."""
        address = f"http://127.0.0.1:{self.http}/v2/repository/models/{model}/{action}"
        return self._asked(urllib.request.Request(address, b"", method="POST"))

    def close(self) -> int:
        """Ask it to end; the status of the process."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(LONG)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    @staticmethod
    def _asked(request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=LONG) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        try:
            return status, json.loads(body)
        except ValueError:
            return status, body.decode()


def put_model(folder: Path, name: str, content: bytes, extra: Any, **settings: Any) -> None:
    """A folder that MLServer takes for a model."""
    own = folder / name
    own.mkdir()
    (own / "model.tflite").write_bytes(content)
    said = {
        "name": name, "implementation": "tflgpu.integrations.mlserver.TfliteRuntime",
        "parameters": {"uri": "./model.tflite", "extra": {"backend": "cpu_ref", **extra}},
        **settings,
    }  # fmt: skip
    (own / "model-settings.json").write_text(json.dumps(said))


@contextmanager
def serving(folder: Path, *models: str) -> Iterator[Server]:
    server = Server(folder)
    try:
        server.wait_until_ready(*models)
        yield server
    finally:
        (folder / "hold").unlink(missing_ok=True)
        server.close()


def tensor(name: str, array: Any, datatype: str = "FP32") -> dict[str, Any]:
    """As REST has it."""
    data = array.reshape(-1).tolist()
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": data}
