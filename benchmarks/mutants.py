"""Random changes of chosen files, and whether the fast tests notice them: `make mutants ARGS="--count 20"`.

Each change replaces one comparison, sum, difference, product, boolean operation or small number; the file is restored
afterwards. Prints a line for each change, and the numbers for the table in CONTRIBUTING.md.
"""

import argparse
import ast
import random
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "transformer_jax"
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


def is_noticed(tests: list[str]) -> bool:
    """Whether one of the fast tests fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", *tests]
    return subprocess.run(command, capture_output=True, cwd=PACKAGE.parent).returncode != 0


def main() -> None:
    """Change one place after another, and print what the tests notice."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=39, help="number of changes")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the changes")
    wings = ["attention", "nn", "training", "decoding"]
    parser.add_argument("--wings", nargs="+", default=wings, help="folders whose files are changed")
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    files = [file for wing in chosen.wings for file in sorted((PACKAGE / wing).rglob("*.py"))]
    files = [file for file in files if places(ast.parse(file.read_text()))]
    noticed = 0
    for _ in range(chosen.count):
        file = rng.choice(files)
        source = file.read_text()
        changed, change = mutant(source, rng)
        wing = file.relative_to(PACKAGE).parts[0]
        try:
            file.write_text(changed)
            found = is_noticed([f"tests/{wing}"])
        finally:
            file.write_text(source)
        noticed += found
        print(
            f"{'noticed' if found else 'PASSES '} {file.relative_to(PACKAGE)}, {change}", flush=True
        )
    print(f"{noticed} of {chosen.count} changes noticed by the fast tests of their wing")


if __name__ == "__main__":
    main()
