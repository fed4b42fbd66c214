"""Scripts that make, measure and describe parts of the repository; not installed.

- ``benchmarks`` (``make bench``): figures of ``docs/figures.md``, with ``message_cost``,
  ``simulator_speed`` and ``regret``;
- ``coverage`` and ``load``: the pages of these names below ``docs/studies``;
- ``grid`` (``make validate``) and ``grid_report``: the standard validation;
- ``planning_pages``: the answers on the pages below ``docs/planning``;
- ``random_checkpoint``: a pair of random weights in the sizes of a model profile;
- ``training``: the bundled reference pair.

Invariant: no module outside of this folder imports it.
"""
