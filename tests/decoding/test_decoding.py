"""Greedy decoding, sampling and beam search, compared with plain Python that has no cache and never stops early."""

import functools
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import InputError
from transformer_jax.decoding.beam_search import beam_search
from transformer_jax.decoding.logits_processors import suppressed_tokens
from transformer_jax.decoding.token_by_token import greedy_decode, sample

START, END, PAD = 1, 0, 13  # padding is no token of the vocabularies here, so it can't be mistaken for one
TOKENS = {"start_token": START, "end_token": END, "pad_token": PAD}


class HistoryModel:
    """Logits that depend on a row's source and on every token so far, like those of a translator.

    `step` reads the history from the cache, `log_probs` from its arguments, so that the two can be compared.
    """

    def __init__(self, seed, vocabulary, max_length):
        rng = np.random.default_rng(seed)
        self.vocabulary, self.max_length = vocabulary, max_length
        self.table = rng.normal(scale=1.5, size=(211, vocabulary)).astype(np.float32)
        self.weights = rng.integers(1, 211, max_length)
        self.log_prob = functools.cache(self._log_prob)

    def cache(self, sources):
        return {"source": np.asarray(sources), "history": np.zeros((len(sources), self.max_length), np.int32)}

    def step(self, tokens, position, cache):
        history = cache["history"].at[:, position].set(tokens + 1)
        index = (31 * cache["source"] + history @ self.weights[: history.shape[1]]) % len(self.table)
        return jnp.asarray(self.table)[index], {"source": cache["source"], "history": history}

    def log_probs(self, source, output):
        history = np.array([START, *output]) + 1
        logits = self.table[(31 * source + history @ self.weights[: len(history)]) % len(self.table)].astype(np.float64)
        return logits - np.log(np.sum(np.exp(logits)))

    def _log_prob(self, source, output):
        return self.log_prob(source, output[:-1]) + self.log_probs(source, output[:-1])[output[-1]] if output else 0.0


def run(decode, step, cache, batch_size, **settings):
    """Decode in one compiled program, and return NumPy arrays."""
    return jax.device_get(jax.jit(partial(decode, step, batch_size=batch_size, **{**TOKENS, **settings}))(cache))


def run_model(decode, model, sources, **settings):
    """Decode these sources up to the model's full length."""
    return run(decode, model.step, model.cache(sources), len(sources), max_length=model.max_length, **settings)


def penalised(log_prob, output, alpha):
    return log_prob / ((5 + len(output)) / 6) ** alpha


def plain_greedy(model, source, ends=(END,)):
    output = ()
    while len(output) < model.max_length and not set(ends) & set(output):
        output += (int(np.argmax(model.log_probs(source, output))),)
    return output


def has_ended(model, output, ends):
    return output[-1] in ends or len(output) == model.max_length


def plain_beam_search(model, source, width, alpha, ends=(END,)):
    """Return every finished hypothesis with its score, best first, without early stopping."""
    live, finished = [()], []
    while live:
        continuations = [(*output, token) for output in live for token in range(model.vocabulary)]
        continuations.sort(key=lambda output: -model.log_prob(source, output))
        finished += [output for output in continuations[:width] if has_ended(model, output, ends)]
        live = [output for output in continuations if not has_ended(model, output, ends)][:width]
    return ranked(model, source, finished, alpha)


def all_outputs(model):
    for length in range(1, model.max_length + 1):
        for output in itertools.product(range(model.vocabulary), repeat=length):
            if END not in output[:-1] and (output[-1] == END or length == model.max_length):
                yield output


def ranked(model, source, outputs, alpha):
    scores = [(penalised(model.log_prob(source, output), output, alpha), output) for output in outputs]
    return sorted(scores, reverse=True)


def assert_is(decoded, expected, length):
    """Assert that the results of a row are these (score, output) pairs, in this order."""
    np.testing.assert_array_equal(
        decoded.tokens, [[*output, *[PAD] * (length - len(output))] for _, output in expected]
    )
    np.testing.assert_array_equal(decoded.lengths, [len(output) for _, output in expected])
    np.testing.assert_allclose(decoded.scores, [score for score, _ in expected], rtol=1e-5)


def row(decoded, index):
    return jax.tree.map(lambda leaf: leaf[index], decoded)


