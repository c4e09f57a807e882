"""A device of a made-up backend, of which only what it says of itself is looked at."""

from __future__ import annotations

from typing import Any


class ToyDevice:
    """As much of a device as the contract demands. What runs something is refused."""

    alignment = 64

    def load(self, plan: Any, *, guard_bands: bool = False) -> Any:
        raise NotImplementedError

    def allocate(self, nbytes: int) -> Any:
        raise NotImplementedError

    def import_buffer(self, source: object) -> Any:
        raise NotImplementedError

    def source(self, kernel: Any) -> str:
        return ""

    def close(self) -> None:
        """There is nothing to release."""
