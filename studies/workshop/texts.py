"""Requests that are a pool's recorded texts in their order, as no prediction draws them: texts of a
run, for checks of intervals and of oracles."""

from __future__ import annotations

import numpy as np

from treepipe.core.requests import numbered
from treepipe.sim.acceptance import BlockOracle, Oracle, PoolOracle
from treepipe.sim.blocks import Blocks
from treepipe.sim.pool import Pool


class TextSource:
    """Recorded texts in cyclic order; answers off the text are drawn with the seed."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self._pool, self._seed = pool, seed
        texts = Blocks(pool, None)
        self._texts = [texts.of_prompts([number]) for number in range(len(pool.lengths))]

    def open(self, session: int, prompt_tokens: int, levels: int = 0) -> Oracle:
        number = numbered(session)[1]
        text = self._texts[(number - 1) % len(self._texts)]
        rng = np.random.default_rng([self._seed, number])
        oracle = BlockOracle if levels else PoolOracle
        return oracle(self._pool, text, rng, prompt_tokens, levels)