def constant_step(probabilities, calls=None):
    """A step with constant probabilities, or with `probabilities[position]`; `calls` collects its positions."""
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.log(probabilities), jnp.float32)

    def step(tokens, position, cache):
        if calls is not None:
            jax.debug.callback(lambda position: calls.append(int(position)), position)
        here = logits if logits.ndim == 1 else logits[jnp.minimum(position, len(logits) - 1)]
        return jnp.broadcast_to(here, (len(tokens), logits.shape[-1])), cache

    return step


# Greedy decoding.


def test_greedy_takes_the_most_probable_token_until_the_end_token():
    model = HistoryModel(seed=0, vocabulary=5, max_length=11)
    sources = np.arange(7)
    decoded = run_model(greedy_decode, model, sources)

    expected = [plain_greedy(model, source) for source in sources]
    assert len({len(output) for output in expected}) > 2  # some rows end early, some late
    scores = [model.log_prob(source, output) for source, output in zip(sources, expected, strict=True)]
    assert_is(decoded, list(zip(scores, expected, strict=True)), 11)


def test_a_row_that_has_ended_is_stepped_on_with_padding_and_its_score_stays():
    def step(tokens, position, cache):
        ends = jnp.log(jnp.array([0.75, 0.25]))
        goes_on = jnp.where(position < 4, ends[::-1], ends)
        logits = jnp.where(cache["ends"][:, None], ends, goes_on)
        return jnp.where((tokens == PAD)[:, None], jnp.nan, logits), cache

    decoded = run(greedy_decode, step, {"ends": np.array([True, False, True])}, 3, max_length=7)

    first, second = [0, *[PAD] * 6], [1, 1, 1, 1, 0, PAD, PAD]
    np.testing.assert_array_equal(decoded.tokens, [first, second, first])
    np.testing.assert_array_equal(decoded.lengths, [1, 5, 1])
    np.testing.assert_allclose(decoded.scores, np.log(0.75) * np.array([1, 5, 1]), rtol=1e-6)


# Beam search.


@pytest.mark.parametrize("alpha", [0.6, 3.0])
def test_a_wide_enough_beam_lists_every_output_in_order(alpha):
    model = HistoryModel(seed=5, vocabulary=3, max_length=5)
    sources = np.array([2, 3, 5])
    decoded = run_model(beam_search, model, sources, beam_width=67, length_penalty=alpha)

    outputs = list(all_outputs(model))
    assert len(outputs) == 63
    for index, source in enumerate(sources):
        expected = ranked(model, source, outputs, alpha)
        results = row(decoded, index)
        assert_is(row(results, slice(63)), expected, 5)
        # The outputs are all that can happen.
        lengths = np.array([len(output) for _, output in expected])
        assert np.exp(results.scores[:63] * ((5 + lengths) / 6) ** alpha).sum() == pytest.approx(1, abs=1e-5)
        # There is no 64th.
        np.testing.assert_array_equal(results.tokens[63:], PAD)
        np.testing.assert_array_equal(results.lengths[63:], 0)
        np.testing.assert_array_equal(results.scores[63:], -np.inf)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "alpha", "too_narrow"), [(2, 0.0, 1), (4, 3.0, 1)])
def test_a_narrow_beam_keeps_the_best_continuations_and_stopping_early_changes_nothing(width, alpha, too_narrow):
    model = HistoryModel(seed=17, vocabulary=3, max_length=7)
    sources = np.arange(11)
    decoded = run_model(beam_search, model, sources, beam_width=width, length_penalty=alpha)
    best = run_model(beam_search, model, sources, beam_width=width, length_penalty=alpha, n_best=1)

    outputs = list(all_outputs(model))
    missed = 0
    for index, source in enumerate(sources):
        expected = plain_beam_search(model, source, width, alpha)[:width]
        assert_is(row(decoded, index), expected, 7)
        assert_is(row(best, index), expected[:1], 7)
        optimum, _ = ranked(model, source, outputs, alpha)[0]
        assert decoded.scores[index, 0] <= optimum + 1e-5
        missed += decoded.scores[index, 0] < optimum - 1e-5
    assert missed == too_narrow


def test_a_finished_hypothesis_is_kept_while_live_ones_are_more_probable():
    # To end at once has 0.3. Both others are more probable until they end too.
    step = constant_step([[0.3, 0.36, 0.34], [0.8, 0.1, 0.1]])
    decoded = run(beam_search, step, {}, 1, max_length=5, beam_width=3, length_penalty=0.0)
    scores = np.log([0.3, 0.36 * 0.8, 0.34 * 0.8])
    assert_is(row(decoded, 0), [(scores[0], [0]), (scores[1], [1, 0]), (scores[2], [2, 0])], 5)


