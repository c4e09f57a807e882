"""Which operators would run on a device that is not here, or in another delegate.

    for profile in tflgpu.profiles.list():
        print(profile.name, profile.title)
    print(tflgpu.profiles.report("model.tflite", "adreno-740"))

`profile` says what a profile is; `devices.toml` has those of devices, `delegates.toml` those of
other delegates, which are data; `checks`, `seen` and `delegation` do with them what the originals
do; `report` puts a model to either kind.
"""

from tflgpu.profiles.report import report
from tflgpu.profiles.table import Profile, every, get

list = every

__all__ = ["Profile", "every", "get", "list", "report"]
