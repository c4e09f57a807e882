"""A model behind HTTP, for many clients at once; Python's own server, a thread for each request.

    python examples/server.py model.tflite --port 8000 --size 3 --batch 8
    curl --data-binary @photo.jpg http://127.0.0.1:8000/predict
    curl --data-binary @array.npy http://127.0.0.1:8000/predict

The body of a request is a photo (JPEG or PNG) or an array as `numpy.save` writes it, for a model of
one input. The answer is JSON: to a photo what it shows (`tflgpu.Task`), to an array the outputs by
name; null is NaN or an infinity, which JSON has not. What is wrong with a request is 400, too much
to do is 503, and a device that failed is 500 (the option ``on_error`` says what is tried before).
GET /health is 200, or 503 where the last request ended in a 500; /metrics is for Prometheus.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import tflgpu

#: The largest body in bytes, and how long a request waits for its turn in seconds.
MOST, PATIENCE = 64 << 20, 10.0

#: NumPy reads the header of an array with Python's own parser. In early releases of Python 3.11
#: that parser fails with a SystemError when two threads are in it (python/cpython issue 106905).
PARSING = threading.Lock()


#: How photos begin: JPEG, PNG.
PHOTOS = (b"\xff\xd8\xff", b"\x89PNG\r\n")


class Metrics:
    """Counts of requests by status, the seconds that they took, and the last status."""

    def __init__(self) -> None:
        self._lock, self._counts, self._seconds = threading.Lock(), Counter[int](), 0.0
        self.last = 200

    def add(self, status: int, seconds: float) -> None:
        """Another request."""
        with self._lock:
            self._counts[status] += 1
            self._seconds += seconds
            self.last = status

    def text(self, runs: dict[int, int]) -> str:
        """In the form that Prometheus reads; ``runs`` of the model by their number of items."""
        with self._lock:
            counts, seconds = dict(self._counts), self._seconds
        lines = ["# TYPE tflgpu_requests_total counter"]
        lines += [f'tflgpu_requests_total{{status="{s}"}} {n}' for s, n in sorted(counts.items())]
        lines += ["# TYPE tflgpu_request_seconds summary"]
        lines += [f"tflgpu_request_seconds_sum {seconds:.6f}"]
        lines += [f"tflgpu_request_seconds_count {sum(counts.values())}"]
        lines += ["# TYPE tflgpu_runs_total counter"]
        lines += [f'tflgpu_runs_total{{items="{s}"}} {n}' for s, n in sorted(runs.items())]
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    """Answers requests by ``pool`` and, those with photos, ``task``, which `serve` sets."""

    pool: tflgpu.Pool
    task: tflgpu.Task
    metrics: Metrics
    protocol_version = "HTTP/1.1"
    #: Seconds without a byte, after which a client is given up.
    timeout = 60.0

    def do_POST(self) -> None:
        """``/predict``."""
        start = time.monotonic()
        status, said = self._predicted()
        self.metrics.add(status, time.monotonic() - start)
        self._answer(status, said)

    def _predicted(self) -> tuple[int, dict[str, Any]]:
        try:
            body = self._body()
            if self.path != "/predict":
                return 404, {"error": f"there is no {self.path}; POST to /predict"}
            if body.startswith(PHOTOS):
                prepared = self.task.prepare(body)
                results = self.pool(*prepared.arrays.values(), timeout=PATIENCE)
                return 200, self.task.answer(results, prepared).asdict()
            results = self.pool(_array(body), timeout=PATIENCE)
        except (tflgpu.InputError, ValueError, EOFError, MemoryError) as error:
            return 400, {"error": str(error)}
        except tflgpu.BusyError as error:
            return 503, {"error": str(error)}
        except tflgpu.TflgpuError as error:
            return 500, {"error": str(error)}
        return 200, {name: _listed(a) for name, a in results.asdict().items()}

    def do_GET(self) -> None:
        """``/``: what runs where; ``/health`` and ``/metrics``."""
        # A body, which nothing asks for here, must not be taken for the next request.
        self.close_connection |= bool({"Content-Length", "Transfer-Encoding"} & {*self.headers})
        if self.path == "/metrics":
            self._send(200, self.metrics.text(self.pool.runs).encode(), "text/plain; version=0.0.4")
            return
        if self.path == "/health":
            is_failing = self.metrics.last == 500
            self._answer(503 if is_failing else 200, {"status": ["ok", "failing"][is_failing]})
            return
        if self.path != "/":
            self._answer(404, {"error": f"there is no {self.path}; GET /, or POST to /predict"})
            return
        reports = [report.summary for report in self.pool.reports]
        self._answer(200, {"copies that are free": reports, "runs by items": self.pool.runs})

    def log_message(self, *_: Any) -> None:
        """Nothing: a line for each request would be most of the work."""

    def _body(self) -> bytes:
        length = ", ".join(self.headers.get_all("Content-Length", ["none"]))  # two are none
        is_number = length.isascii() and length.isdigit() and len(length) < 18
        if "Transfer-Encoding" in self.headers or not is_number or not 0 < int(length) <= MOST:
            # What is not read must not be taken for the next request.
            self.close_connection = True
            raise ValueError(f"Content-Length: {length[:80]}; the body has 1 to {MOST} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            raise ValueError(f"a body of {len(body)} bytes with Content-Length: {length}")
        return body

    def _answer(self, status: int, said: dict[str, Any]) -> None:
        self._send(status, json.dumps(said, allow_nan=False).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _array(body: bytes) -> Any:
    with PARSING:
        try:
            # A body comes from anywhere: no pickles, and no archives, which `numpy.load` would
            # take.
            return np.lib.format.read_array(io.BytesIO(body), allow_pickle=False)
        except Exception as error:  # of a header that is damaged NumPy raises anything
            raise ValueError(f"the body is no array: {error}") from error


def _listed(array: Any) -> Any:
    """Nested lists, with None for what is not finite: a client's parser would refuse the whole
    answer."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    values = array.astype(object)
    values[~np.isfinite(array)] = None
    return values.tolist()


class Server(ThreadingHTTPServer):
    """Lets many clients come at the same moment."""

    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no fault of this program's."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def serve(pool: tflgpu.Pool, task: tflgpu.Task, host: str, port: int) -> Server:
    """A server that is ready for ``serve_forever``; its port is in ``server_address``. ``task`` is
    the pool's, and makes its input of photos."""
    bound = {"pool": pool, "task": task, "metrics": Metrics()}
    return Server((host, port), type("Bound", (Handler,), bound))


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--size", type=int, default=2, help="copies of the model on the device")
    parser.add_argument(
        "--batch", type=int, default=1, help="requests that are run together, at most"
    )
    parser.add_argument("--labels", help="names of the classes, one a line")
    parser.add_argument("--deadline", type=float, default=2.0, help="milliseconds to wait for them")
    given = parser.parse_args()
    options: dict[str, Any] = {"on_error": "retry", "run_timeout": 30}
    options |= {"size": given.size, "batch": given.batch, "deadline": given.deadline / 1e3}
    try:
        with (
            tflgpu.Pool(given.model, **options) as pool,
            tflgpu.Task(pool, labels=given.labels) as task,
            serve(pool, task, given.host, given.port) as server,
        ):
            print(f"http://{given.host}:{server.server_address[1]}/predict", flush=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print("closing")
    except (tflgpu.TflgpuError, OSError) as error:  # no such model or device; a port that is taken
        sys.exit(f"server.py: {error}")


if __name__ == "__main__":
    main()
