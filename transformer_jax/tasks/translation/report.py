"""Report on a trained translator: scores on the test set, and a picture of its cross-attention."""

from collections.abc import Sequence

from transformer_jax.data.stacked_samples import numpy_collate
from transformer_jax.plots import plot_attention_maps
from transformer_jax.tasks.attention_maps import drawable
from transformer_jax.tasks.byte_text import characters
from transformer_jax.tasks.translation.padded_pairs import PairDataset, TextPair
from transformer_jax.tasks.translation.text_metrics import char_error_rate, exact_match, translation_scores
from transformer_jax.training.trainer import TrainerModule


def score(trainer: TrainerModule, pairs: Sequence[TextPair], *, corpus: bool) -> dict[str, float]:
    """Translate and compare: `exact_match` and `char_error_rate`, with `corpus` also `chrf` and `bleu`; print them."""
    predictions = trainer.predict([pair.source for pair in pairs])
    references = [pair.target for pair in pairs]
    scores = {
        "exact_match": exact_match(predictions, references),
        "char_error_rate": char_error_rate(predictions, references),
    }
    print(
        f"Exact match: {scores['exact_match']:.2%} of {len(pairs)}, character errors: {scores['char_error_rate']:.2%}"
    )
    if corpus:
        scores |= translation_scores(predictions, references)
        print(f"chrF: {scores['chrf']:.1f}, BLEU: {scores['bleu']:.1f}")
    wrong = [number for number, (a, b) in enumerate(zip(predictions, references, strict=True)) if a != b]
    for number in wrong[:10]:
        print(f"  {pairs[number].source!r}: predicted {predictions[number]!r}, it is {references[number]!r}")
    return scores


def save_attention(trainer: TrainerModule, pair: TextPair) -> None:
    """Save a picture of the cross-attention in the run's directory: from target to source, every layer and head."""
    inputs, _ = numpy_collate([PairDataset([pair])[0]])
    _, maps = trainer.forward(inputs, return_attention=True)
    queries = ["start", *byte_labels(pair.target)]
    figure = plot_attention_maps([byte_labels(pair.source)], maps.cross, query_data=[queries])
    trainer.run.save_figure("cross_attention.png", figure)


def byte_labels(text: str) -> list[str]:
    """A label for each byte of a text, as `characters`, in matplotlib's font."""
    return [drawable(label) for label in characters(text)]
