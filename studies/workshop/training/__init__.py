"""Training and measurement of the bundled reference pair; only in the repository.

- ``corpus``: the texts (those of a Python installation, and generated arithmetic), divided into
  training and held-out;
- ``train``: tokenizer, target, draft; runs all of the following too;
- ``prompts``: cuts ``prompts.json`` and ``validation_prompts.json`` from held-out texts;
- ``measure``: perplexity and agreement of draft and target, into ``metrics.json``, whose figures
  ``MODEL_CARD.md`` quotes (a test compares them);
- ``train_eagle``, ``train_eagle3``, ``train_block``: heads and a block draft for the target;
  ``heads``: what the three have in common; ``descent``: the training loop of all models.
"""
