"""Which adapters there are, and what they can do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import wgpu
from tflgpu.backend_kit.driver_libraries import load_drivers, vulkan_manifests
from tflgpu.backend_kit.listing import VENDORS, Listing, vendor_named
from tflgpu.backend_kit.parallel import aside
from tflgpu.contract.device import DeviceInfo
from tflgpu.language.caps import DeviceCaps, guess_cache_bytes
from tflgpu.language.types import LARGEST_GROUP

from tflgpu_wgpu.identity import uuids_of

NAME = "wgpu"
#: Native APIs in the order in which they are preferred where several drive one GPU. OpenGL is
#: not among them: it has no f16 and few of the limits that kernels need.
_APIS = ("Vulkan", "Metal", "D3D12")
#: Vendors whose subgroups are as wide in every kernel. Others' compilers choose a width for each,
#: so that what one kernel shows says nothing of the next.
_STEADY = ("nvidia", "apple", "mesa")
_KINDS = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
_FEATURES = ("shader-f16", "subgroup", "timestamp-query")
#: Limits that are asked of the device as the adapter has them; the rest stay at their defaults.
_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-bindings-per-bind-group",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
    "max-compute-workgroups-per-dimension",
    "max-compute-workgroup-storage-size",
    "min-storage-buffer-offset-alignment",
)
_MOST_BINDINGS = 64
#: Sizes that a kernel's 32-bit signed index can reach, in whole vectors.
_MOST_BYTES = 2**31 - 16


def find_adapters() -> Listing[Any]:
    """All adapters once each, GPUs first, by wgpu's handles."""
    if reason := load_drivers(vulkan_manifests(), "VK_DRIVER_FILES"):
        return Listing("WebGPU", (), reason)
    try:
        _leave_out_opengl()
        with _runtime_folder():
            listed = list(wgpu.gpu.enumerate_adapters_sync())
    except Exception as error:  # noqa: BLE001
        return Listing("WebGPU", (), f"wgpu cannot list adapters: {error}")
    adapters = _unique(listed)
    uuids = uuids_of([adapter.info for adapter in adapters])
    ranked = (
        (_kind(h.info), attrs.evolve(_info(h.info), uuid=uuid), h)
        for h, uuid in zip(adapters, uuids, strict=True)
    )
    return Listing.of("WebGPU", ranked, "no Vulkan, Metal or Direct3D 12 driver was found")


def _leave_out_opengl() -> None:
    """Have wgpu load the drivers of `_APIS` only, unless it has loaded them already.

    Nothing here uses OpenGL, and Mesa's driver of it, once loaded, crashes forked children when
    they exit. Who wants it of wgpu, for something else, says so by WGPU_BACKEND_TYPE.
    """
    if "GL" in os.environ.get("WGPU_BACKEND_TYPE", ""):
        return
    # There is an instance already; or this version of wgpu-py cannot choose.
    with suppress(RuntimeError, ImportError, KeyError):
        from wgpu.backends.wgpu_native.extras import set_instance_extras

        set_instance_extras(backends=["Vulkan", "Metal", "DX12"])


def _unique(adapters: list[Any]) -> list[Any]:
    """Adapters in their order of preference, each GPU through one API only."""
    kept: dict[tuple[object, ...], str] = {}
    usable = [a for a in adapters if a.info["backend_type"] in _APIS]
    usable.sort(key=lambda a: _APIS.index(a.info["backend_type"]))
    found = []
    for adapter in usable:
        key = (adapter.info["vendor_id"], adapter.info["device_id"], adapter.info["adapter_type"])
        # Two GPUs of a kind have the same numbers, but then they are of the same API.
        if kept.setdefault(key, adapter.info["backend_type"]) == adapter.info["backend_type"]:
            found.append(adapter)
    return found


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """Mesa's loader complains on stderr, once for each library, where a session has no
    XDG_RUNTIME_DIR (a server, a container); any folder does for asking what GPUs there are."""
    name = "XDG_RUNTIME_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ[name]


def open_adapter(handle: Any) -> Any:
    """A wgpu device with all that the adapter has of what kernels can use."""
    features = [f for f in _FEATURES if f in handle.features]
    limits = {name: handle.limits[name] for name in _LIMITS if name in handle.limits}
    # It waits for a callback, and a signal that Python handles inside a callback is lost there
    # together with the answer. Other threads than the main one handle no signals.
    return aside(
        "tflgpu-wgpu-open",
        lambda: handle.request_device_sync(
            label="tflgpu", required_features=features, required_limits=limits
        ),
    )


#: Compute units where nothing tells them, by (is a GPU, is discrete): what is common.
_UNITS = {(True, True): 64, (True, False): 16, (False, False): 4}


def caps_of(info: Mapping[str, Any], features: set[str], limits: Mapping[str, int]) -> DeviceCaps:
    """A device's limits and features."""
    f16 = "shader-f16" in features
    axes = [limits[f"max-compute-workgroup-size-{axis}"] for axis in "xyz"]
    groups = limits["max-compute-workgroups-per-dimension"]
    return DeviceCaps(
        f16_storage=f16,
        f16_arithmetic=f16,
        int8_storage=True,  # in words: `tflgpu_wgpu.packed`
        max_workgroup=limits["max-compute-invocations-per-workgroup"],
        max_workgroup_size=(axes[0], axes[1], axes[2]),
        max_groups=(groups, groups, groups),
        shared_bytes=limits["max-compute-workgroup-storage-size"],
        max_buffer_bytes=min(
            limits["max-storage-buffer-binding-size"], limits["max-buffer-size"], _MOST_BYTES
        ),
        max_bindings=min(
            limits["max-storage-buffers-per-shader-stage"],
            limits["max-bindings-per-bind-group"],
            _MOST_BINDINGS,
        ),
        # What WebGPU does not tell: compute units, caches, and the width of subgroups.
        cache_bytes=guess_cache_bytes(is_gpu=_is_gpu(info), is_discrete=_is_discrete(info)),
        compute_units=_UNITS[_is_gpu(info), _is_discrete(info)],
        fused_fma=_is_gpu(info),
        is_gpu=_is_gpu(info),
        vendor=_vendor(info),
    )


def widest_shuffle(info: Mapping[str, Any], features: set[str]) -> int:
    """The most neighbours that may be in one subgroup in every kernel, 0 without subgroups."""
    if "subgroup" not in features:
        return 0
    if _vendor(info) in _STEADY:
        return LARGEST_GROUP
    # wgpu-py 0.32 has a name of its own for what WebGPU calls subgroupMinSize.
    least = info.get("subgroup_min_size", info.get("stackgroup_min_size", 0))
    return min(LARGEST_GROUP, int(least))


def _info(info: Mapping[str, Any]) -> DeviceInfo:
    driver = " ".join(part for part in (info["backend_type"], info["description"]) if part)
    return DeviceInfo(NAME, 0, info["device"], _vendor(info), _is_gpu(info), driver)


def _kind(info: Mapping[str, Any]) -> int:
    kind = info["adapter_type"]
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS)


def _is_gpu(info: Mapping[str, Any]) -> bool:
    return info["adapter_type"] in ("DiscreteGPU", "IntegratedGPU")


def _is_discrete(info: Mapping[str, Any]) -> bool:
    return bool(info["adapter_type"] == "DiscreteGPU")


def _vendor(info: Mapping[str, Any]) -> str:
    # Metal has names and no numbers.
    return VENDORS.get(info["vendor_id"]) or vendor_named(info.get("device", ""))
