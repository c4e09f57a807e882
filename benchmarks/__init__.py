"""Speed and accuracy against other runtimes. Run from a checkout: `python -m benchmarks.run`."""
