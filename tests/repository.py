"""Where the repository lies, and how its tests compile."""

from pathlib import Path

import jax

REPOSITORY = Path(__file__).resolve().parents[1]
# Environment of tests, whose programs run once or twice: JAX's own setting for compiling quickly, and an option that
# takes a third off and that XLA had until jax 0.10. A flag that XLA does not know would end the process.
QUICKLY = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 11) else "",
}
