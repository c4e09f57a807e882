"""Plugins: hook specifications, the host that loads them, and the registry of what they bring."""
