"""The example op of the tutorial."""
