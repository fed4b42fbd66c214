"""Writes ``MODEL_CARD.md`` from ``metrics.json`` and the checkpoints beside it; measures nothing.

python -m treepipe.studies.workshop.training.card --out executor/reference
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from treepipe.studies.workshop.training.corpus import KINDS

ROLES = ("target", "draft")

HEAD = """\
# The bundled reference pair

A small target and a draft distilled from it, for tests, demonstrations and studies of speculative
decoding on a machine without downloads. Neither is a useful language model. This file is written by
`treepipe.studies.workshop.training.card` from `metrics.json`.
"""

CORPUS = """\
## Corpus

Everything ships with Python {python}, or is generated:

- **code**: the standard library's sources, without its tests, IDLE and site packages;
- **prose**: the language's help topics (`pydoc_data/topics.py`) and the docstrings of at least 200
  characters of those same sources;
- **arithmetic**: generated sheets of sums, differences, tables and sequences.

A hash of its name decides whether a file or topic is for training or held out (about 6 %);
arithmetic has one seed for each. For the prompts and for the finished pair's perplexity, help
topics and docstrings that share a paragraph of 100 characters with a training text, and sheets that
training saw, are left out of the held-out texts as well. Source files are not filtered in this
way, and single lines of sums also occur in training.
"""

LICENCE = """\
## Licence

The corpus's texts are Python's standard library and documentation, copyright Python Software
Foundation, under the PSF License Agreement (`LICENSE` of the Python installation); the arithmetic
is generated here. `prompts.json`, `validation_prompts.json` and `metrics.json` quote short passages
of these texts.
"""


ARCHITECTURE = """\
## Architecture

`LlamaForCausalLM` with tied embeddings, rotary positions (at most 1,024; trained on up to 640) and
a byte-level BPE of 2,048 tokens, of which token 0 ends a text. Weights are stored in float16 and
meant to be used in float32. Target and draft have the same tokenizer.
"""

TRAINING = """\
## Training

AdamW, a cosine schedule after a warm-up of 100 steps, float32, two CPU threads, seed {seed}. A
step is 2,560 tokens (16 windows of 160, every eighth time 4 of 640): half code, 35 % prose, 15 %
arithmetic. The last loss is that of one step: cross entropy for the target, Kullback-Leibler
divergence from the target's distribution for the draft, in nats per token.
"""

QUALITY = """\
## Held-out perplexity

Per token, on windows of 256. The unfiltered rows were taken during training on the same 40 windows
of each kind and compare with each other. The filtered rows are the finished pair as it is stored,
on 120 windows of each kind (fewer where a kind has fewer), without texts that training saw in part.
"Overall" is the geometric mean over the kinds, with equal weights.
"""

AGREEMENT = """\
## Agreement of draft and target

How often the target's greedy choice is among the draft's 1, 4 and 8 most probable tokens, on the
target's own continuations, of at most 64 tokens, of the 20 held-out prompts of each kind. Distinct
4-grams, counted within each continuation, say how little it repeats itself.
"""

EAGLE = """\
## EAGLE head

