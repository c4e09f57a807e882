"""Ray Data with one actor of `Predictor`, beside `Pool` in a process, on the same items.

    python -m benchmarks.ray_data --backend opencl
    python -m benchmarks.ray_data --backend opencl --model any.tflite --items 20000 --batch 64

Both get the same arrays, in turn, ``--rounds`` times; needs `pip install "tflgpu[ray]"`. A rate is
of the items behind the first batch, from the end of that to the end of the last, so that neither
the start of an actor nor the opening of the model is in it; "in all" has both. ``--model small`` is
made here: three convolutions on pictures of 32 x 32, some 2.8 million products an item.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from tflgpu import Model, Pool
from tflgpu.integrations.ray import Predictor
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

#: Bytes of Ray's object store.
_STORE = 2 << 30


class Timed(Predictor):
    """Adds the time at which a batch was ready."""

    async def __call__(self, columns: dict[str, Array]) -> dict[str, Array]:
        """As `Predictor.__call__`, with a column "ready"."""
        found = await super().__call__(columns)
        rows = len(next(iter(found.values())))
        return {**found, "ready": np.full(rows, time.time())}


def main() -> None:
    """Print a line for each round, and the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="small", help='a file, or "small"')
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device")
    parser.add_argument("--items", type=int, default=20000)
    parser.add_argument("--batch", type=int, default=64, help="items that a run computes")
    parser.add_argument("--batch-size", type=int, default=256, help="of map_batches")
    parser.add_argument("--blocks", type=int, default=10, help="of the data set")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    content = _small() if asked.model == "small" else Path(asked.model).read_bytes()
    options: dict[str, Any] = {"backend": asked.backend, "batch": asked.batch}
    if asked.device is not None:
        options["device"] = asked.device
    with Model(content, **options) as model:
        (tensor,), (name,) = model.inputs, model.input_names
        shape = (asked.items, *tensor.shape[1:])
        items = np.random.default_rng(0).random(shape, np.float32).astype(tensor.dtype)
        few = model(items[: asked.batch])[0]
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=_STORE,
        logging_level="ERROR",
    )  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    blocks = [
        {name: items[ids], "id": ids}
        for ids in np.array_split(np.arange(asked.items), asked.blocks)
    ]
    stored = ray.data.from_blocks([_table(block) for block in blocks])
    rates: dict[str, list[float]] = {"Pool": [], "Ray Data": []}
    for _ in range(asked.rounds):
        for who, run in (("Pool", _by_pool), ("Ray Data", _by_ray)):
            begun = time.time()
            ready, found = run(content, options, items, stored, asked.batch_size)
            took = time.time() - begun
            np.testing.assert_allclose(found[: asked.batch], few, atol=1e-5)
            first = np.count_nonzero(ready == ready.min())
            rates[who].append((len(ready) - first) / (ready.max() - ready.min()))
            print(
                f"{who}: {rates[who][-1]:.0f} items/s; {took:.1f} s for {len(ready)} in all",
                flush=True,
            )
    pool, data = (float(np.median(each)) for each in rates.values())
    print(f"Pool {pool:.0f}, Ray Data {data:.0f} items/s: {data / pool:.0%}")
    ray.shutdown()


def _by_pool(
    content: bytes, options: dict[str, Any], items: Array, stored: Any, size: int
) -> tuple[Array, Array]:
    """When each item was ready, and the results."""
    batch = options["batch"]
    with Pool(content, sizes=[batch], deadline=0, **options) as pool:
        ready, found = [], []
        futures = [pool.submit(items[at : at + batch]) for at in range(0, len(items), batch)]
        for future in futures:
            found.append(future.result()[0])
            ready.append(np.full(len(found[-1]), time.time()))
    return np.concatenate(ready), np.concatenate(found)


def _by_ray(
    content: bytes, options: dict[str, Any], items: Array, stored: Any, size: int
) -> tuple[Array, Array]:
    """The same by one actor."""
    answers = stored.map_batches(
        Timed, fn_constructor_args=(content,), fn_constructor_kwargs=options, batch_size=size,
        compute=ray.data.ActorPoolStrategy(size=1),
    )  # fmt: skip
    parts = list(answers.iter_batches(batch_size=None, batch_format="numpy"))
    (name,) = set(parts[0]) - {"ready", "id"}
    ids, ready, found = (
        np.concatenate([part[key] for part in parts]) for key in ("id", "ready", name)
    )
    order = np.argsort(ids)  # blocks come as they are ready
    return ready[order], found[order]


def _table(block: dict[str, Array]) -> Any:
    from ray.data.block import BlockAccessor

    return BlockAccessor.batch_to_block(block)


def _small() -> bytes:
    random = np.random.default_rng(1)
    tensors = [TensorSpec("image", (1, 32, 32, 3))]
    operators = []
    size, channels = 32, 3
    for made, stride in ((16, 1), (32, 2), (64, 2)):
        size //= stride
        weights = random.normal(0, 0.2, (made, 3, 3, channels)).astype(np.float32)
        at = len(tensors)
        tensors += [
            TensorSpec(f"weights{at}", weights.shape, data=weights),
            TensorSpec(f"bias{at}", (made,), data=np.zeros(made, np.float32)),
            TensorSpec(f"layer{at}", (1, size, size, made)),
        ]
        attributes = {"stride_w": stride, "stride_h": stride, "fused_activation_function": 1}
        operators.append(OperatorSpec("CONV_2D", attributes, [at - 1, at, at + 1], [at + 2]))
        channels = made
    at = len(tensors)
    axes = np.array([1, 2], np.int32)
    tensors += [
        TensorSpec("axes", (2,), DType.I32, data=axes),
        TensorSpec("features", (1, channels)),
    ]
    operators.append(OperatorSpec("MEAN", {"keep_dims": False}, [at - 1, at], [at + 1]))
    return write_model(ModelSpec(tensors, operators, [0], [at + 1]))


if __name__ == "__main__":
    main()
