"""Times of whole passes by rows, as engines' benchmarks tell them, as a device profile.

Such a file times a pass through a whole model. With the model's sizes (its ``config.json``) the
time is divided: the output projection has its share of the weights that the smallest pass reads,
the layers have the rest in equal parts, and both together give every time of the file again.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from pydantic import BaseModel

from treepipe.core.errors import UserError
from treepipe.files.reading import read_text, reading, reading_fault
from treepipe.files.section import Count, Positive
from treepipe.files.toml_file import validated
from treepipe.profiles.chains import json_entries
from treepipe.profiles.schema import ModelProfile
from treepipe.profiles.shapes import BYTES, DType, Shape
from treepipe.profiles.synthetic import fit, read_step

Placed: TypeAlias = tuple[str, dict[str, Any]]
"""An entry of a file, behind the words that name its place."""
UNSAID = "not stated"
SILENT = (
    "the file tells nothing of pruning caches (prune_ms), of decisions (decide_ms), of idle gaps, "
    "of links, of memory or of energy"
)


@dataclass(frozen=True, slots=True)
class CostTable:
    """The content of such a file; what it does not tell is None or empty.

    Attributes:
        ms: a whole pass, by context length, by rows.
        dtype: that the profile states for the weights.
        notes: what the times are, and what was left out.
        draft_ms: of the draft's passes, by rows, where they are told apart.
    """

    ms: dict[int, dict[int, float]]
    notes: tuple[str, ...]
    model: str = ""
    dtype: DType | None = None
    hardware: str = ""
    versions: str = ""
    date: datetime.date | None = None
    draft_ms: dict[int, float] | None = None


def read_costs(kind: str, file: Path, model: str | None = None) -> CostTable:
    """Read a file of a kind in ``COSTS``. Raises ``UserError`` with file, entry and key."""
    with reading(file, "cannot be read"):
        text = read_text(file, "utf-8-sig")
    try:
        entries = json_entries(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: {reading_fault(error)}") from None
    try:
        return COSTS[kind]([(f"{file}: {place}", entry) for place, entry in entries], model)
    except OverflowError:
        raise UserError(f"{file}: one of its numbers is too large for a time or a size") from None


def device_content(
    found: CostTable,
    config: ModelProfile | None,
    *,
    model: str,
    dtype: str | None,
    source: str,
) -> dict[str, Any]:
    """Build a profile's content; without the model's sizes it holds the times of a role that has
    the whole model.

    Args:
        model: its name, where the file tells none.
        dtype: of the weights, instead of what the file or ``config`` tells.
    """
    notes = [*found.notes, SILENT]
    said = {
        "date": found.date or datetime.date.today(),
        "hardware": found.hardware or UNSAID,
        "versions": found.versions or UNSAID,
        "source": source,
    }
    if config is None:
        least = min(found.ms)
        if len(found.ms) > 1:
            notes.append(f"only times behind {least} tokens were taken; others need --config")
        if found.draft_ms is None:
            notes.append(
                "the model's sizes are unknown: stage_ms and draft_ms are of the whole model"
            )
        whole = {"stage_ms": found.ms[least], "draft_ms": found.draft_ms or found.ms[least]}
        return {**whole, "origin": {**said, "note": "; ".join(notes)}}
    shape = Shape.model_validate(config.model_dump(include=set(Shape.model_fields)))
    of_all = {
        "model": found.model or model,
        "dtype": dtype or found.dtype or config.dtype,
        "shape": shape.model_dump(exclude_defaults=True),
    }
    if found.draft_ms is not None:
        notes.append(f"the draft's passes are not in the layers: draft_ms = {found.draft_ms}")
    head, layer = divided(found.ms, shape)
    notes.append(
        f"the output projection's part is its share of the weights that the smallest pass reads, "
        f"and the same for any number of rows; each of {shape.layers} layers has an equal part of "
        f"the rest"
    )
    return {
        "origin": {**said, "note": "; ".join(notes)},
        "layer": [{**of_all, "ms": layer}],
        "head": [{**of_all, "ms": {0: {1: head}}}],
    }


def divided(
    ms: Mapping[int, Mapping[int, float]], shape: Shape
) -> tuple[float, dict[int, dict[int, float]]]:
    """Divide times of whole passes into one of the output projection and those of a layer."""
    context = min(ms)
    rows = min(ms[context])
    layers = shape.layers * shape.read_parameters(rows)
    head = ms[context][rows] * shape.head_parameters / (layers + shape.head_parameters)
    return head, {
        context: {rows: (time - head) / shape.layers for rows, time in times.items()}
        for context, times in ms.items()
    }


def _place(
    ms: dict[int, dict[int, float]], where: str, context: int, rows: int, time: float
) -> None:
    if rows in ms.setdefault(context, {}):
        raise UserError(
            f"{where}: {rows} rows behind {context} tokens are timed before, too; a profile is of "
            f"one setting"
        )
    ms[context][rows] = time


# --- llama.cpp ----------------------------------------------------------------------------------


class LlamaBench(BaseModel):
    """A test of ``llama-bench -o json`` (llama.cpp, tools/llama-bench/README.md)."""

    model_filename: str
    model_type: str
    model_size: Count
    model_n_params: Count
    build_commit: str
    build_number: int
    backends: str
    cpu_info: str
    gpu_info: str
    n_batch: Count
    n_ubatch: Count
    n_gpu_layers: int
    n_prompt: int
    n_gen: int
    n_depth: int = 0
    test_time: datetime.datetime
    avg_ns: Positive
    samples_ns: tuple[Positive, ...] = ()

    @property
    def name(self) -> str:
        return Path(self.model_filename).stem

    @property
    def dtype(self) -> DType:
        """The type with the nearest bytes of a weight, on average over the file's weights."""
        size = self.model_size / self.model_n_params
        return min(BYTES, key=lambda dtype: abs(BYTES[dtype] - size))


