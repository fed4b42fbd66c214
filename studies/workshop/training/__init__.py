"""Training, measurement and description of the bundled reference pair; only in the repository.

- ``corpus``: the texts (those of a Python installation, and generated arithmetic), divided into
  training and held-out;
- ``train``: tokenizer, target, draft; runs all of the following too;
- ``prompts``: cuts ``prompts.json`` and ``validation_prompts.json`` from held-out texts;
- ``measure``: perplexity and agreement of draft and target, into ``metrics.json``;
- ``card``: writes ``MODEL_CARD.md`` from ``metrics.json``;
- ``train_eagle``: the EAGLE head; ``descent``: the training loop of all three models.
"""
