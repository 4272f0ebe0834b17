"""Tiny encoders of `transformers` with tokenizers and the files of `sentence-transformers`."""

import json

import tokenizers
import torch
import transformers
from safetensors.numpy import save_file
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

WORDS = ["[PAD]", "</s>", "[CLS]", "[SEP]", *(f"w{number}" for number in range(4, 13))]
ST = "sentence_transformers."


def saved(directory, head, **config):
    """Save a model of 13 tokens, of this class, and a tokenizer; return both as `transformers` has them."""
    pieces = tokenizers.Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="</s>"))
    pieces.pre_tokenizer = Whitespace()
    pieces.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(0)
    sizes = {"vocab_size": 13, "hidden_size": 10, "num_attention_heads": 2, "num_hidden_layers": 1}
    sizes |= {"intermediate_size": 7, "max_position_embeddings": 17, "initializer_range": 0.7}
    model_class = getattr(transformers, head)
    if head.startswith("DistilBert"):
        sizes["hidden_dim"] = sizes.pop("intermediate_size")
    model = model_class(model_class.config_class(**sizes, **config)).eval()
    model.save_pretrained(directory)
    pieces.save(str(directory / "tokenizer.json"))
    return model, transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="</s>")


def logits_of(model, tokenizer, *texts):
    encoding = tokenizer.backend_tokenizer.encode(*texts)
    inputs = {"input_ids": torch.tensor([encoding.ids]), "token_type_ids": torch.tensor([encoding.type_ids])}
    if not hasattr(model.config, "type_vocab_size"):
        del inputs["token_type_ids"]
    with torch.no_grad():
        return model(**inputs).logits[0]


def sentence_files(directory, pooling, *modules, **transformer):
    """Write the files of `sentence-transformers` beside a model."""
    listed = [("models.Transformer", ""), ("models.Pooling", "1_Pooling")]
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "sentence_bert_config.json").write_text(json.dumps(transformer))
    for number, module in enumerate(modules, start=2):
        listed.append(("models.Dense" if module else "models.Normalize", f"{number}"))
        (directory / f"{number}").mkdir()
        if module:
            arrays, config = module
            sizes = dict(zip(("out_features", "in_features"), arrays["linear.weight"].shape, strict=True))
            (directory / f"{number}" / "config.json").write_text(json.dumps(sizes | config))
            save_file(arrays, directory / f"{number}" / "model.safetensors")
    content = [{"type": f"{ST}{kind}", "path": path} for kind, path in listed]
    (directory / "modules.json").write_text(json.dumps(content))
