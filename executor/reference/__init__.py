"""The bundled reference pair: a small Llama target and a draft distilled from it.

What belongs here is what makes, measures and describes that pair, and the pair itself:

- ``corpus``: the texts (what a Python installation ships, and generated arithmetic), divided into
  training and held-out;
- ``train``: tokenizer, target, draft; runs all of the following too;
- ``prompts``: cuts ``prompts.json`` and ``validation_prompts.json`` from held-out texts;
- ``measure``: perplexity and agreement of draft and target, into ``metrics.json``;
- ``card``: writes ``MODEL_CARD.md`` from ``metrics.json``;
- ``target/`` and ``draft/``: the checkpoints, in Hugging Face layout.

Nothing that runs a pair belongs here: the executor treats this pair like any other.
"""
