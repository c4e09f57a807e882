"""A plugin that cannot be imported."""
