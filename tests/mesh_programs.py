"""Compiles the step of reverse for meshes of CPU devices, in a process of its own: `python mesh_programs.py MESH…`.

A mesh that ends in `:scan` has a model that loops over five layers. It prints a JSON object: for each mesh how many
collectives the compiled step has, by operation, phase (forward, backward, update) and whether they move scalars alone;
whether it was lowered for CUDA and TPU; and how often the compiled step has an array of the shape of a stack of
kernels, whole and split over eight devices.
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


def program(name: str) -> dict[str, Any]:
    mesh, _, scan = name.partition(":")
    sizes = {"num_layers": 5 if scan else 2, "num_heads": 2}
    config = ReverseConfig(
        **sizes, mesh=mesh, scan_layers=bool(scan), strategy="sharded", train_size=1280, steps_per_call=2, warmup=2
    )
    data, trainer = reverse_data(config), ReverseTrainer(config)
    runner = create_programs(trainer, data.train_loader, num_steps=10).runner
    traced = runner.trace(data.train_loader.example())
    elsewhere = traced.lower(lowering_platforms=("cuda", "tpu")).as_text()
    collectives: Counter[str] = Counter()
    text = traced.lower().compile().as_text()
    for line in text.splitlines():
        if found := COLLECTIVE.search(line):
            name = re.search(r'op_name="([^"]*)"', line)
            of_name = name[1] if name else ""
            phase = "backward" if "transpose" in of_name else "forward" if "jvp" in of_name else "update"
            size = "arrays" if re.search(r"\[\d", found["result"]) else "scalars"
            collectives[f"{found['name']} {phase} {size}"] += 1
    stacks = {shape: text.count(f"f32[{shape}]") for shape in ("5,32,32", "5,32,64", "5,64,32", "5,4,32")}
    return {"collectives": collectives, "is_lowered": "sharding" in elsewhere, "stacks": stacks}


if __name__ == "__main__":
    print(json.dumps({mesh: program(mesh) for mesh in sys.argv[1:]}))