def _llama_bench(entries: Sequence[Placed], model: str | None) -> CostTable:
    """Read passes over a prompt of so many tokens, each one pass (``-p 1,2,4``), and of generated
    tokens (``-n 128``, the default), each a pass over one row behind those before it."""
    tests = [(place, validated(LlamaBench, entry, place)) for place, entry in entries]
    names = {test.name for _, test in tests}
    if len(names if model is None else names & {model}) != 1:
        raise UserError(f"{entries[0][0]}: models are {', '.join(sorted(names))}; give --model")
    own = [(place, test) for place, test in tests if test.name == (model or test.name)]
    ms: dict[int, dict[int, float]] = {}
    generated: dict[int, dict[int, float]] = {}
    left_out = 0
    for place, test in own:
        time = (median(test.samples_ns) if test.samples_ns else test.avg_ns) / 1e6
        if test.n_gen and not test.n_prompt:
            _place(generated, place, test.n_depth, 1, time / test.n_gen)
        elif not test.n_gen and 0 < test.n_prompt <= min(test.n_batch, test.n_ubatch):
            _place(ms, place, test.n_depth, test.n_prompt, time)
        else:
            left_out += 1
    for context, times in generated.items():
        ms[context] = times | ms.get(context, {})
    if not ms:
        raise UserError(f"{own[0][0]}: no test is one pass over a prompt (-p 1,2,4,8)")
    last, bits = own[-1][1], 8 * own[-1][1].model_size / own[-1][1].model_n_params
    notes = [
        f"{last.model_type}: {last.dtype} stands for {bits:.2f} bits a weight; "
        f"n_gpu_layers = {last.n_gpu_layers}",
        "medians of passes over rows of one text, whose last row alone is projected",
    ]
    if generated:
        notes.append(
            "passes over one row are generated tokens', behind those generated before, where no "
            "prompt has one row"
        )
    if left_out:
        notes.append(f"{left_out} tests were left out: they take several passes over their prompt")
    return CostTable(
        ms,
        tuple(notes),
        last.name,
        last.dtype,
        ", ".join(filter(None, (last.gpu_info, last.cpu_info))),
        f"llama.cpp {last.build_commit} (build {last.build_number}), {last.backends}",
        last.test_time.date(),
    )


