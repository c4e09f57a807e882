"""How long ago a file was used, by a clock that may have been set back since."""

from __future__ import annotations

import os
import time


def age_of(status: os.stat_result) -> float:
    """Seconds since a file was last used or written.

    A time to come is of before the clock was set back. Such a file counts as long unused: else it
    would stay the youngest until the clock is there again, and newer files would be dropped before
    it.
    """
    return abs(time.time() - status.st_mtime)
