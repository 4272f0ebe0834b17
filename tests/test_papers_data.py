"""The data of the papers' problems: known answers for known inputs, and the published counts."""

from types import SimpleNamespace

import jax.numpy as jnp
import length
import numpy as np
import pytest
import rasp
import scan


@pytest.mark.parametrize(
    ("problem", "row", "answer"),
    [
        ("reverse", [3, 1, 1, 4], [4, 1, 1, 3]),
        ("sort", [3, 1, 1, 4], [1, 1, 3, 4]),
        ("hist", [5, 2, 5, 0], [2, 1, 2, 1]),
        ("double_hist", [5, 2, 5, 0, 2], [2, 2, 2, 1, 2]),  # 5 and 2 are there twice, 0 once
        ("most_freq", [4, 2, 0, 2, 0], [2, 0, 4, rasp.BEGIN, rasp.BEGIN]),
        ("dyck1", [0, 0, 1, 1, 0, 1, 1, 0], [0, 0, 0, 1, 0, 1, 2, 2]),  # (()) ()) (
        ("dyck2", [0, 2, 3, 1, 2, 1, 3], [0, 0, 0, 1, 0, 2, 2]),  # ({}) {)}
    ],
)
def test_the_answers_of_the_rasp_problems(problem, row, answer):
    assert rasp.ANSWERS[problem](row) == answer


def test_sequences_occur_once_and_answers_stand_at_their_symbols():
    data = rasp.sequences(rasp.RaspConfig(problem="sort", size=301))
    parts = [loader.dataset for loader in (data.train_loader, data.val_loader, data.test_loader)]
    assert [len(part) for part in parts] == [241, 30, 30]
    tokens, targets = (np.concatenate([getattr(part, name) for part in parts]) for name in ("inputs", "targets"))
    assert len(np.unique(tokens, axis=0)) == 301
    for row, answer in zip(tokens.tolist(), targets.tolist(), strict=True):
        symbols = row[1 : row.index(rasp.END)]
        assert row == [rasp.BEGIN, *symbols, rasp.END] + [rasp.PAD] * (6 - len(symbols))
        assert answer == [-1, *sorted(symbols)] + [-1] * (7 - len(symbols))


def test_half_of_the_brackets_begin_balanced():
    rng = np.random.default_rng(0)
    rows = [rasp.draw("dyck2", rng) for _ in range(400)]
    assert {len(row) for row in rows} == {15}
    assert set(np.unique(rows)) == {0, 1, 2, 3}
    right = [rasp.WRONG not in rasp.brackets(row) for row in rows]
    assert 0.45 < np.mean(right) < 0.55  # 8 pairs without the last bracket; of others nearly none


def test_the_answer_is_the_token_after_the_first_special_one():
    tokens, answers = length.sequences(np.random.default_rng(0), 257, 11)
    assert (tokens[:, -1] == length.SPECIAL).all()
    assert ((tokens == length.SPECIAL).sum(1) == 2).all()
    first = (tokens == length.SPECIAL).argmax(1)
    assert set(first) == set(range(9))
    np.testing.assert_array_equal(answers, tokens[np.arange(257), first + 1])
    assert set(answers) == set(range(15))


def test_the_commands_of_scan_and_their_counts():
    """Lake and Baroni 2018: 20 910 commands, of which 16 990 have up to 22 actions and 3 920 have 24 to 48."""
    commands = scan.commands()
    lengths = np.array([len(actions) for actions in commands.values()])
    assert len(commands) == 20_910
    assert ((lengths <= 22).sum(), (lengths >= 24).sum(), lengths.max()) == (16_990, 3_920, 48)
    of_after = commands["jump opposite left after walk around left"]
    assert of_after == ["turn left", "walk"] * 4 + ["turn left", "turn left", "jump"]
    assert commands["turn right thrice and look"] == [*["turn right"] * 3, "look"]


def test_the_split_by_length_and_what_the_decoder_reads():
    data = scan.length_split(scan.ScanConfig())
    parts = [loader.dataset for loader in (data.train_loader, data.val_loader, data.test_loader)]
    actions = [(part.targets > 0).sum(1) for part in parts]
    assert [len(part) for part in parts] == [16_458, 1_828, 2_624]
    assert [counts.max() for counts in actions] == [26, 26, 48]
    assert actions[2].min() == 27
    (words, read), targets = parts[2].inputs, parts[2].targets
    row = actions[2].argmax()
    assert words[row].min() > 0  # the longest command has nine words
    assert read[row, 0] == scan.ACTIONS.index("START")
    np.testing.assert_array_equal(read[row, 1:], targets[row, :-1])
    assert targets[row, -1] == scan.ACTIONS.index("END")


def test_a_command_is_right_as_a_whole_with_its_end_or_as_far_as_its_actions_go():
    end, walk, look = (scan.ACTIONS.index(action) for action in ("END", "walk", "look"))
    targets = np.array([[walk, look, end, -1]] * 4)
    answers = [[walk, look, end, walk], [walk, end, end, end], [walk, look, look, end], [look, look, end, end]]
    logits = np.eye(len(scan.ACTIONS))[np.array(answers)]
    logits[1, 1, look] = 0.5  # the best action behind a wrong end
    trainer = SimpleNamespace(apply=lambda *arguments, **options: jnp.asarray(logits))
    batch = SimpleNamespace(inputs=None, targets=targets)
    found = scan.ScanTrainer.loss_function(trainer, None, batch, None, train=False)
    assert found["whole"][0].tolist() == [True, False, False, False]
    assert found["whole_of_length"][0].tolist() == [True, True, True, False]
    right, counted = found["accuracy"]
    assert ((right & counted).sum(), counted.sum()) == (9, 12)