`eagle/` holds a head for the target in the layout of the published EAGLE-1 and EAGLE-2 heads (`fc`,
one decoder layer; embedding and output projection are the target's), trained by
`treepipe.studies.workshop.training.train_eagle`
for {steps:,} steps{clock}.

How often the target's greedy choice is among its 1 and 4 most probable tokens, by how many tokens
above were read from the head's own guesses instead of the target's states:
"""

EAGLE3 = """\
## EAGLE-3 head

`eagle3/` holds a head for the target in the layout of EAGLE's code: `fc` over the states after 2, 4
and 5 layers (2, L // 2 and L - 3), one decoder layer of inner width 384, and a projection to the
1,024 most frequent tokens of the training texts (`d2t`, `t2d`); the embedding is the target's.
Trained by `treepipe.studies.workshop.training.train_eagle3`
for {steps:,} steps{clock}, which unroll two passes ("training-time test").

As above, by how many tokens were read from the head's own states:
"""

BLOCK = """\
## Block draft

`block/` holds a block draft for the target in the layout of DFlash (`fc` and `hidden_norm` over the
target's last state, {layers} decoder layers that attend to all states before the newest token and
within the block, `norm`; embedding and output projection are the target's), trained by
`treepipe.studies.workshop.training.train_block` for {steps:,} steps on the target's own
continuations. One pass proposes {levels} tokens.

How often the target's greedy choice is among the 1 and 4 most probable tokens of a level, which are
the same whatever the tokens above it:
"""

REPRODUCTION = """\
## Reproduction

    python -m treepipe.studies.workshop.training.train \\
        --target-steps {target} --draft-steps {draft} --out DIRECTORY

These weights were made with Python {python} and torch {torch}. Tokenizer, order of the training
windows and prompts are the same every time for one Python version; with one torch and as many
threads, so are the weights.
"""

BY_THE_CLOCK = """
The weights bundled here are older than that: their training stopped by the clock, after {target:g}
and {draft:g} minutes, and the learning rate followed it. The command above takes as many steps; it
gives a pair of the same make, not the same weights.
"""


def card(out: Path) -> str:
    """Return the text of the card for the pair in ``out``."""
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    sections = [
        HEAD,
        _architecture(out, metrics),
        CORPUS.format(python=metrics["python"]) + "\n" + _tokens(metrics),
        _training(metrics),
        _quality(metrics),
        _agreement(metrics),
        _head(out, "eagle", EAGLE),
        _head(out, "eagle3", EAGLE3),
        _block(out),
        _reproduction(metrics),
        LICENCE,
        _samples(metrics),
    ]
    return "\n".join(sections)


def write(out: Path) -> None:
    """Write the card beside the pair it describes."""
    (out / "MODEL_CARD.md").write_text(card(out), encoding="utf-8")


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; columns after the first are flushed right.

    >>> print(_table(["kind", "tokens"], [["code", "12"]]), end="")
    | kind | tokens |
    |---|---:|
    | code | 12 |
    """
    first, *rest = (f"| {' | '.join(row)} |" for row in (head, *rows))
    rule = "|---" + "|---:" * (len(head) - 1) + "|"
    return "\n".join([first, rule, *rest]) + "\n"


def _architecture(out: Path, metrics: dict[str, Any]) -> str:
    rows = []
    for role in ROLES:
        config = json.loads((out / role / "config.json").read_text(encoding="utf-8"))
        size = (out / role / "model.safetensors").stat().st_size
        keys = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
        numbers = [str(config[key]) for key in keys]
        rows.append([role, *numbers, f"{metrics[role]['parameters']:,}", f"{size / 2**20:.2f} MiB"])
    head = ["", "layers", "width", "inner width", "heads", "parameters", "`model.safetensors`"]
    return ARCHITECTURE + "\n" + _table(head, rows)


def _tokens(metrics: dict[str, Any]) -> str:
    measured = metrics["measured"]["held_out_tokens"]
    rows = [
        [kind, f"{metrics['training_tokens'][kind]:,}", f"{measured[kind]:,}"] for kind in KINDS
    ]
    return _table(["kind", "training tokens", "held-out tokens (filtered)"], rows)


def _training(metrics: dict[str, Any]) -> str:
    rows = []
    for role, aim in zip(ROLES, ("next token", "the target's distribution"), strict=True):
        run = metrics[role]
        loss = f"{run['final_training_loss']:.3f}"
        rows.append([role, aim, f"{run['steps']:,}", loss])
    head = ["", "learns", "steps", "last loss"]
    return TRAINING.format(seed=metrics["seed"]) + "\n" + _table(head, rows)


def _quality(metrics: dict[str, Any]) -> str:
    measured = metrics["measured"]["held_out_perplexity"]
    rows = []
    for role in ROLES:
        early, late = (
            metrics[role].get(f"held_out_perplexity{suffix}") for suffix in ("_after_5_minutes", "")
        )
        if early:
            rows.append([f"{role}, after 5 minutes, unfiltered", *_cells(early)])
        rows.append([f"{role}, at the end, unfiltered", *_cells(late)])
    rows += [[f"{role}, finished, filtered", *_cells(measured[role])] for role in ROLES]
    return QUALITY + "\n" + _table(["", "overall", *KINDS], rows)


def _cells(figures: dict[str, float]) -> list[str]:
    product = 1.0
    for kind in KINDS:
        product *= figures[kind]
    overall = product ** (1 / len(KINDS))
    return [f"{value:.2f}" for value in (overall, *(figures[kind] for kind in KINDS))]


def _agreement(metrics: dict[str, Any]) -> str:
    found = metrics["measured"]["continuations"]
    rows = []
    for kind in KINDS:
        agreed = [f"{share:.1%}" for share in found[kind]["agreement"].values()]
        fresh = f"{found[kind]['distinct_4_grams']:.1%}"
        rows.append([kind, *agreed, fresh, f"{found[kind]['positions']:,}"])
    head = ["kind", "top 1", "top 4", "top 8", "distinct 4-grams", "tokens"]
    return AGREEMENT + "\n" + _table(head, rows)


def _head(out: Path, name: str, section: str) -> str:
    """Return a head's section, empty without that head."""
    path = out / name / "metrics.json"
    if not path.exists():
        return ""
    figures = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        [depth, f"{shares['top_1']:.1%}", f"{shares['top_4']:.1%}"]
        for depth, shares in figures["agreement"].items()
    ]
    clock = ""
    if "minutes" in figures:
        minutes = f"{figures['minutes']:g} minutes"
        clock = f" (at least; an older script stopped by the clock, after {minutes})"
    made = section.format(steps=figures["steps"], clock=clock)
    return made + "\n" + _table(["guessed levels above", "top 1", "top 4"], rows)


def _block(out: Path) -> str:
    """Return the block draft's section, empty without one."""
    path = out / "block" / "metrics.json"
    if not path.exists():
        return ""
    figures = json.loads(path.read_text(encoding="utf-8"))
    config = json.loads((out / "block" / "config.json").read_text(encoding="utf-8"))
    rows = [
        [str(int(depth) + 1), f"{shares['top_1']:.1%}", f"{shares['top_4']:.1%}"]
        for depth, shares in figures["agreement"].items()
    ]
    layers, levels = config["num_hidden_layers"], config["block_size"] - 1
    made = BLOCK.format(steps=figures["steps"], layers=layers, levels=levels)
    return made + "\n" + _table(["level", "top 1", "top 4"], rows)


def _reproduction(metrics: dict[str, Any]) -> str:
    """Describe how to repeat the training, and whether the result would be equal."""
    steps = {role: metrics[role]["steps"] for role in ROLES}
    text = REPRODUCTION.format(python=metrics["python"], torch=metrics["torch"], **steps)
    if "minutes" in metrics["target"]:
        text += BY_THE_CLOCK.format(**{role: metrics[role]["minutes"] for role in ROLES})
    return text


def _samples(metrics: dict[str, Any]) -> str:
    parts = ["## Greedy continuations of held-out prompts\n"]
    for kind in KINDS:
        for sample in metrics["measured"]["continuations"][kind]["samples"]:
            parts.append(
                f"{kind}, prompt:\n\n{_quoted(sample['prompt'])}\n\n"
                f"continuation:\n\n{_quoted(sample['continuation'])}\n"
            )
    return "\n".join(parts)


def _quoted(text: str) -> str:
    r"""Return the text as an indented block, which no content can end.

    >>> print(_quoted("a\n  b"))
        a
          b
    """
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))


def main() -> None:
    """Write the card of a measured pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of target and draft")
    write(parser.parse_args().out)


if __name__ == "__main__":
    main()
