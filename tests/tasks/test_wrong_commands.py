"""Wrong commands: each experiment prints a one-line error and exits with status 2 before it writes any file."""

import pytest
from commands import call

WRONG = {
    "reverse.py": [
        ("--num-heads 5", "--num-heads is 5; it must be at least 1 and divide the model's width 32"),
        ("--seq-len 5001", "--seq-len is 5001; it may be at most 5000"),
        ("--batch-size 50001", "--batch-size is 50001; it may be at most 50000"),
        ("--warmup 3900", "--warmup is 3900; it must be below 3900, the number of steps"),
        ("--checkpoint-dir short", "--checkpoint-dir is short; it must be a directory that can be written"),
        ("--seed 3 --seeds 0..1", "--seed is 3, which has no effect: --seeds gives those of the runs"),
        ("--schedule noam --lr 1", "--lr is 1.0, which has no effect: the schedule noam takes its peak from"),
        (
            "--pretrained reverse --num-layers 3",
            "--num-layers is 3, which has no effect: --pretrained is reverse, which",
        ),
        ("--lr abc", "--lr is 'abc'; it must be float"),
        ("--accumulate 3", "--accumulate is 3; it must be a divisor of --batch-size, 128"),
        ("--sweep num_layer=1,2", "'num_layer' is not a setting of this task; did you mean --num-layers?"),
        ("--schedule constant --min-lr 1e-5", "--min-lr is 1e-05, which has no effect: the schedule constant does not"),
        ("--optimizer sgd --adam-b1 .8", "--adam-b1 is 0.8, which has no effect: the optimizer sgd does not take it"),
        ("--optimizer adam --weight-decay .1", "--weight-decay is 0.1, which has no effect: the optimizer adam does"),
        ("--optimizer sophia", "--optimizer is 'sophia'; it must be one of adamw, adam, adabelief"),
        ("--lr 1e-4 --min-lr 1e-3", "--min-lr is 0.001; it may be at most --lr, 0.0001"),
        ("--pretrained reverse --lr .5", "--lr is 0.5, which has no effect: --pretrained is reverse, so nothing"),
        ("--sweep lr=1e-3,3e-4 --schedule noam", "--sweep has --lr, which has no effect: the schedule noam takes"),
        ("--max-steps 7 --max-epochs 3", "--max-epochs is 3, which has no effect: --max-steps is 7"),
        ("--overwrite", "--overwrite is True, which has no effect: a run is resumed unless --no-resume is given too"),
        ("--quiet --verbose", "--verbose is True, which has no effect: --quiet is True"),
        ("--best-by val/f1:max", "--best-by is val/f1:max; the metrics are accuracy, loss (a task of your own"),
        ("--freeze encoderr", "--freeze has 'encoderr', which is no array or module of the model"),
        ("--lora attention", "--lora has 'attention'"),
        ("--sweep lr=1e-3,abc", "--sweep is 'lr=1e-3,abc': --lr is 'abc'; it must be float"),
        ("--num-kv-heads x", "--num-kv-heads is 'x'; it must be int or none"),
        ("--init-only encoder", "--init-only is encoder, which has no effect: --init-from is none\n"),
        ("--model-dim none", "--model-dim is 'none'; it must be int\n"),
        ("--num-kv-heads true", "--num-kv-heads is 'true'; it must be int or none\n"),
        ("--attention fused", "error: fused attention cannot run: there is no kernel for the"),
        ("--init-from gpt2", "included model (dates, digits, reverse)\n"),
        ("--coordinator node1:1234", "--coordinator is node1:1234, which has no effect: --distributed is False"),
    ],
    "anomaly.py": [
        ("--dataset digits --resolution 64", "unknown argument: --resolution\n"),
        ("--dataset digits --set-size 40", "--set-size is 40; it may be at most"),
        ("--dataset files --data-dir d", "--data-dir is d, which has no effect: only cifar100 uses it"),
        ("--dataset files", "error: --features is none; it must be an .npy file\n"),
        ("--dataset files --features f.npy", "error: --labels is none; it must be an .npy file\n"),
    ],
    "translate.py": [
        ("--data nowhere.tsv", "nowhere.tsv can't be read: No such file or directory"),
        ("--data pairs --train-size 500", "--train-size is 500, which has no effect: --data is a file, and all"),
        (
            "--data pairs --test-size 500",
            "--test-size is 500, which has no effect: --data is a file, and all its pairs",
        ),
        ("--bleu-tokenize zh", "--bleu-tokenize is zh, which has no effect: --data is none"),
        ("--lower-case", "--lower-case is True, which has no effect: --data is none"),
        (
            "--data pairs --joint-tokenizer words --source-tokenizer words",
            "--source-tokenizer is words, which has no effect",
        ),
        ("--data pairs --batch-tokens 4", "--batch-tokens is 4; it must be at least 5, the length of a padded row"),
        ("--target-tokenizer words:2", "it must be bytes, characters, words, words:COUNT+, bpe:SIZE"),
        ("--val-data pairs", "--val-data is pairs, which has no effect: --data is none"),
        ("--length-penalty 2", "--length-penalty is 2.0, which has no effect: --beam-width is 1, for greedy decoding"),
        (
            "--architecture short --model-dim 64",
            "--model-dim is 64, which has no effect: --architecture is given, which defines the",
        ),
        ("--architecture short --init-from x --qk-norm", "--qk-norm is True, which has no effect: --architecture"),
        ("--length-penalty 11", "--length-penalty is 11.0; it may be at most 10"),
        ("--max-bytes 16 --train-size 67", "--max-bytes is 16; it must be at least"),
        ("--data pairs --warmup 6 --max-epochs 3", "--warmup is 6; it must be below 6, the number of steps"),
        ("--interactive --pretrained reverse", "--pretrained is reverse, a model of the task ReverseTask"),
        ("--interactive --pretrained dates --length-penalty 2", "--length-penalty is 2.0, which has no effect: --beam"),
        ("--interactive --name mine", "checkpoints/mine holds no run: train one first, or translate with"),
        ("--interactive --max-epochs 3", "--max-epochs is 3, but --interactive does not train; it reads --pretrained"),
    ],
    "language_model.py": [
        ("--seq-len 1", "--seq-len is 1; it must be at least 2"),
        (
            "--architecture short --norm layer",
            "--norm is layer, which has no effect: --architecture is given, which defines the model",
        ),
        ("--init-from gpt2", "or a directory of HuggingFace Transformers, or its hub name, OWNER/NAME\n"),
        ("--init-from reverse", "; it is a model of the task ReverseTask\n"),
        ("--pack words --data short", "--pack is 'words'; it must be one of lines or none"),
        ("--data short", "--data is short, too short for --seq-len, 256: the part for val has 0 tokens; give a"),
    ],
    "classify.py": [
        ("--init-from nosuchmodel", "error: --init-from is nosuchmodel; it must be a run's directory, or an included"),
        ("--data few", "--data has too few different texts: none is left for the set test, since a text is in one set"),
        (
            "--data texts --labels short",
            "texts:1: the label is 'good'; it must be one of 'short', the labels of the train",
        ),
        ("--data texts --init-from dates", "; it is a model of the task TranslationTask\n"),
        ("--data short", "must name the columns text, label, or --text-column and --label-column must name others"),
    ],
}


@pytest.mark.parametrize(
    ("script", "arguments", "message"), [(script, *row) for script, rows in WRONG.items() for row in rows]
)
def test_what_is_wrong_is_said_in_one_line_with_status_2(tmp_path, monkeypatch, script, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_bytes(b"short")
    (tmp_path / "pairs").write_text("".join(f"s{number}\tt{number}\n" for number in range(200)))
    (tmp_path / "few").write_text("a\tgood\nb\tgood\n")
    (tmp_path / "texts").write_text("".join(f"{number}\t{('good', 'bad')[number % 2]}\n" for number in range(20)))
    outcome = call(script, *arguments.split())
    assert outcome.status == 2
    assert outcome.stderr.startswith(f"{script}: error: ")
    assert message in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"short", "pairs", "few", "texts"}
    assert "Head of" not in outcome.stdout
