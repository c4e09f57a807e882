"""How long ago a file was used, by a clock that may have been set back since."""

from __future__ import annotations

import os
import time


def age_of(status: os.stat_result) -> float:
    """Seconds since a file was last used or written.

    A time to come is of before the clock was set back. It says as little as one that is long past, and
    counts as that: else such a file would be the youngest until the clock is there again, and whatever
    is made in the meantime would go before it.
    """
    return abs(time.time() - status.st_mtime)
