"""What the command does, as functions: measuring a model, looking at it, comparing it."""
