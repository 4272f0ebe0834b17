"""What each table of `docs/papers.md` compares, by the name of its runs."""

from collections.abc import Sequence
from typing import Literal, NamedTuple


class Line(NamedTuple):
    """A line of a table: one number."""

    label: str
    published: str  # the paper's, or a dash
    runs: str  # begins the names of the runs, which differ in the seed
    path: str  # of the number in `results.json`, as test/loss


class Table(NamedTuple):
    """A paper's table, in one setting."""

    command: str  # arguments of python, from the repository's root
    lines: Sequence[Line]


LARGEST = (
    Line("SAB + PMA, authors' code", "0.2085 ± 0.0127", "pooling=pma,", "test/loss"),
    Line("max pooling", "0.1355 ± 0.0074", "pooling=max,", "test/loss"),
    Line("sum pooling", "1.902 ± 0.137", "pooling=sum,", "test/loss"),
    Line("mean pooling", "2.133 ± 0.190", "pooling=mean,", "test/loss"),
)
EQUATIONS = Line("SAB + PMA, the paper's equations", "–", "pooling=equations,", "test/loss")
SETS = "experiments/papers/set_transformer.py"
IN_CONTEXT = tuple(
    Line(f"{name}, {count} examples", "–", "seed", f"{curve}/{count}")
    for count in (0, 2, 4, 5, 7, 10)
    for name, curve in (("Transformer", "curve"), ("least squares", "least_squares"))
)
GROKKING = (
    Line("steps until 99 % of the trained pairs are right", "about 1 400", "seed", "steps_to_99_train"),
    Line("steps until 99 % of the other pairs are right", "before 14 000", "seed", "steps_to_99_val"),
    Line("accuracy on the other pairs", "near 1", "seed", "val/accuracy"),
    Line("frequencies of the embedding", "about 5", "seed", "num_keys"),
    Line("their share of its squared norm", "–", "seed", "key_share"),
    Line("loss on all pairs", "–", "seed", "test/loss"),
    Line("… without these frequencies", "–", "seed", "without_keys/loss"),
    Line("… with these alone", "–", "seed", "keys_alone/loss"),
)
Chosen = Literal["all", "none", "LargestOfASet", "LargestOfASet_supplement", "InContextRegression_tiny", "Grokking"]
TABLES = {
    "LargestOfASet": Table(f"{SETS} --sweep pooling=pma,equations,max,sum,mean --seeds 0..4", (*LARGEST, EQUATIONS)),
    "LargestOfASet_supplement": Table(f"{SETS} --supplement --sweep pooling=pma,max,sum,mean --seeds 0..4", LARGEST),
    "InContextRegression_tiny": Table("experiments/papers/in_context.py --tiny --seeds 0..4", IN_CONTEXT),
    "Grokking": Table("experiments/papers/grokking.py --num-devices 1 --seeds 0..4", GROKKING),
}