def hop_content(one: Path, split: Path, model: str | None) -> dict[str, Any]:
    """Build the content of an engine's hop, of what a token takes over a split of ``llama-bench``
    more than on one device, divided by the messages of a token: to every further device and back.

    Raises ``UserError``: a file is wrong, times no pass over one row, or the split is no slower.
    """
    tables = [read_costs("llama-bench", file, model) for file in (one, split)]
    alone, over = [next((t[1] for t in each.ms.values() if 1 in t), None) for each in tables]
    for file, ms in ((one, alone), (split, over)):
        if ms is None:
            raise UserError(f"{file}: times no generated token (-n 64) and no pass over one row")
    assert alone is not None
    assert over is not None
    if tables[0].model != tables[1].model:
        raise UserError(f"{split}: is of model {tables[1].model}, {one} of {tables[0].model}")
    if over <= alone:
        raise UserError(
            f"{split}: a token takes {over:.4g} ms, and {alone:.4g} ms on one device ({one}): "
            f"the split adds nothing that could be a hop"
        )
    entry = json_entries(read_text(split, "utf-8-sig"))[0][1]
    shares = [share for share in str(entry.get("tensor_split", "")).split("/") if share]
    devices = max(2, sum(float(share) > 0 for share in shares))
    note = (
        f"a token takes {alone:.4g} ms on one device and {over:.4g} ms over {devices} "
        f"(tensor_split); a message to every further device and one back share the difference, in "
        f"which the link itself is included: name it as {{ profile = 'LINK+FILE', latency_ms = 0 }}"
    )
    origin = {
        "date": tables[1].date,
        "hardware": tables[1].hardware,
        "versions": tables[1].versions,
    }
    return {
        "hop_ms": (over - alone) / devices,
        "origin": {**origin, "source": f"llama-bench: {one.name}, {split.name}", "note": note},
    }


class BatchedBench(BaseModel):
    """A line of ``llama-batched-bench --output-format jsonl``: ``pl`` texts, each of ``pp`` tokens,
    to which ``tg`` are added in as many passes."""

    pp: int
    tg: Count
    pl: Count
    t_tg: Positive


def _batched_bench(entries: Sequence[Placed], model: str | None) -> CostTable:
    ms: dict[int, dict[int, float]] = {}
    for place, entry in entries:
        test = validated(BatchedBench, entry, place)
        _place(ms, place, test.pp + test.tg // 2, test.pl, 1e3 * test.t_tg / test.tg)
    note = "mean times of passes over one row of each of so many texts, all of them projected"
    return CostTable(ms, (note,), model or "", versions="llama.cpp, llama-batched-bench")


# --- vLLM with synthetic acceptance -------------------------------------------------------------


def _vllm_synthetic(entries: Sequence[Placed], model: str | None) -> CostTable:
    steps = [read_step(place, entry) for place, entry in entries]
    found = fit(steps)
    context = round(median(step.context for step in steps))
    notes = [
        f"fitted to the median times of steps of {len(steps)} runs, which it misses by at most "
        f"{found.worst:.1%}",
        "drafting takes one pass whatever its depth, as a block draft's (drafts.source = 'block')"
        if found.one_pass
        else "drafting takes a pass per token",
        "what every step takes besides its passes (scheduling, sampling) is in stage_ms",
        f"times behind about {context} tokens",
    ]
    if found.accepting is not None:
        notes.append(f"steps that accept all take {found.accepting:+.1%}, the engine's own work")
    served = model or str(entries[0][1].get("model_id", ""))
    ms = {context: found.verify}
    return CostTable(ms, tuple(notes), served, versions="vLLM", draft_ms=found.draft or None)


COSTS: dict[str, Callable[[Sequence[Placed], str | None], CostTable]] = {
    "llama-bench": _llama_bench,
    "llama-batched-bench": _batched_bench,
    "vllm-synthetic": _vllm_synthetic,
}
"""Readers of llama.cpp's two benchmarks, and of vLLM's benchmark with synthetic acceptance."""