@pytest.mark.parametrize("width", [2, 5])
def test_forbidden_tokens_are_in_no_result_and_a_dead_end_gives_no_nan(width):
    def step(tokens, position, cache):
        begin = jnp.log(jnp.array([0.0, 0.0, 0.7, 0.3]))  # 2 leads nowhere, 3 to the end
        after = jnp.where(tokens[:, None] == 2, -jnp.inf, jnp.log(jnp.array([1.0, 0.0, 0.0, 0.0])))
        return jnp.where(position == 0, begin, after), cache

    decoded = run(beam_search, step, {}, 2, max_length=3, beam_width=width)

    nothing = [[PAD] * 3] * (width - 1)
    np.testing.assert_array_equal(decoded.tokens, [[[3, 0, PAD], *nothing]] * 2)
    np.testing.assert_array_equal(decoded.lengths, [[2, *[0] * (width - 1)]] * 2)
    expected = np.log(0.3) / (7 / 6) ** 0.6
    np.testing.assert_allclose(decoded.scores, [[expected, *[-np.inf] * (width - 1)]] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("early_stopping", "n_best", "best", "steps"),
    [(True, 2, [END], 2), (False, 2, [1, 1, END], 4), (False, 1, [1, 1, END], 4), ("never", 2, [1, 1, END], 6),
     ("never", 1, [1, 1, END], 4)],
)  # fmt: skip
def test_beam_search_stops_as_early_as_it_is_told(early_stopping, n_best, best, steps):
    # Divided by the squared length, results score ln 0.5 = -0.693, ln 0.05 / 4 = -0.749, ln 0.405 / 9 = -0.100,
    # ln 0.0405 / 16 = -0.200. After 3 steps the live hypothesis has -3.10 / 9 = -0.34 as it is, above -0.693; after 4
    # steps -5.40 / 16 = -0.34, below -0.200, and at the full length -5.40 / 49 = -0.11, between these and -0.100.
    calls = []
    step = constant_step([[0.5, 0.5], [0.1, 0.9], [0.9, 0.1]], calls)
    settings = {"max_length": 7, "beam_width": 2, "early_stopping": early_stopping, "n_best": n_best}
    decoded = run(beam_search, step, {}, 1, **settings, length_penalty=lambda length: length**2.0)
    jax.effects_barrier()
    np.testing.assert_array_equal(decoded.tokens[0, 0], [*best, *[PAD] * (7 - len(best))])
    assert len(calls) == steps
    expected = [np.log(0.5), np.log(0.05) / 4] if early_stopping is True else [np.log(0.405) / 9, np.log(0.0405) / 16]
    np.testing.assert_allclose(decoded.scores[0], expected[:n_best], rtol=1e-5)


def test_a_batch_element_that_has_stopped_stays_as_it_is_while_others_go_on():
    model = HistoryModel(seed=31, vocabulary=3, max_length=11)
    settings = {"beam_width": 2, "early_stopping": False, "length_penalty": lambda length: length**2.0}
    together = run_model(beam_search, model, np.arange(13), **settings)
    one = jax.jit(partial(beam_search, model.step, batch_size=1, max_length=11, **TOKENS, **settings))
    alone = [one(model.cache([source])).tokens[0] for source in range(13)]
    np.testing.assert_array_equal(together.tokens, alone)


# Sampling. test_next_token.py tests a single draw.


def test_sampled_outputs_have_the_model_s_probabilities():
    model = HistoryModel(seed=13, vocabulary=3, max_length=3)
    model.table /= 3  # no output is too rare to be counted
    rows = 20011
    decoded = run_model(sample, model, np.full(rows, 2), key=jax.random.key(5))

    outputs = list(all_outputs(model))
    probabilities = np.exp([model.log_prob(2, output) for output in outputs])
    drawn = [tuple(tokens[:length]) for tokens, length in zip(decoded.tokens.tolist(), decoded.lengths, strict=True)]
    counts = np.array([drawn.count(output) for output in outputs])
    assert counts.sum() == rows
    assert probabilities.min() * rows > 5
    chi_squared = np.sum((counts - rows * probabilities) ** 2 / (rows * probabilities))
    assert chi_squared < 36.12  # exceeded once in 1000 with 14 degrees of freedom
    np.testing.assert_allclose(decoded.scores, np.log(probabilities)[[outputs.index(o) for o in drawn]], rtol=1e-5)


