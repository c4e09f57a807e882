"""Ray Serve in a local Ray; what comes of it is written as JSON. `test_ray_engine` runs it.

python ray_serve_program.py OUT BACKEND UUID UUID
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve
from tflgpu import Model
from tflgpu.demo import load_digits
from tflgpu.errors import DeviceError
from tflgpu.integrations.ray_serve import TfliteServer

DIGITS = load_digits()
COUNT = 24
#: Seconds for anything that ends by itself.
LONG = 120


class Watched(TfliteServer):
    """Tells of itself, and breaks when it is told to."""

    async def facts(self) -> dict[str, Any]:
        """How its requests were gathered, and where it runs."""
        pool = (await self._loaded(self._name())).pool
        open_ones = sum(not model.is_closed for model in self._open)
        return {"runs": pool.runs, "pid": os.getpid(), "open": open_ones,
                "device": pool.reports[0].device}  # fmt: skip

    def fail(self) -> None:
        """As after a run that failed."""
        self._failure = DeviceError("the device is on fire")


def posted(url: str, body: Any, name: str = "") -> tuple[int, Any]:
    """The status and the answer of a request by HTTP."""
    headers = {"serve_multiplexed_model_id": name} if name else {}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=LONG) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    """All of it in one Ray, which takes seconds to start."""
    out, backend, *uuids = sys.argv[1:]
    with Model(DIGITS.model, backend=backend, device=f"uuid:{uuids[0]}") as model:
        wanted = model(DIGITS.images[:COUNT, 0])[0]
        (given,), (made,) = model.input_names, model.output_names
    images = [DIGITS.images[n, 0][None] for n in range(COUNT)]
    ray.init(
        num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False,
        object_store_memory=100 << 20,
    )  # fmt: skip
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    url = f"http://127.0.0.1:{port}/"
    deployment = serve.deployment(
        Watched, max_ongoing_requests=64, health_check_period_s=1, graceful_shutdown_timeout_s=LONG,
        ray_actor_options={"num_cpus": 0.5, "num_gpus": 1},
    )  # fmt: skip
    names = ("a", "b", "c")
    app = deployment.bind(
        dict.fromkeys(names, DIGITS.model), max_models=2, batch=8, deadline=1.0, backend=backend,
        gpus=[f"uuid:{uuid}" for uuid in uuids],
    )  # fmt: skip
    handle = serve.run(app, name="many", route_prefix="/")

    def ask(name: str, at: int) -> Any:
        return handle.options(multiplexed_model_id=name).predict.remote(**{given: images[at]})

    def gap(answer: Any, at: int) -> float:
        return float(np.abs(np.asarray(answer[made][0]) - wanted[at]).max())

    result: dict[str, Any] = {}
    # Dynamic batches; a request that does not fit among them.
    ask("a", 0).result(timeout_s=LONG)
    asked = [ask("a", at) for at in range(16)]
    bad = handle.options(multiplexed_model_id="a").predict.remote(**{given: images[0][:, :4]})
    result["gap"] = max(gap(each.result(timeout_s=LONG), at) for at, each in enumerate(asked))
    result["bad"] = refusal(bad)
    facts = handle.options(multiplexed_model_id="a").facts.remote().result(timeout_s=LONG)
    result["largest"], result["device"] = max(facts["runs"]), facts["device"]
    # Three models of which two are open at a time.
    asked = [ask(names[at % 3], at) for at in range(COUNT)]
    result["many"] = max(gap(each.result(timeout_s=LONG), at) for at, each in enumerate(asked))
    facts = handle.options(multiplexed_model_id="a").facts.remote().result(timeout_s=LONG)
    result["open"], result["pid"] = facts["open"], facts["pid"]
    result["unknown"] = refusal(ask("z", 0))
    # HTTP.
    status, answer = posted(url, {given: images[3].tolist()}, "b")
    result["http"] = [status, gap(answer, 3)]
    result["http_errors"] = [
        posted(url, {given: images[3].tolist()}, "z")[0],
        posted(url, {given: images[3].tolist()})[0],
        posted(url, {given: [[1.0]]}, "b")[0],
        posted(url, {"other": [[1.0]]}, "b")[0],
        posted(url, [1.0], "b")[0],
        posted(url, {given: "text"}, "b")[0],
    ]
    result["metrics"] = metrics()
    # A replica that is not healthy gives way to another.
    handle.fail.remote().result(timeout_s=LONG)
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        try:
            asked = handle.options(multiplexed_model_id="a").facts.remote().result(timeout_s=LONG)
        except Exception:  # noqa: BLE001  (it was on a replica that is gone)
            continue
        if asked["pid"] != facts["pid"]:
            break
        time.sleep(0.2)
    result["replaced"] = asked["pid"] != facts["pid"]
    result["after"] = gap(ask("a", 5).result(timeout_s=LONG), 5)
    # A replica that is killed: what it had is an error that says so, what comes later is answered.
    asked_late = [ask("a", at) for at in range(5)]
    time.sleep(0.3)
    os.kill(asked["pid"], signal.SIGKILL)
    result["killed"] = [
        why if (why := refusal(each)) != "nothing" else gap(each.result(timeout_s=LONG), at)
        for at, each in enumerate(asked_late)
    ]
    end = time.monotonic() + LONG
    while refusal(again := ask("a", 6)) != "nothing" and time.monotonic() < end:
        time.sleep(0.2)
    result["after_kill"] = gap(again.result(timeout_s=LONG), 6)
    # A deployment that ends answers what it has begun: this waits for others for a second.
    late = ask("a", 7)
    time.sleep(0.3)
    serve.delete("many")
    result["late"] = gap(late.result(timeout_s=LONG), 7)
    serve.shutdown()
    ray.shutdown()
    Path(out).write_text(json.dumps(result))


def metrics() -> dict[str, float]:
    """What Ray exports of ours for Prometheus, which it does every few seconds."""
    (node,) = ray.nodes()
    address = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
    found: dict[str, float] = {}
    end = time.monotonic() + LONG
    while len(found) < 2 and time.monotonic() < end:
        time.sleep(0.5)
        with urllib.request.urlopen(address, timeout=LONG) as answer:
            lines = answer.read().decode().splitlines()
        for name, label in (("seconds_count", 'model="a"'), ("errors", 'error="InputError"')):
            values = [
                float(line.rpartition(" ")[2])
                for line in lines
                if line.startswith(f"ray_tflgpu_{name}") and label in line
            ]
            if values:
                found[name] = sum(values)
    return found


def refusal(response: Any) -> str:
    """What a request ended in."""
    try:
        response.result(timeout_s=LONG)
    except Exception as error:  # noqa: BLE001  (Ray's own, made of the replica's)
        return f"{type(getattr(error, 'cause', error)).__name__}: {error}"
    return "nothing"


if __name__ == "__main__":
    main()
