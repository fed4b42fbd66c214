"""Random tiny checkpoints, as the executor makes them to try itself, for laws."""

from treepipe.executor.measure.random_model import CONFIGS as CONFIGS
from treepipe.executor.measure.random_model import VOCABULARY as VOCABULARY
from treepipe.executor.measure.random_model import save_random_checkpoint as save_random_checkpoint
