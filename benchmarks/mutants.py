"""Random changes of chosen files, and whether the fast tests notice them: `make mutants ARGS="--count 20"`.

Each change replaces one comparison, sum, difference, product, boolean operation or small number, in a copy of the
repository. Prints a line for each change, and the numbers for the table in CONTRIBUTING.md.
"""

import ast
import dataclasses
import os
import random
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting

ROOT = Path(__file__).parents[1]
COPIED = "transformer_jax", "tests", "benchmarks", "experiments", "pyproject.toml"
MAX_SECONDS = 600  # of the tests of one change; more are an endless loop, which is noticed
OPERATORS = {
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def places(tree: ast.AST) -> list[ast.AST]:
    """The parts of a syntax tree that can be changed."""
    found = []
    for node in ast.walk(tree):
        is_operation = isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS
        is_comparison = isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS
        is_number = isinstance(node, ast.Constant) and type(node.value) is int and node.value < 10
        if is_operation or is_comparison or is_number:
            found.append(node)
    return found


def mutant(source: str, rng: random.Random) -> tuple[str, str]:
    """Change one place of a source; return the new source, and a description of the change."""
    tree = ast.parse(source)
    node = rng.choice(places(tree))
    before = ast.unparse(node)
    if isinstance(node, ast.Compare):
        node.ops[0] = OPERATORS[type(node.ops[0])]()
    elif isinstance(node, ast.Constant):
        node.value += 1
    else:
        node.op = OPERATORS[type(node.op)]()
    return ast.unparse(tree), f"line {node.lineno}: {before} → {ast.unparse(node)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MutantsConfig:
    """Change one place after another, and see whether the fast tests notice it."""

    count: int = setting(39, least=1)  # number of changes
    seed: int = 0  # random seed of the changes
    # folders whose files are changed
    wings: tuple[str, ...] = ("attention", "nn", "training", "decoding")

    __post_init__ = set_checked_fields


def is_noticed(copy: Path, tests: str) -> bool:
    """Whether one of the fast tests fails in a copy of the repository."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", tests]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            command, capture_output=True, cwd=copy, env=environment, timeout=MAX_SECONDS
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main(config: MutantsConfig) -> None:
    """Change one place after another, and print what the tests notice."""
    rng = random.Random(config.seed)
    noticed = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        package = copy / "transformer_jax"
        files = [file for wing in config.wings for file in sorted((package / wing).rglob("*.py"))]
        files = [file for file in files if places(ast.parse(file.read_text()))]
        for _ in range(config.count):
            file = rng.choice(files)
            whole = file.read_text()
            changed, change = mutant(whole, rng)
            name = file.relative_to(package)
            file.write_text(changed)
            found = is_noticed(copy, f"tests/{name.parts[0]}")
            file.write_text(whole)
            noticed += found
            print(f"{'noticed' if found else 'PASSES '} {name}, {change}", flush=True)
    print(f"{noticed} of {config.count} changes noticed by the fast tests of their wing")


if __name__ == "__main__":
    run(partial(parse, MutantsConfig), main)
