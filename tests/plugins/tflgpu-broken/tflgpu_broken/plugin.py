"""Breaks at import, as a plugin whose driver was removed would."""

raise ImportError("libbroken.so.1: cannot open shared object file")
