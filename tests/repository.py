"""Where the repository lies, and how its tests compile."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
# XLA's flags: programs of the tests run once or twice. Compiled like this they are ready in half the time; in one part,
# since each core has a worker, in three quarters of that.
QUICKLY = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
