"""Engines as ``TreeExecutor``: this project's stages, and a model of transformers with a mask.

Both hold a tiny random model; whoever tries another engine writes such a class for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from treepipe.core.messages import NO_PARENT
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.stage_model import StageModel, TargetEnds
from treepipe.testing.random_model import VOCABULARY, save_random_checkpoint
from treepipe.testing.tree_executor import Logits, TreeExecutor

LAYERS, CUT, CAPACITY = 3, 1, 400


class Whole:
    """A model of transformers, whose plain pass is the reference."""

    vocabulary, tolerance = VOCABULARY, 1e-3

    def __init__(self, folder: Path) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model = model.eval()

    @torch.inference_mode()
    def plain(self, tokens: Sequence[int]) -> Logits:
        logits: Logits = self.model(torch.tensor([list(tokens)])).logits[0].numpy()
        return logits


class Stages(Whole):
    """The layers of ``treepipe.executor`` in two stages."""

    name, graphs = "ours", False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        checkpoint = Checkpoint.open(folder)
        self.ends = TargetEnds(checkpoint)
        cuts = range(CUT), range(CUT, LAYERS)
        self.stages = [
            StageModel(checkpoint, layers, CAPACITY, graphs=self.graphs) for layers in cuts
        ]

    def open(self, session: int) -> None:
        for stage in self.stages:
            stage.open(session)

    def forward(
        self,
        session: int,
        tokens: Sequence[int],
        positions: Sequence[int],
        parents: Sequence[int] | None,
    ) -> Logits:
        states = self.ends.embed(tokens)
        for stage in self.stages:
            states = stage.forward(session, states, positions, parents)
        logits: Logits = self.ends.logits(states).numpy()
        return logits

    def prune(self, session: int, keep: Sequence[int], accepted: int) -> None:
        for stage in self.stages:
            stage.cache(session).prune(keep, accepted)

    def close(self, session: int) -> None:
        for stage in self.stages:
            stage.close(session)


class MaskedModel(Whole):
    """A whole model of transformers with a mask and a cache per session, compacted by indices."""

    name = "transformers"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.caches: dict[int, Any] = {}
        self.committed: dict[int, int] = {}
        self.ancestors: dict[int, list[list[int]]] = {}

    def open(self, session: int) -> None:
        self.caches[session], self.committed[session] = DynamicCache(), 0
        self.ancestors[session] = []

    @torch.inference_mode()
    def forward(
        self,
        session: int,
        tokens: Sequence[int],
        positions: Sequence[int],
        parents: Sequence[int] | None,
    ) -> Logits:
        before = self.committed[session] + len(self.ancestors[session])
        seen = torch.zeros((len(tokens), before + len(tokens)), dtype=torch.bool)
        for row in range(len(tokens)):
            seen[row, self._seen(session, row, None if parents is None else parents[row])] = True
        if parents is None:
            self.committed[session] += len(tokens)
        mask = torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min)
        found = self.model(
            torch.tensor([list(tokens)]),
            attention_mask=mask[None, None],
            position_ids=torch.tensor([list(positions)]),
            past_key_values=self.caches[session],
            use_cache=True,
        )
        logits: Logits = found.logits[0].numpy()
        return logits

    def _seen(self, session: int, row: int, parent: int | None) -> list[int]:
        """Cache entries that a row attends to; a node is noted among the session's nodes."""
        committed, nodes = self.committed[session], self.ancestors[session]
        if parent is None:
            return [*range(committed + row + 1)]
        above = [] if parent == NO_PARENT else nodes[parent]
        nodes.append([*above, len(nodes)])
        return [*range(committed), *(committed + node for node in nodes[-1])]

    def prune(self, session: int, keep: Sequence[int], accepted: int) -> None:
        committed, nodes = self.committed[session], self.ancestors[session]
        entries = torch.tensor([*range(committed), *(committed + node for node in keep)])
        for layer in self.caches[session].layers:
            layer.keys, layer.values = layer.keys[:, :, entries], layer.values[:, :, entries]
        place = {old: new - accepted for new, old in enumerate(keep) if new >= accepted}
        self.ancestors[session] = [
            [place[above] for above in nodes[node] if above in place] for node in keep[accepted:]
        ]
        self.committed[session] += accepted

    def close(self, session: int) -> None:
        del self.caches[session], self.committed[session], self.ancestors[session]


ADAPTERS: dict[str, Callable[[Path], TreeExecutor]] = {"ours": Stages, "transformers": MaskedModel}
"""Makers of the adapters by name; each takes the folder of a checkpoint."""


def adapted(name: str, architecture: str = "llama") -> TreeExecutor:
    """Return an adapter of this name around a random model. Raises ``KeyError``."""
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        save_random_checkpoint(directory, architecture=architecture, layers=LAYERS, seed=3)
        return ADAPTERS[name](directory)
