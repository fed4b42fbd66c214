"""Acceptance in the words of engines and reports, as hit ratios of a draft's first candidate.

Keys, their definitions and the conversion belong here. A chain of K tokens of which the i-th is
accepted in a share u_i of all rounds gives 1 + u_1 + ... + u_K tokens a round, the target's own
among them, and u_i / u_(i-1) is the hit ratio at depth i.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from treepipe.files.section import Positive, Section
from treepipe.profiles.hit_ratio import MOST_DRAFTED, Share, conditional, even_share


class DrawnSection(Section):
    """Keys of every acceptance from which texts are drawn."""

    uncertainty: Annotated[float, Field(gt=0, le=10)] | None = Field(
        None,
        description="of the share of misses, relative; treepipe plan uses it; default: the "
        "profile's",
    )


class _Figure(NamedTuple):
    """Keys that a figure needs beside it, and keys that say how it is defined."""

    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


FIGURES = {
    "accepted": _Figure(("drafted", "draft_tokens"), ("bonus_counted", "behind_rejection")),
    "mean_accepted_length": _Figure(("draft_tokens",), ("bonus_counted",)),
    "per_position": _Figure((), ("draft_tokens", "conditional")),
}


class Stated(DrawnSection):
    """How often chains of ``draft_tokens`` were accepted, by one of three figures.

    Shares by position are converted exactly. The two others are one number: the share that gives
    it if it is the same at every depth.
    """

    source: Literal["stated"]
    accepted: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="drafted tokens that were accepted: a count, or a share of drafted"
    )
    drafted: Positive | None = Field(
        None, description="drafted tokens; 1 beside a share, 100 beside a percentage"
    )
    mean_accepted_length: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="mean tokens of a round"
    )
    per_position: Annotated[tuple[Share, ...], Field(min_length=1, max_length=64)] | None = Field(
        None, description="share of all rounds in which a position and all above were accepted"
    )
    draft_tokens: Annotated[int, Field(ge=1, le=MOST_DRAFTED)] | None = Field(
        None, description="of each counted chain; default: as many as per_position has"
    )
    bonus_counted: bool | None = Field(
        None,
        description="the target's own token of each round counts: in a mean length (default true), "
        "or in both accepted and drafted (default false)",
    )
    behind_rejection: bool = Field(
        True, description="drafted counts the tokens behind a rejected one, too"
    )
    conditional: bool = Field(
        False, description="per_position has shares of the rounds that were right above"
    )

    @property
    def counted(self) -> int:
        """Tokens of each counted chain."""
        return self.draft_tokens or len(self.per_position or ())

    @cached_property
    def table(self) -> dict[int, float | tuple[float, ...]]:
        """Hit ratios by k, of the first candidate alone; raises ``ValueError`` if no chain has
        such figures."""
        if self.per_position is not None:
            given = self.per_position
            return {1: given if self.conditional else conditional((1.0, *given))}
        if self.accepted is None or self.drafted is None:
            assert self.mean_accepted_length is not None
            own = self.bonus_counted is not False
            return {1: even_share(self.mean_accepted_length + (not own), self.counted)}
        ratio, own = self.accepted / self.drafted, bool(self.bonus_counted)
        if ratio > 1:
            raise ValueError(f"accepted = {self.accepted:g} exceeds drafted = {self.drafted:g}")
        if not self.behind_rejection:
            return {1: ratio}  # every token that counts was judged, with the same chance
        return {1: even_share(ratio * (self.counted + own) + (not own), self.counted)}

    @model_validator(mode="after")
    def _is_stated_once(self) -> Stated:
        given = [name for name in FIGURES if getattr(self, name) is not None]
        if len(given) != 1:
            found = ", ".join(given) or "none"
            raise ValueError(f"one of {', '.join(FIGURES)} says how often; given: {found}")
        (figure,) = given
        needs, reads = FIGURES[figure]
        for name in needs:
            if getattr(self, name) is None:
                raise ValueError(f"key acceptance.{name} is missing beside {figure}")
        for name in sorted(
            self.model_fields_set - DrawnSection.model_fields.keys() - {"source", figure}
        ):
            if name not in needs + reads:
                raise ValueError(f"key acceptance.{name} has no effect beside {figure}")
        if self.per_position is not None and self.counted != len(self.per_position):
            raise ValueError(
                f"key acceptance.draft_tokens = {self.counted}, but per_position has "
                f"{len(self.per_position)}"
            )
        if self.bonus_counted and not self.behind_rejection:
            raise ValueError(
                "keys acceptance.bonus_counted and behind_rejection: a share of judged tokens that "
                "counts the target's own ones is none of a draft; leave one of them out"
            )
        assert self.table  # or it raises
        return self
