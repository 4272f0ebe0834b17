"""Path of the repository, and how its tests compile."""

from pathlib import Path

import jax

REPOSITORY = Path(__file__).resolve().parents[1]
# Environment of tests, whose programs run once or twice: JAX's setting for fast compilation, and an option that XLA had
# until jax 0.10 and that saves a third of the time. XLA ends the process at unknown flags.
QUICKLY = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 11) else "",
}
