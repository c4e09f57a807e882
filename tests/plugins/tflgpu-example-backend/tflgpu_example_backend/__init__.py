"""The example backend of the tutorial."""
