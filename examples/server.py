"""A model behind HTTP, for many clients at once; Python's own server, a thread for each request.

    python examples/server.py model.tflite --port 8000 --size 3 --batch 8
    curl --data-binary @image.npy http://127.0.0.1:8000/predict

The body of a request is an array as `numpy.save` writes it, for a model of one input; the answer is
JSON, with the outputs by name; null is NaN or an infinity, which JSON has not. What is wrong with a
request is 400, too much to do is 503, and a device that failed is 500 (the option ``on_error`` says
what is tried before).
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import tflgpu

#: The largest body in bytes, and how long a request waits for its turn in seconds.
MOST, PATIENCE = 64 << 20, 10.0

#: NumPy reads the header of an array with Python's own parser. In early releases of Python 3.11
#: that parser fails with a SystemError when two threads are in it (python/cpython issue 106905).
PARSING = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Answers requests by ``pool``, which `serve` sets."""

    pool: tflgpu.Pool
    protocol_version = "HTTP/1.1"
    #: Seconds without a byte, after which a client is given up.
    timeout = 60.0

    def do_POST(self) -> None:
        """``/predict``."""
        try:
            body = self._body()
            if self.path != "/predict":
                self._answer(404, {"error": f"there is no {self.path}; POST to /predict"})
                return
            results = self.pool(_array(body), timeout=PATIENCE)
        except (tflgpu.InputError, ValueError, EOFError, MemoryError) as error:
            self._answer(400, {"error": str(error)})
        except tflgpu.BusyError as error:
            self._answer(503, {"error": str(error)})
        except tflgpu.TflgpuError as error:
            self._answer(500, {"error": str(error)})
        else:
            self._answer(200, {name: _listed(a) for name, a in results.asdict().items()})

    def do_GET(self) -> None:
        """``/``: what runs where."""
        # A body, which nothing asks for here, must not be taken for the next request.
        self.close_connection |= bool({"Content-Length", "Transfer-Encoding"} & {*self.headers})
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
        body = json.dumps(said, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
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


def serve(pool: tflgpu.Pool, host: str, port: int) -> Server:
    """A server that is ready for ``serve_forever``; its port is in ``server_address``."""
    return Server((host, port), type("Bound", (Handler,), {"pool": pool}))


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
    parser.add_argument("--deadline", type=float, default=2.0, help="milliseconds to wait for them")
    given = parser.parse_args()
    options: dict[str, Any] = {"on_error": "retry", "run_timeout": 30}
    options |= {"size": given.size, "batch": given.batch, "deadline": given.deadline / 1e3}
    try:
        with (
            tflgpu.Pool(given.model, **options) as pool,
            serve(pool, given.host, given.port) as server,
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
