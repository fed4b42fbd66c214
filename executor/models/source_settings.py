"""What a draft server's draft is: the scenario's choice, before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from treepipe.core.drafter import LANGUAGE_MODEL
from treepipe.core.errors import UserError
from treepipe.core.verification import LOSSLESS, Sampling
from treepipe.files.reading import read_json
from treepipe.scenario.schema import SamplingSection, SourceSection


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The draft of a draft server.

    Attributes:
        model: folder of its weights, or None.
        sampling: the target's sampling, by which trees are drawn, too.
        remembers: whether the verification rule needs the draft's distributions.
    """

    section: SourceSection
    model: Path | None
    sampling: SamplingSection
    remembers: bool
    seed: int

    def captured(self, layers: int) -> tuple[int, ...]:
        """Return the boundaries that the draft reads of a target of ``layers`` layers.

        Raises ``UserError``: there are no such boundaries, or the draft's config is unreadable.
        """
        config = Path() if self.model is None else self.model / "config.json"
        try:
            parameters = self.section.parameters
            return self.section.drafter.captured(parameters, partial(read_json, config), layers)
        except ValueError as fault:
            raise UserError(f"draft source {self.section.source!r}: {fault}") from None

    @property
    def whole(self) -> bool:
        """Whether its weights are a whole language model's."""
        return self.section.drafter.weights == LANGUAGE_MODEL


def judged_sampling(section: SamplingSection) -> Sampling:
    """Sampling of the rule's distributions; see ``treepipe.core.verification``."""
    relaxes = section.rule not in LOSSLESS
    temperature = 1.0 if relaxes and not section.temperature else section.temperature
    return Sampling(temperature, section.top_p, section.top_k)
