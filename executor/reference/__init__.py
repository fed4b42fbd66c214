"""The bundled reference pair and head: weights, prompts, and the card that describes them.

What made, measured and described them is in ``studies/workshop/training/``.
Nothing that runs a pair belongs here: the executor treats this pair like any other.
"""
