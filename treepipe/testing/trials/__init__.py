"""The trials, a file each for trials of one world; each file ends in its ``TRIALS``."""

from __future__ import annotations

from collections.abc import Mapping

from treepipe.testing.case import Trial
from treepipe.testing.trials import adversary, decoding, sampling, timed

TRIALS: Mapping[str, Trial] = {
    trial.name: trial
    for module in (decoding, adversary, sampling, timed)
    for trial in module.TRIALS
}
