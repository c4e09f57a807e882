"""Choosing a token by its logit."""

from __future__ import annotations

import numpy as np

from tflgpu.errors import OptionError
from tflgpu.errors.blame import shown
from tflgpu.ir.dtypes import Array
from tflgpu.language_models.prompt_rules import PromptRules
from tflgpu.values import frozen


@frozen
class Sampling:
    """How a token is chosen.

    Attributes:
        temperature: Logits are divided by it; 0 chooses the likeliest.
        top_k: Only so many of the likeliest; 0 is all.
        top_p: Only the likeliest whose probabilities reach this together; 1 is all.

    Raises:
        OptionError: a number out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __attrs_post_init__(self) -> None:
        """Check the numbers."""
        for name, value, least, most in (
            ("temperature", self.temperature, 0, np.inf),
            ("top_k", self.top_k, 0, np.inf),
            ("top_p", self.top_p, 0, 1),
        ):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not least <= value <= most or (name == "top_p" and not value):
                allowed = "above 0 and at most 1" if name == "top_p" else "from 0 on"
                raise OptionError(f"{name} is a number {allowed}, not {shown(value)}")

    def choose(self, logits: Array, random: np.random.Generator) -> int:
        """A token, by logits [tokens]."""
        if not self.temperature:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self.temperature
        order = np.argsort(-scaled, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        shares = np.exp(scaled[order] - scaled[order[0]])
        shares /= shares.sum()
        if self.top_p < 1:
            count = int(np.searchsorted(np.cumsum(shares), self.top_p)) + 1
            order, shares = order[:count], shares[:count] / shares[:count].sum()
        return int(random.choice(order, p=shares))


@frozen
class SamplingRequest:
    """What a caller asks for; None is left to the bundle."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    def sampling(self, rules: PromptRules) -> Sampling:
        """How tokens are chosen.

        Raises:
            OptionError: a number out of its range.
        """
        temperature, top_k, top_p = self.temperature, self.top_k, self.top_p
        if temperature is None:
            temperature = 0.0 if rules.greedy else rules.temperature or 1.0
        return Sampling(
            temperature,
            rules.top_k if top_k is None else top_k,
            (rules.top_p or 1.0) if top_p is None else top_p,
        )
