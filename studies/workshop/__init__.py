"""What makes, measures and describes parts of the repository; it is not installed.

- ``benchmarks`` (``make bench``): figures of ``docs/benchmarks.md``, with ``message_cost``,
  ``simulator_speed`` and ``regret``;
- ``grid`` (``make validate``) and ``grid_report``: the standard validation;
- ``planning_pages``: the answers on the pages below ``docs/planning``;
- ``training``: the bundled reference pair.

Law of this folder: nothing outside of it imports it.
"""