def test_scores_of_samples_are_the_model_s_at_any_temperature_and_restriction():
    step = constant_step([0.5, 0.3, 0.2])
    decoded = run(sample, step, {}, 101, max_length=5, key=jax.random.key(7), temperature=3.0, top_k=2)
    ones, lengths = np.sum(decoded.tokens == 1, axis=1), decoded.lengths
    assert not np.any(decoded.tokens == 2)
    np.testing.assert_allclose(decoded.scores, ones * np.log(0.3) + (lengths - ones) * np.log(0.5), rtol=1e-5)


def test_positions_and_keys_draw_independently():
    step = constant_step([0.0, 0.5, 0.5])
    draw = jax.jit(lambda key: sample(step, {}, 4001, key=key, max_length=2, **TOKENS).tokens)
    tokens, again, anew = (np.asarray(draw(jax.random.key(seed))) for seed in (11, 11, 13))
    assert np.mean(tokens[:, 0] == tokens[:, 1]) == pytest.approx(0.5, abs=0.03)
    assert np.mean(tokens == anew) == pytest.approx(0.5, abs=0.03)
    np.testing.assert_array_equal(tokens, again)


# All three functions.

THREE = [greedy_decode, partial(sample, key=jax.random.key(19)), partial(beam_search, beam_width=3)]
NAMES = ["greedy_decode", "sample", "beam_search"]


def test_a_sampled_row_does_not_depend_on_the_rows_after_it():
    model = HistoryModel(seed=17, vocabulary=5, max_length=11)
    together = run_model(sample, model, np.arange(7), key=jax.random.key(23))
    fewer = run_model(sample, model, np.arange(3), key=jax.random.key(23))
    jax.tree.map(np.testing.assert_array_equal, row(together, slice(3)), fewer)


@pytest.mark.slow
@pytest.mark.parametrize("decode", THREE[1:], ids=NAMES[1:])  # greedy decoding has the code of sampling
def test_a_cache_that_grows_by_segments_gives_the_same_as_a_full_sized_one(decode):
    model = HistoryModel(seed=23, vocabulary=5, max_length=137)
    model.table[:, END] -= 3  # some rows end in each segment, some never
    rooms = []

    def grow(cache, length):
        rooms.append(length)
        history = cache["history"]
        return {**cache, "history": jnp.pad(history, ((0, 0), (0, length - history.shape[1])))}

    sources = np.arange(61)
    empty = {"source": sources, "history": np.zeros((61, 0), np.int32)}
    decoded = run(decode, model.step, empty, 61, max_length=137, grow=grow)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), decoded, run_model(decode, model, sources))
    assert rooms == [64, 128, 137]
    segments = np.digitize(decoded.lengths, rooms, right=True)
    assert {0, 1, 2} <= set(segments.ravel().tolist())


def test_a_step_may_change_its_cache_in_place():
    model = HistoryModel(seed=31, vocabulary=5, max_length=7)

    def step(tokens, position, cache):
        logits, changed = model.step(tokens, position, cache)
        cache["history"] = changed["history"]
        return logits, cache

    beams = THREE[2]
    decoded = run(beams, step, model.cache(np.arange(11)), 11, max_length=7)
    jax.tree.map(np.testing.assert_array_equal, decoded, run_model(beams, model, np.arange(11)))


@pytest.mark.parametrize(("length", "rooms"), [(3, [3]), (64, [64]), (65, [64, 65]), (1000, range(125, 1001, 125))])
def test_a_growing_cache_makes_room_in_at_most_eight_segments(length, rooms):
    asked = []
    settings = TOKENS | {"max_length": length, "grow": lambda cache, room: asked.append(room) or cache}
    jax.eval_shape(lambda: greedy_decode(constant_step([0, 0.5, 0.5]), {}, 2, **settings))
    assert asked == list(rooms)


