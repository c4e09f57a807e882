"""Compiled OpenCL programs on disk."""

from __future__ import annotations

from pathlib import Path

from tflgpu.runtime.disk_cache import DiskCache as BinaryCache
from tflgpu.runtime.disk_cache import cache_folder, cache_key


def default_folder() -> Path:
    """``opencl`` in TFLGPU_CACHE_DIR, or in the user's cache folder."""
    return cache_folder("opencl")


__all__ = ["BinaryCache", "cache_key", "default_folder"]
