"""The accuracy guard: compares a device's results with the CPU's, and computes in f32 where f16 is
the cause."""
