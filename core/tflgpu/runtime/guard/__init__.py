"""The accuracy guard: a device's results held against the CPU's, and mended where f16 is to
blame."""
