"""The device database: facts about devices and drivers that their APIs do not report.

`entry` defines an entry, `table` holds the shipped ones, `judge` matches them against a device.
"""

from tflgpu.compat.entry import CompatEntry, Judgement, Verdict, effective_caps, judge

__all__ = ["CompatEntry", "Judgement", "Verdict", "effective_caps", "judge"]
