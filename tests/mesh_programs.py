"""Compiles the step of reverse for meshes of CPU devices, in a process of its own: `python mesh_programs.py MESH…`.

It prints a JSON object: for each mesh how many collectives the compiled step has, by operation, phase (forward,
backward, update) and whether they move scalars alone; and the platforms for which the step was lowered.
"""

import json
import re
import sys
from collections import Counter
from typing import Any

from transformer_jax import ReverseConfig
from transformer_jax.tasks.reverse import ReverseTrainer, reverse_data
from transformer_jax.training.programs import create_programs

COLLECTIVE = re.compile(
    r" = (?P<result>.*?) (?P<name>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\("
)
MAX_COMPILED = 8  # devices; a program for more is lowered alone


def program(mesh: str) -> dict[str, Any]:
    config = ReverseConfig(
        num_heads=2, num_layers=2, mesh=mesh, strategy="sharded", train_size=1280, steps_per_call=2, warmup=2
    )
    data, trainer = reverse_data(config), ReverseTrainer(config)
    runner = create_programs(trainer, data.train_loader, num_steps=10).runner
    traced = runner.trace(data.train_loader.example())
    lowered = [name for name in ("cuda", "tpu") if "sharding" in traced.lower(lowering_platforms=(name,)).as_text()]
    collectives: Counter[str] = Counter()
    if trainer.strategy.num_devices <= MAX_COMPILED:
        for line in traced.lower().compile().as_text().splitlines():
            if found := COLLECTIVE.search(line):
                name = re.search(r'op_name="([^"]*)"', line)
                phase = (
                    "backward"
                    if name and "transpose" in name[1]
                    else "forward"
                    if name and "jvp" in name[1]
                    else "update"
                )
                size = "arrays" if re.search(r"\[\d", found["result"]) else "scalars"
                collectives[f"{found['name']} {phase} {size}"] += 1
    return {"collectives": collectives, "lowered": lowered}


if __name__ == "__main__":
    print(json.dumps({mesh: program(mesh) for mesh in sys.argv[1:]}))
