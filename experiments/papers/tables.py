"""Definitions of the tables in `docs/papers.md`, by the name of their runs."""

from page import Line, Picture, Table

LOSS, ACCURACY = ("test/loss",), ("test/accuracy",)
LARGEST = (
    Line("SAB + PMA, authors' code", "0.2085 ± 0.0127", "pooling=pma,", LOSS),
    Line("max pooling", "0.1355 ± 0.0074", "pooling=max,", LOSS),
    Line("sum pooling", "1.902 ± 0.137", "pooling=sum,", LOSS),
    Line("mean pooling", "2.133 ± 0.190", "pooling=mean,", LOSS),
)
EQUATIONS = Line("SAB + PMA, the paper's equations", "–", "pooling=equations,", LOSS)
SETS = "experiments/papers/set_transformer.py"
IN_CONTEXT = tuple(
    Line(f"{count} examples", "–", "seed", (f"curve/{count}", f"least_squares/{count}"))
    for count in (10, 7, 5, 4, 2, 0)
)
GROKKING = (
    Line(
        "steps until 99 % of the trained pairs are right",
        "about 1 400",
        "seed",
        ("steps_to_99_train",),
    ),
    Line(
        "steps until 99 % of the other pairs are right",
        "before 14 000",
        "seed",
        ("steps_to_99_val",),
    ),
    Line("accuracy on the other pairs", "near 1", "seed", ("val/accuracy",)),
    Line("frequencies of the embedding", "about 5", "seed", ("num_keys",)),
    Line("their share of its squared norm", "–", "seed", ("key_share",)),
    Line("loss on all pairs", "–", "seed", LOSS),
    Line("… without these frequencies", "–", "seed", ("without_keys/loss",)),
    Line("… with these alone", "–", "seed", ("keys_alone/loss",)),
)
PROGRAMS = {  # by `problem`: its name in the paper, and the accuracy of the paper's programs
    "reverse": ("reverse", 0.9979),
    "hist": ("histogram", 1.0),
    "double_hist": ("double histogram", 0.9840),
    "sort": ("sort", 0.9983),
    "most_freq": ("most frequent", 0.7569),
    "dyck1": ("Dyck-1", 0.9930),
    "dyck2": ("Dyck-2", 0.9909),
}
RASP = tuple(
    Line(name, f"{program:.4g}, a program", f"problem={problem},", ACCURACY)
    for problem, (name, program) in PROGRAMS.items()
)
LENGTHS = [64, 128, 256, 512, 1024]
INDUCTION = tuple(
    Line(kind, published, f"positions={kind},", [f"by_length/{length}" for length in LENGTHS])
    for kind, published in {
        "learned": "1, 0.996, 1, 0.586, 0.266",
        "sinusoidal": "–",
        "rotary": "1, 1, 1, 0.836, 0.313",
        "alibi": "–",
        "relative": "–",
        "none": "–",
    }.items()
)
SCAN = tuple(
    Line(name, published, f"{runs},", ("val/whole", "test/whole", "test/whole_of_length"))
    for name, published, runs in (
        ("absolute", "–", "positions=sinusoidal,share_layers=false"),
        ("relative", "1, of one of the two", "positions=relative,share_layers=false"),
        ("absolute, shared layers", "–", "positions=sinusoidal,share_layers=true"),
        ("relative, shared layers", "1, of one of the two", "positions=relative,share_layers=true"),
    )
)
CHARACTERS = (
    "experiments/language_model.py --data data/tinyshakespeare.txt --tokenizer characters --lr 1e-3"
    " --min-lr 1e-4 --adam-b2 0.99"
)
SHAKESPEARE = (
    f"{CHARACTERS} --seq-len 64 --stride 64 --model-dim 128 --num-heads 4 --num-layers 4"
    " --batch-size 12 --train-size 24000 --max-epochs 1"
)
SHAKESPEARE_LARGE = (
    f"{CHARACTERS} --seq-len 256 --stride 256 --model-dim 384 --num-heads 6 --num-layers 6"
    " --dropout-prob 0.2 --attention-dropout 0.2 --batch-size 64 --train-size 16000 --max-epochs"
    " 20 --eval-every 1 --dtype bfloat16"
)
GPT = "--feed-forward gelu --norm layer --positions learned --weight-decay 0.1"  # nanoGPT's parts
BOTH_LOSSES = ("val/loss", "test/loss")
MULTI30K = "data/multi30k"
TO_ENGLISH, TO_GERMAN = (
    f"experiments/translate.py --data {MULTI30K}/train.{way}.tsv --val-data"
    f" {MULTI30K}/val.{way}.tsv --test-data {MULTI30K}/test_2016_flickr.{way}.tsv --lower-case"
    for way in ("de-en", "en-de")
)
TUTORIAL = (
    "--source-tokenizer words:2+ --target-tokenizer words:2+ --model-dim 256 --num-heads 8"
    " --num-layers 3 --dim-feedforward 512 --dropout-prob 0.1 --attention-dropout 0.1 --positions"
    " learned --lr 5e-4 --schedule constant --warmup 0 --batch-size 128 --max-epochs 10"
    " --eval-every 1"
)
TINY = (
    f"{TO_GERMAN} --joint-tokenizer bpe:10000 --model-dim 128 --num-heads 4 --num-layers 4"
    " --dim-feedforward 256 --dropout-prob 0.3 --label-smoothing 0.1 --lr 5e-3 --schedule"
    " inverse_sqrt --warmup 2000 --adam-b2 0.98 --batch-tokens 4096 --max-epochs 36 --ema 0.999"
    " --beam-width 5"
)
CMUDICT = "data/cmudict"
PRONOUNCE = (
    f"experiments/translate.py --data {CMUDICT}/train.tsv --val-data {CMUDICT}/val.tsv --test-data"
    f" {CMUDICT}/test.tsv --source-tokenizer characters --target-tokenizer words --model-dim 128"
    " --num-heads 4 --num-layers 3 --dim-feedforward 512 --dropout-prob 0.1 --label-smoothing 0.1"
    " --batch-size 256 --lr 1e-3 --max-epochs 12 --eval-every 2 --beam-width 5"
)
SPELLING = (
    Line("errors per phoneme", "0.0523", "seed", ("word_error_rate",)),
    Line("words right", "0.779", "seed", ("exact_match",)),
)
FEW = "--max-epochs 1 --warmup 1"
CIFAR100 = (
    "experiments/anomaly.py --dataset cifar100 --images data/cifar100 --features-by"
    " experiments/efficientnet_lite0.py:features"
)
TABLES = {
    "ReverseTask": Table(
        "experiments/reverse.py --seeds 0..4",
        [Line("accuracy", "1", "seed", ACCURACY)],
        quick=f"{FEW} --train-size 301 --val-size 37 --test-size 29",
    ),
    "SetAnomalyTask_digits": Table(
        "experiments/anomaly.py --dataset digits --seeds 0..4",
        [Line("accuracy", "0.9466 (JAX), 0.9442 (PyTorch) on CIFAR-100", "seed", ACCURACY)],
        quick=FEW,
    ),
    "LargestOfASet": Table(
        f"{SETS} --sweep pooling=pma,equations,max,sum,mean --seeds 0..4", (*LARGEST, EQUATIONS)
    ),
    "LargestOfASet_supplement": Table(
        f"{SETS} --supplement --sweep pooling=pma,max,sum,mean --seeds 0..4", LARGEST
    ),
    "Rasp_small": Table(
        f"experiments/papers/rasp.py --small --sweep problem={','.join(PROGRAMS)} --seeds 0..4",
        RASP,
    ),
    "Grokking": Table(
        "experiments/papers/grokking.py --num-devices 1 --seeds 0..4",
        GROKKING,
        picture=Picture(
            {
                "trained pairs": ("seed", "curves/train/loss"),
                "other pairs": ("seed", "curves/val/loss"),
            },
            ("Step", "Loss"),
            log_y=True,
        ),
    ),
    "InductionByLength_small": Table(
        "experiments/papers/length.py --small --sweep"
        f" positions={','.join(line.label for line in INDUCTION)} --seeds 0..4",
        INDUCTION,
        [f"{length} tokens" for length in LENGTHS],
        Picture(
            {line.label: (line.runs, "by_length") for line in INDUCTION}, ("Tokens", "Accuracy")
        ),
    ),
    "Scan_small": Table(
        "experiments/papers/scan.py --small --sweep positions=sinusoidal,relative"
        " share_layers=false,true --seeds 0..4",
        SCAN,
        ("as short", "longer", "longer, of known length"),
    ),
    "InContextRegression": Table(
        "experiments/papers/in_context.py --seeds 0..2",
        IN_CONTEXT,
        ("Transformer", "least squares"),
    ),
    "Shakespeare": Table(
        f"{SHAKESPEARE} --dim-feedforward 512 {GPT} --name Shakespeare --seeds 0..4",
        [Line("nats a character", "1.88", "seed", BOTH_LOSSES)],
        ("90 to 95 % of the text", "95 to 100 %"),
        data="data/tinyshakespeare.txt",
    ),
    "Shakespeare_large": Table(
        f"{SHAKESPEARE_LARGE} --dim-feedforward 1536 {GPT} --name Shakespeare_large --seeds 0..2",
        [Line("nats a character", "1.4697", "seed", BOTH_LOSSES)],
        ("90 to 95 % of the text", "95 to 100 %"),
        data="data/tinyshakespeare.txt",
    ),
    "Shakespeare_defaults": Table(
        f"{SHAKESPEARE} --name Shakespeare_defaults --seeds 0..4",
        [Line("nats a character", "–", "seed", BOTH_LOSSES)],
        ("90 to 95 % of the text", "95 to 100 %"),
        data="data/tinyshakespeare.txt",
    ),
    "Multi30k": Table(
        f"{TO_ENGLISH} {TUTORIAL} --name Multi30k --seeds 0..4",
        [Line("BLEU", "36.5", "seed", ("bleu",))],
        data=MULTI30K,
    ),
    "Multi30k_to_german": Table(
        f"{TO_GERMAN} {TUTORIAL} --name Multi30k_to_german --seeds 0..4",
        [Line("BLEU", "–", "seed", ("bleu",))],
        data=MULTI30K,
    ),
    "Multi30k_tiny": Table(
        f"{TINY} --name Multi30k_tiny --seeds 0",
        [Line("BLEU", "41.02", "seed", ("bleu",))],
        data=MULTI30K,
    ),
    "Pronunciations": Table(
        f"{PRONOUNCE} --name Pronunciations --seeds 0",
        SPELLING,
        data=CMUDICT,
    ),
    "Photographs": Table(
        "experiments/anomaly.py --dataset files --features data/photographs/features.npy --labels "
        "data/photographs/labels.npy --max-epochs 100 --name Photographs --seeds 0..4",
        [Line("accuracy", "0.9466 (JAX), 0.9442 (PyTorch) on CIFAR-100", "seed", ACCURACY)],
        data="data/photographs",
    ),
    "Trec": Table(
        "experiments/classify.py --data data/sentences/trec/train.csv --test-data"
        " data/sentences/trec/test.csv --name Trec --seeds 0..4",
        [Line("accuracy", "0.912", "seed", ACCURACY)],
        data="data/sentences",
    ),
    # at the budget that the paper has
    "CIFAR100": Table(
        f"{CIFAR100} --name CIFAR100 --seeds 0..4",
        [Line("accuracy", "0.9466 (JAX), 0.9442 (PyTorch), ResNet-34", "seed", ACCURACY)],
        data="data/cifar100",
    ),
    "Multi30k_tiny_8000": Table(
        f"{TINY} --max-steps 8000 --name Multi30k_tiny_8000 --seeds 0..2",
        [Line("BLEU", "41.02", "seed", ("bleu",))],
        data=MULTI30K,
    ),
    "Scan": Table(
        "experiments/papers/scan.py --sweep positions=sinusoidal,relative"
        " share_layers=false,true --seeds 0..4",
        SCAN,
        ("as short", "longer", "longer, of known length"),
    ),
    "InductionByLength": Table(
        "experiments/papers/length.py --longest 1024 --sweep positions=learned,rotary --seeds 0..2",
        [line for line in INDUCTION if line.published != "–"],
        [f"{length} tokens" for length in LENGTHS],
    ),
    "Pronunciations_60": Table(
        f"{PRONOUNCE} --num-layers 4 --max-epochs 60 --name Pronunciations_60 --seeds 0..2",
        SPELLING,
        data=CMUDICT,
    ),
    "LargestOfASet_falling": Table(
        f"{SETS} --supplement --schedule cosine --name LargestOfASet_falling --sweep"
        " pooling=pma,max,sum,mean --seeds 0..4",
        LARGEST,
    ),
    "Rasp": Table(
        f"experiments/papers/rasp.py --sweep problem={','.join(PROGRAMS)} --seeds 0..2", RASP
    ),
}
