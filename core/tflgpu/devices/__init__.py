"""Which devices there are, which one is taken, and why."""
