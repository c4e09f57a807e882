"""`Profile`: a target without its device."""

from __future__ import annotations

import re

import attrs

from tflgpu.errors import OptionError
from tflgpu.language.caps import DeviceCaps
from tflgpu.profiles.rules import RuleTable

_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")


@attrs.frozen(eq=False)
class Profile:
    """A device or delegate that a model can be checked for without having it.

    Either of a device (``caps``): what tflgpu would give it, by its own kernels; or of another
    delegate (``rules``): what that would take, by its own checks.

    Attributes:
        name: As commands take it, such as "adreno-740".
        title: For people.
        apis: Backends that reach such a device, the one that is judged by first; none for another
            delegate's rules.
        caps: What the device has at least. What is not known of it is what every device of the API
            has, so that what is said to be delegated is delegated.
        rules: What another delegate takes.
        sources: Where that is documented.
        notes: What to know besides.

    Raises:
        OptionError: it has both or neither of caps and rules, or no sources, or a name that no
            command line would take.
    """

    name: str
    title: str
    apis: tuple[str, ...] = ()
    caps: DeviceCaps | None = None
    rules: RuleTable | None = None
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Check what a typing mistake would turn into a wrong answer."""
        if _NAME.fullmatch(self.name) is None:
            raise OptionError(f"a profile's name is of small letters and digits, not {self.name!r}")
        if (self.caps is None) is (self.rules is None):
            raise OptionError(f"profile {self.name} has either the caps of a device or rules")
        if self.caps is not None and not self.apis:
            raise OptionError(f"profile {self.name} has caps but no API")
        if not self.sources:
            raise OptionError(f"profile {self.name} has no source")
