"""Requests to Ray Serve, beside a deployment that does nothing and `Pool` in a process.

    python -m benchmarks.ray_serve --backend opencl

One caller keeps ``--ahead`` requests of one image in the queue, by a `DeploymentHandle` or by
`Pool.submit`; the model is that of `tflgpu demo`. The rounds of all three are in turn. Needs
`pip install "tflgpu[ray]"`.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from ray import serve
from tflgpu import Pool
from tflgpu.demo import load_digits
from tflgpu.integrations.ray_serve import TfliteServer
from tflgpu.ir.dtypes import Array

_DIGITS = load_digits()


class Nothing:
    """What Serve itself takes for a request and an answer of the same size."""

    async def predict(self, image: Array) -> dict[str, Array]:
        """Zeros."""
        return {"digit": np.zeros((len(image), 10), np.float32)}


def main() -> None:
    """Print a line for each round, and the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", required=True)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--ahead", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    options: dict[str, Any] = {"backend": asked.backend, "batch": asked.batch}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(http_options={"location": "NoServer"})
    handles = [
        serve.run(app, name=name, route_prefix=f"/{name}")
        for name, app in (
            ("nothing", serve.deployment(Nothing, max_ongoing_requests=256).bind()),
            ("model", serve.deployment(TfliteServer, max_ongoing_requests=256).bind(
                {"digits": _DIGITS.model}, **options
            )),
        )
    ]  # fmt: skip
    rates: list[list[float]] = []
    with Pool(_DIGITS.model, **options) as pool:
        submits: list[Callable[[Array], Any]] = [
            *(lambda image, to=handle: to.predict.remote(image=image) for handle in handles),
            pool.submit,
        ]
        for number in range(asked.rounds + 1):
            found = [_rate(submit, asked.requests, asked.ahead) for submit in submits]
            if number:  # the first opens the model and compiles
                rates.append(found)
                print("nothing {:.0f}, model {:.0f}, Pool {:.0f} requests/s".format(*found))
    print("medians: nothing {:.0f}, model {:.0f}, Pool {:.0f}".format(*np.median(rates, axis=0)))
    serve.shutdown()


def _rate(submit: Callable[[Array], Any], requests: int, ahead: int) -> float:
    waiting: deque[Any] = deque()
    begun = time.perf_counter()
    for number in range(requests):
        waiting.append(submit(_DIGITS.images[number % len(_DIGITS.images), 0][None]))
        if len(waiting) == ahead:
            waiting.popleft().result()
    for each in waiting:
        each.result()
    return requests / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
