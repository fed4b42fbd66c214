"""treepipe: plan and run tree speculative decoding over pipelines of devices.

The core (this folder's own files) is pure: it knows the token tree and the schedules' rules, but
no clock, no network, no model and no random numbers. Two worlds drive it: ``treepipe.sim``
(SimPy) and ``treepipe.executor`` (real processes, real models).
"""

__version__ = "0.1.0"
