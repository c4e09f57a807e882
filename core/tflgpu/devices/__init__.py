"""Which devices there are, which one is taken, and why.

`choose` finds the best, by the database, by a short measurement (`measure`) and by what earlier ones
said (`measured_times`); `targets` says what is compiled for it; `device_list` is the public view in the
manner of TFLite's `CompatibilityList`.
"""
