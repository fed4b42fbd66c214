"""The target's states that a draft reads, and how they travel: rules for both worlds.

A *boundary* is a place between the target's layers: b is the state after b layers, so 0 is the
embedding and L the last layer's output; ``NORMED`` is the state behind the final norm. Stages hand
captured states on with the hidden states of the same rows, and the last one sends them back with
its answer, as vLLM's stages do: prunes remove them with their rows, and no draft waits for two
messages of one row. A stage reads a boundary at the input of its layer b, which it has received
anyway, so that no boundary travels twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

NORMED = 2**16
"""The final norm's output, which the output projection reads; it is above all layers."""

Captures: TypeAlias = Callable[[Any, Mapping[str, Any], int], tuple[int, ...]]
"""Maps a draft's keys, its ``config.json`` and the target's number of layers to the boundaries that
it reads, in ascending order; raises ``ValueError`` with a sentence that begins with the key."""


def kept(captured: Sequence[int], layers: range) -> tuple[int, ...]:
    """Return the layers of a stage, counted from its first, whose inputs are captured.

    >>> kept((2, 4, 5, NORMED), range(4, 8))
    (0, 1)
    """
    return tuple(boundary - layers.start for boundary in captured if boundary in layers)


def carried(captured: Sequence[int], layers: range) -> int:
    """Count the captured states per row that leave a stage beside its own output.

    >>> carried((2, 4, 5, 8, NORMED), range(0, 4)), carried((2, 4, 5, 8, NORMED), range(4, 8))
    (1, 3)
    """
    return sum([boundary < layers.stop for boundary in captured])


def named_boundaries(
    said: str, ids: Sequence[int] | None, guess: int, layers: int
) -> tuple[int, ...]:
    """Return the boundaries that a checkpoint's ids of layers mean, in ascending order, as engines
    capture them.

    Args:
        said: the key ``capture``: "auto", what ids mean ("boundary" or "output" of a layer), or
            the boundaries themselves ("2,16,29").
        ids: the checkpoint's; None: EAGLE's own boundaries 2, L // 2 and L - 3.
        guess: added to the ids if ``said`` is "auto": 1 if they are taken for outputs.
        layers: number of the target's layers.

    Raises ``ValueError``: there is no such boundary, or ``said`` is none of these.
    """
    if said not in ("auto", "boundary", "output"):
        try:
            found = [int(each) for each in said.split(",")]
        except ValueError:
            raise ValueError(
                f"capture = {said!r} is neither auto, boundary, output, nor numbers like '2,16,29'"
            ) from None
    elif ids is None:
        found = [min(2, layers), layers // 2, max(layers - 3, 0)]
    else:
        added = {"auto": guess, "boundary": 0, "output": 1}[said]
        found = [each + added for each in ids]
    for each in found:
        if not 0 <= each <= layers:
            raise ValueError(
                f"capture = {said!r}: the target of {layers} layers has no boundary {each}"
            )
    return tuple(sorted(found))