@pytest.mark.parametrize("decode", [THREE[0], THREE[2]], ids=[NAMES[0], NAMES[2]])
@pytest.mark.parametrize("ends", [(), (3, END)])
def test_a_result_ends_at_any_of_several_tokens_or_at_its_length(decode, ends):
    model = HistoryModel(seed=29, vocabulary=5, max_length=7)
    decoded = run_model(decode, model, np.arange(5), end_token=ends)
    for source in range(5):
        if decode is greedy_decode:
            output = plain_greedy(model, source, ends)
            expected = [(model.log_prob(source, output), output)]
        else:
            expected = plain_beam_search(model, source, 3, 0.6, ends)[:3]
        assert_is(
            row(decoded, slice(source, source + 1)) if decode is greedy_decode else row(decoded, source), expected, 7
        )


@pytest.mark.parametrize("decode", THREE, ids=NAMES)
def test_the_loop_stops_when_every_row_has_ended(decode):
    calls = []
    step = constant_step([[0, 0.5, 0.5], [0, 0.5, 0.5], [1, 0, 0]], calls)
    decoded = run(decode, step, {}, 5, max_length=101)
    jax.effects_barrier()
    assert sorted(calls) == [0, 1, 2]
    np.testing.assert_array_equal(decoded.lengths, np.full(decoded.lengths.shape, 3))


@pytest.mark.parametrize(("alpha", "n_best", "steps"), [(0.0, 1, 1), (1.0, 2, 3), (3.0, 2, 11)])
def test_beam_search_stops_when_no_live_hypothesis_can_come_among_the_best(alpha, n_best, steps):
    # One hypothesis lives, of t ones after t steps: its score will be at most t ln 0.2 / (16/6)^α. At α = 0, 1, 3 that
    # is -1.609 t, -0.604 t, -0.085 t. The first finished has -0.223, the second -1.833, -1.571, -1.154.
    calls = []
    settings = {"max_length": 11, "beam_width": 2, "length_penalty": alpha, "n_best": n_best}
    decoded = run(beam_search, constant_step([0.8, 0.2], calls), {}, 1, **settings)
    jax.effects_barrier()
    assert len(calls) == steps
    np.testing.assert_array_equal(decoded.lengths[0], [1, 11 if steps == 11 else 2][:n_best])
    assert decoded.scores[0, 0] == pytest.approx(np.log(0.8), rel=1e-5)


def failing_step(tokens, position, cache):
    """NaN at the start of one row, and a dead end after the start of another."""
    logits = jnp.log(jnp.array([0.1, 0.5, 0.4]))
    nan = (cache["row"] == 1) & (position == 0)
    dead_end = (cache["row"] == 2) & (position == 1)
    logits = jnp.where(dead_end[:, None], -jnp.inf, logits)
    return jnp.where(nan[:, None] & (jnp.arange(3) == 2), -jnp.nan, logits), cache


@pytest.mark.parametrize(("decode", "dead_end_fails"), [(THREE[1], True), (THREE[2], False)], ids=NAMES[1:])
def test_logits_of_nan_are_an_error_and_in_a_compiled_program_a_score_of_nan(decode, dead_end_fails):
    settings = {"max_length": 3, **TOKENS}
    cache = {"row": np.array([0, 2, 1])}
    with pytest.raises(InputError, match=f"step returned logits .* for row {1 if dead_end_fails else 2}"):
        decode(failing_step, cache, 3, **settings)
    scores = run(decode, failing_step, cache, 3, max_length=3).scores.reshape(3, -1)
    np.testing.assert_array_equal(np.isnan(scores).any(axis=1), [False, dead_end_fails, True])


@pytest.mark.parametrize("decode", THREE[:2], ids=NAMES[:2])
def test_a_row_that_may_choose_no_token_is_an_error_unless_it_has_ended(decode):
    def step(tokens, position, cache):
        return jnp.where((tokens == PAD)[:, None], -jnp.inf, jnp.log(jnp.array([1.0, 0, 0]))), cache

    decoded = decode(step, {}, 2, max_length=3, **TOKENS)  # ended rows go on with padding
    np.testing.assert_array_equal(decoded.scores, [0, 0])
    with pytest.raises(InputError, match="or all -inf, for row 0"):
        decode(lambda tokens, *more: (jnp.full((2, 3), -jnp.inf), {}), {}, 2, max_length=3, **TOKENS)
    excluded = {"processors": [suppressed_tokens([0, 1, 2])], "max_length": 3}
    with pytest.raises(InputError, match="or all -inf, for row 0"):
        decode(step, {}, 2, **excluded, **TOKENS)
    np.testing.assert_array_equal(run(decode, step, {}, 2, **excluded).scores, [-np.inf, -np.inf])
