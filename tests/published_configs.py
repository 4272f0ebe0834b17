"""The `config.json` of published models as on HuggingFace's hub (with long lists of labels cut).

Each comes with the number of parameters of the model, without heads that only the weights would reveal, or with the
key that is refused.
"""

from typing import Any

Json = dict[str, Any]

GPT2: Json = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
}  # fmt: skip
GPT2_LATER: Json = GPT2 | {"n_special": 0, "predict_special_tokens": True}
DISTIL: Json = {
    "_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "n_layer": 6,
}  # fmt: skip
MISTRAL_GPT2: Json = {  # stanford-crfm: the attention's logits are divided by the layer's number
    "reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": True,
    "gradient_checkpointing": False, "use_cache": False, "torch_dtype": "float32",
}  # fmt: skip
NEOX: Json = {
    "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
    "hidden_size": 512, "initializer_range": 0.02, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 8, "num_hidden_layers": 6,
    "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
}  # fmt: skip
LLAMA: Json = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
LLAMA2: Json = {
    "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
    "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": True,
    "vocab_size": 32000,
}  # fmt: skip
LLAMA1: Json = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_sequence_length": 2048,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "pad_token_id": 0, "rms_norm_eps": 1e-06,
    "torch_dtype": "float16", "transformers_version": "4.28.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
YARN_LLAMA2: Json = LLAMA2 | {
    "auto_map": {"AutoModelForCausalLM": "modeling_llama_together_yarn.LlamaForCausalLM"},
    "max_position_embeddings": 65536,
    "rope_scaling": {"factor": 16.0, "finetuned": True, "original_max_position_embeddings": 4096, "type": "yarn"},
}  # fmt: skip
LLAMA31: Json = LLAMA | {
    "max_position_embeddings": 131072, "transformers_version": "4.43.0.dev0",
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
LLAMA32: Json = LLAMA31 | {
    "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "rope_scaling": LLAMA31["rope_scaling"] | {"factor": 32.0}, "tie_word_embeddings": True,
    "transformers_version": "4.45.0.dev0",
}  # fmt: skip
SMOLLM2: Json = LLAMA | {
    "bos_token_id": 0, "eos_token_id": 0, "hidden_size": 576, "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536, "is_llama_config": True, "num_attention_heads": 9, "num_hidden_layers": 30,
    "num_key_value_heads": 3, "rope_interleaved": False, "rope_theta": 100000, "tie_word_embeddings": True,
    "transformers_version": "4.40.1", "vocab_size": 49152,
}  # fmt: skip
SMOLLM2_CHAT: Json = {
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "transformers_version": "4.42.3",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
}  # fmt: skip
QWEN25: Json = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
    "use_cache": True, "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN25_7B: Json = QWEN25 | {
    "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "sliding_window": 131072,
    "tie_word_embeddings": False, "vocab_size": 152064,
}  # fmt: skip
QWEN25_1M: Json = QWEN25_7B | {
    "dual_chunk_attention_config": {
        "chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144,
    },
    "eos_token_id": 151645, "max_position_embeddings": 1010000, "rms_norm_eps": 1e-05, "rope_theta": 10000000.0,
    "sliding_window": None,
}  # fmt: skip
AWQ: Json = {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True}
BITS4: Json = {
    "_load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_type": "nf4", "load_in_4bit": True,
    "bnb_4bit_use_double_quant": True, "quant_method": "bitsandbytes",
}  # fmt: skip
QWEN3: Json = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
YARN: Json = {"factor": 4.0, "original_max_position_embeddings": 32768}
MISTRAL: Json = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size":
    4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type":
    "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
MISTRAL3: Json = MISTRAL | {"attention_dropout": 0.0, "rope_theta": 1000000.0, "sliding_window": None}
NEMO: Json = MISTRAL3 | {
    "head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 1024000, "num_hidden_layers": 40,
    "vocab_size": 131072,
}  # fmt: skip
SMOLLM3: Json = {
    "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size":
    11008, "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536, "max_window_layers": 28,
    "mlp_bias": False, "model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004,
    "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
    "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": False, "use_sliding_window": False,
    "vocab_size": 128256,
}  # fmt: skip
OLMO2: Json = {
    "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "eos_token_id": 100257,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 16, "num_hidden_layers": 16,
    "num_key_value_heads": 16, "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta":
    500000, "tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.50.3", "use_cache": True,
    "vocab_size": 100352,
}  # fmt: skip
GEMMA: Json = {
    "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2,
    "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": None, "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
    "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    "transformers_version": "4.38.0.dev0", "use_cache": True, "vocab_size": 256000,
}  # fmt: skip
GEMMA2: Json = GEMMA | {
    "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304, "intermediate_size": 9216, "model_type": "gemma2", "num_hidden_layers": 26,
    "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096, "transformers_version": "4.42.4",
}  # fmt: skip
GEMMA3: Json = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping":
    None, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping":
    None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
    "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "transformers_version":
    "4.50.0.dev0", "use_cache": True, "vocab_size": 262144,
}  # fmt: skip
GEMMA3_SMALL: Json = GEMMA3 | {
    "_sliding_window_pattern": 6, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3, "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0, "transformers_version": "4.55.0.dev0", "use_bidirectional_attention": False,
}  # fmt: skip
GOOGLE: Json = {  # without a model_type
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512, "num_attention_heads": 12,
    "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522,
}  # fmt: skip
POOLER: Json = {
    "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
}  # fmt: skip
BERT: Json = GOOGLE | {
    "architectures": ["BertForMaskedLM"], "layer_norm_eps": 1e-12, "model_type": "bert", "pad_token_id": 0,
}  # fmt: skip
LATER: Json = {"position_embedding_type": "absolute", "use_cache": True, "gradient_checkpointing": False}
MINILM: Json = BERT | LATER | {
    "_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "architectures": ["BertModel"], "hidden_size": 384,
    "intermediate_size": 1536, "num_hidden_layers": 6, "transformers_version": "4.8.2",
}  # fmt: skip
MARCO: Json = {
    "_name_or_path": "ms_marco_MiniLM-L6-v2-mse", "architectures": ["BertForSequenceClassification"],
    "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "transformers_version": "4.6.1",
    "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0.dev0"},
}  # fmt: skip
SST2_BERT: Json = BERT | LATER | {  # textattack/bert-base-uncased-SST-2
    "architectures": ["BertForSequenceClassification"], "finetuning_task": "sst-2", "eos_token_ids": 0, "num_labels": 2,
    "output_attentions": False, "output_hidden_states": False, "output_past": True, "pruned_heads": {},
    "torchscript": False, "use_bfloat16": False, "is_decoder": False, "do_sample": False, "num_beams": 1,
    "temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0, "max_length": 20, "length_penalty": 1.0,
    "num_return_sequences": 1, "bos_token_id": 0,
}  # fmt: skip
ROBERTA: Json = BERT | {
    "architectures": ["RobertaForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1,
    "vocab_size": 50265,
}  # fmt: skip
LARGE: Json = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24,
}  # fmt: skip
DISTILBERT: Json = {
    "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 768,
    "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
    "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
    "transformers_version": "4.10.0.dev0", "vocab_size": 30522,
}  # fmt: skip
SST2: Json = {
    "architectures": ["DistilBertForSequenceClassification"], "finetuning_task": "sst-2", "output_past": True,
    "id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
}  # fmt: skip
MPNET: Json = {
    "architectures": ["MPNetForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02,
    "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "mpnet",
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "relative_attention_num_buckets": 32,
    "transformers_version": "4.8.2", "vocab_size": 30527,
}  # fmt: skip
BART: Json = {
    "_num_labels": 3, "activation_dropout": 0.1, "activation_function": "gelu", "add_bias_logits": False,
    "add_final_layer_norm": False, "architectures": ["BartModel"], "attention_dropout": 0.1, "bos_token_id": 0,
    "classif_dropout": 0.1, "classifier_dropout": 0.0, "d_model": 768, "decoder_attention_heads": 12,
    "decoder_ffn_dim": 3072, "decoder_layerdrop": 0.0, "decoder_layers": 6, "decoder_start_token_id": 2,
    "dropout": 0.1, "early_stopping": True, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072,
    "encoder_layerdrop": 0.0, "encoder_layers": 6, "eos_token_id": 2, "forced_bos_token_id": 0,
    "forced_eos_token_id": 2, "gradient_checkpointing": False, "id2label": {"0": "LABEL_0"}, "init_std": 0.02,
    "is_encoder_decoder": True, "label2id": {"LABEL_0": 0}, "max_position_embeddings": 1024, "model_type": "bart",
    "no_repeat_ngram_size": 3, "normalize_before": False, "normalize_embedding": True, "num_beams": 4,
    "num_hidden_layers": 6, "pad_token_id": 1, "scale_embedding": False,
    "task_specific_params": {"summarization": {"length_penalty": 1.0, "max_length": 128, "min_length": 12}},
    "transformers_version": "4.12.0.dev0", "use_cache": True, "vocab_size": 50265,
}  # fmt: skip
BART_LARGE: Json = BART | {
    "d_model": 1024, "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "decoder_layers": 12,
    "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "encoder_layers": 12, "num_hidden_layers": 12,
}  # fmt: skip
CNN: Json = {
    "architectures": ["BartForConditionalGeneration"], "force_bos_token_to_be_generated": True, "length_penalty": 2.0,
    "max_length": 142, "min_length": 56, "output_past": True, "prefix": " ", "vocab_size": 50264,
}  # fmt: skip
CAMEMBERT: Json = {
    "architectures": ["CamembertForMaskedLM"], "bos_token_id": 5, "eos_token_id": 6, "model_type": "camembert",
    "output_past": True, "vocab_size": 32005,
}  # fmt: skip
XLM: Json = {
    "architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta", "output_past": True, "vocab_size": 250002,
    "transformers_version": "4.17.0.dev0",
} | LATER  # fmt: skip
VIT: Json = {
    "_name_or_path": "google/vit-base-patch16-224-in21k", "architectures": ["ViTModel"],
    "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 768,
    "image_size": 224, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
    "model_type": "vit", "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12, "patch_size": 16,
    "qkv_bias": True, "transformers_version": "4.13.0.dev0",
}  # fmt: skip
VIT_CLASSES: Json = {
    "architectures": ["ViTForImageClassification"], "id2label": {"0": "tench, Tinca tinca"},
    "label2id": {"tench, Tinca tinca": 0},
}  # fmt: skip
T5: Json = {
    "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512,
    "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0,
    "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512, "num_heads": 8,
    "num_layers": 6, "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 32,
    "task_specific_params": {
        "translation_en_to_de": {
            "early_stopping": True, "max_length": 300, "num_beams": 4, "prefix": "translate English to German: ",
        },
    },
    "vocab_size": 32128,
}  # fmt: skip
T5_BASE: Json = {"d_ff": 3072, "d_model": 768, "num_heads": 12, "num_layers": 12}
T5_LATER: Json = T5 | {
    "d_ff": 1024, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8,
    "tie_word_embeddings": False, "use_cache": True,
}  # fmt: skip
FLAN: Json = {
    "dense_act_fn": "gelu_new", "is_gated_act": True, "relative_attention_max_distance": 128,
    "transformers_version": "4.23.1",
}  # fmt: skip
T5_LATER_BASE: Json = T5_BASE | {"d_ff": 2048, "num_decoder_layers": 12}
MT5: Json = {
    "_name_or_path": "/home/patrick/hugging_face/mt5/mt5-small", "architectures": ["MT5ForConditionalGeneration"],
    "d_ff": 1024, "d_kv": 64, "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06, "model_type": "mt5", "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8,
    "pad_token_id": 0, "relative_attention_num_buckets": 32, "tie_word_embeddings": False,
    "tokenizer_class": "T5Tokenizer", "vocab_size": 250112,
}  # fmt: skip
OPUS: Json = {
    "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": False,
    "add_final_layer_norm": False, "architectures": ["MarianMTModel"], "attention_dropout": 0.0,
    "bad_words_ids": [[58100]], "bos_token_id": 0, "classif_dropout": 0.0, "classifier_dropout": 0.0, "d_model": 512,
    "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0, "decoder_layers": 6,
    "decoder_start_token_id": 58100, "dropout": 0.1, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048,
    "encoder_layerdrop": 0.0, "encoder_layers": 6, "eos_token_id": 0, "forced_eos_token_id": 0,
    "gradient_checkpointing": False, "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "init_std": 0.02,
    "is_encoder_decoder": True, "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}, "max_length": 512,
    "max_position_embeddings": 512, "model_type": "marian", "normalize_before": False, "normalize_embedding": False,
    "num_beams": 6, "num_hidden_layers": 6, "pad_token_id": 58100, "scale_embedding": True,
    "static_position_embeddings": True, "transformers_version": "4.22.0.dev0", "use_cache": True, "vocab_size": 58101,
}  # fmt: skip
BIG: Json = {  # of the Tatoeba challenge
    "d_model": 1024, "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096, "max_length": 512, "max_position_embeddings": 1024, "num_beams": 4,
    "activation_function": "relu", "share_encoder_decoder_embeddings": True, "torch_dtype": "float16",
}  # fmt: skip


def opus(size: int, **more: object) -> Json:
    """Config of a translator with a vocabulary of this size, whose last token is padding, and further keys."""
    tokens = {"bad_words_ids": [[size - 1]], "decoder_start_token_id": size - 1, "pad_token_id": size - 1}
    return OPUS | tokens | {"vocab_size": size} | more


RXNMAPPER = {
    "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
    "classifier_dropout_prob": 0.1, "do_sample": False, "down_scale_factor": 1, "embedding_size": 128, "eos_token_ids":
    0, "finetuning_task": None, "gap_size": 0, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 256,
    "initializer_range": 0.02, "inner_group_num": 1, "intermediate_size": 512, "is_decoder": False, "layer_norm_eps":
    1e-12, "length_penalty": 1.0, "max_length": 20, "max_position_embeddings": 512, "model_type": "albert",
    "net_structure_type": 0, "num_attention_heads": 8, "num_beams": 1, "num_hidden_groups": 1, "num_hidden_layers": 12,
    "num_labels": 2, "num_memory_blocks": 0, "output_attentions": False, "output_past": True, "pad_token_id": 0,
    "pruned_heads": {}, "repetition_penalty": 1.0, "torchscript": False, "type_vocab_size": 2, "use_bfloat16": False,
    "vocab_size": 591,
}  # fmt: skip

PUBLISHED: dict[str, tuple[Json, int | str]] = {
    "gpt2": (GPT2, 124_439_808),
    "gpt2-medium": (GPT2_LATER | {"n_embd": 1024, "n_head": 16, "n_layer": 24}, 354_823_168),
    "gpt2-large": (GPT2 | {"n_embd": 1280, "n_head": 20, "n_layer": 36}, 774_030_080),
    "gpt2-xl": (GPT2 | {"n_embd": 1600, "n_head": 25, "n_layer": 48, "output_past": True}, 1_557_611_200),
    "distilgpt2": (GPT2 | DISTIL, 81_912_576),
    "stanford-crfm/alias-gpt2-small-x21": (GPT2 | MISTRAL_GPT2, "scale_attn_by_inverse_layer_idx"),
    "microsoft/DialogRPT-updown": (
        GPT2 | {"architectures": ["GPT2ForSequenceClassification"], "n_embd": 1024, "n_head": 16, "n_layer": 24},
        "architectures"),
    "EleutherAI/pythia-70m": (NEOX, 70_426_624),
    "EleutherAI/pythia-160m": (
        NEOX | {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12},
        162_322_944),
    "EleutherAI/pythia-410m": (NEOX | LARGE, 405_334_016),
    "EleutherAI/pythia-1.4b": (NEOX | LARGE | {"hidden_size": 2048, "intermediate_size": 8192}, 1_414_647_808),
    "EleutherAI/pythia-6.9b": (
        NEOX | {"hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32, "num_hidden_layers": 32,
                "vocab_size": 50432}, 6_857_302_016),
    "yahma/llama-7b-hf": (LLAMA1, 6_738_415_616),
    "meta-llama/Llama-2-7b-hf": (LLAMA2, 6_738_415_616),
    "NousResearch/Yarn-Llama-2-7b-64k": (YARN_LLAMA2, "auto_map"),
    "meta-llama/Meta-Llama-3-8B": (LLAMA, 8_030_261_248),
    "meta-llama/Llama-3.1-8B-Instruct": (LLAMA31 | {"eos_token_id": [128001, 128008, 128009]}, 8_030_261_248),
    "meta-llama/Llama-3.2-1B": (LLAMA32, 1_235_814_400),
    "meta-llama/Llama-3.2-3B": (
        LLAMA32 | {"head_dim": 128, "hidden_size": 3072, "num_attention_heads": 24, "num_hidden_layers": 28},
        3_212_749_824),
    "unsloth/Llama-3.2-1B-Instruct": (
        LLAMA32 | {"unsloth_fixed": True, "unsloth_version": "2024.9", "pad_token_id": 128004,
                   "neftune_noise_alpha": None, "_attn_implementation_autoset": False}, 1_235_814_400),
    "unsloth/Meta-Llama-3.1-8B-bnb-4bit": (LLAMA31 | {"quantization_config": BITS4}, "quantization_config"),
    "mlx-community/Llama-3.2-1B-Instruct-4bit": (
        LLAMA32 | {"quantization": {"bits": 4, "group_size": 64}}, "quantization"),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": (
        LLAMA2 | {"hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 2048, "num_hidden_layers":
                  22, "num_key_value_heads": 4, "rope_theta": 10000.0, "attention_bias": False}, 1_100_048_384),
    "HuggingFaceTB/SmolLM2-135M": (SMOLLM2, 134_515_008),
    "HuggingFaceTB/SmolLM2-360M-Instruct": (
        SMOLLM2 | SMOLLM2_CHAT | {"hidden_size": 960, "intermediate_size": 2560, "num_attention_heads": 15,
                                  "num_hidden_layers": 32, "num_key_value_heads": 5}, 361_821_120),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": (
        SMOLLM2 | SMOLLM2_CHAT | {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
                                  "num_hidden_layers": 24, "num_key_value_heads": 32, "rope_theta": 130000,
                                  "_name_or_path": "HuggingFaceTB/SmolLM2-1.7B-sft", "unk_token_id": 0}, 1_711_376_384),
    "tiiuae/Falcon3-1B-Base": (
        LLAMA | {"activation": "swiglu", "bos_token_id": 11, "eos_token_id": 11, "head_dim": 256, "hidden_size": 2048,
                 "intermediate_size": 8192, "max_position_embeddings": 4096, "num_attention_heads": 8,
                 "num_hidden_layers": 18, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000042,
                 "vocab_size": 131072}, 1_669_408_768),
    "Qwen/Qwen2.5-0.5B": (QWEN25, 494_032_768),
    "Qwen/Qwen2.5-1.5B-Instruct": (
        QWEN25 | {"eos_token_id": 151645, "hidden_size": 1536, "intermediate_size": 8960, "max_window_layers": 21,
                  "num_attention_heads": 12, "num_hidden_layers": 28}, 1_543_714_304),
    "Qwen/Qwen2.5-7B": (QWEN25_7B, 7_615_616_512),
    "Qwen/Qwen2.5-7B-Instruct-1M": (QWEN25_1M, 7_615_616_512),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": (QWEN25_7B | {"quantization_config": AWQ}, "quantization_config"),
    "Alibaba-NLP/gte-Qwen2-1.5B-instruct": (
        QWEN25 | {"auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"}, "hidden_size": 1536, "intermediate_size": 8960,
                  "is_causal": False, "num_attention_heads": 12, "num_hidden_layers": 28, "vocab_size": 151646},
        "auto_map"),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": (
        QWEN25_7B | {"rope_theta": 10000, "sliding_window": 4096, "transformers_version": "4.44.0"}, 7_615_616_512),
    "Qwen/Qwen3-0.6B": (QWEN3, 596_049_920),
    "Qwen/Qwen3-1.7B": (QWEN3 | {"hidden_size": 2048, "intermediate_size": 6144}, 1_720_574_976),
    "Qwen/Qwen3-8B": (
        QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288, "max_window_layers": 36, "num_attention_heads": 32,
                 "num_hidden_layers": 36, "tie_word_embeddings": False}, 8_190_735_360),
    "Qwen/Qwen3-8B, long texts": (
        QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288, "max_window_layers": 36, "num_attention_heads": 32,
                 "num_hidden_layers": 36, "tie_word_embeddings": False, "rope_scaling": YARN | {"rope_type": "yarn"}},
        8_190_735_360),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": (
        QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 131072,
                 "max_window_layers": 36, "num_attention_heads": 32, "num_hidden_layers": 36,
                 "rope_scaling": YARN | {"attn_factor": 0.8782488562869419, "rope_type": "yarn"},
                 "tie_word_embeddings": False}, 8_190_735_360),
    "Qwen/Qwen2.5-7B, long texts": (QWEN25_7B | {"rope_scaling": YARN | {"type": "yarn"}}, 7_615_616_512),
    "mistralai/Mistral-7B-v0.1": (MISTRAL, 7_241_732_096),
    "mistralai/Mistral-7B-Instruct-v0.2": (MISTRAL3, 7_241_732_096),
    "mistralai/Mistral-7B-v0.3": (MISTRAL3 | {"vocab_size": 32768}, 7_248_023_552),
    "mistralai/Mistral-Nemo-Base-2407": (NEMO, 12_247_782_400),
    "HuggingFaceTB/SmolLM3-3B": (SMOLLM3, 3_075_098_624),
    "allenai/OLMo-2-0425-1B": (OLMO2, 1_484_916_736),
    "google/gemma-2b": (GEMMA, 2_506_172_416),
    "google/gemma-7b": (
        GEMMA | {"hidden_size": 3072, "intermediate_size": 24576, "num_attention_heads": 16, "num_hidden_layers": 28,
                 "num_key_value_heads": 16}, 8_537_680_896),
    "google/gemma-2-2b": (GEMMA2, 2_614_341_888),
    "google/gemma-2-9b": (
        GEMMA2 | {"hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16, "num_hidden_layers": 42,
                  "num_key_value_heads": 8}, 9_241_705_984),
    "google/gemma-3-270m": (GEMMA3_SMALL, 268_098_176),
    "google/gemma-3-1b-it": (GEMMA3, 999_885_952),
    "google/gemma-3-4b-it": ({"model_type": "gemma3", "text_config": GEMMA3}, "model_type"),
    "bert-base-uncased": (BERT | LATER | {"transformers_version": "4.6.0.dev0"}, 108_891_648),
    "bert-base-multilingual-cased": (BERT | POOLER | {"vocab_size": 119547}, 177_262_848),
    "google-research/uncased_L-24_H-1024_A-16": (GOOGLE | LARGE, 334_092_288),
    "allenai/scibert_scivocab_uncased": (GOOGLE | {"vocab_size": 31090}, 109_327_872),
    "textattack/bert-base-uncased-SST-2": (SST2_BERT, 108_891_648),
    "zhiheng-huang/bert-base-uncased-embedding-relative-key-query": (
        BERT | LATER | {"position_embedding_type": "relative_key_query"}, "position_embedding_type"),
    "sentence-transformers/all-MiniLM-L6-v2": (MINILM, 22_565_376),
    "cross-encoder/ms-marco-MiniLM-L6-v2": (MINILM | MARCO, 22_565_376),
    "roberta-base": (ROBERTA, 124_055_040),
    "roberta-large": (ROBERTA | LARGE, 354_310_144),
    "distilroberta-base": (ROBERTA | {"num_hidden_layers": 6}, 81_527_808),
    "camembert-base": (ROBERTA | CAMEMBERT, 110_031_360),
    "xlm-roberta-base": (ROBERTA | XLM, 277_453_056),
    "rxn4chemistry/rxnmapper": (RXNMAPPER, 701_824),
    "albert-base-v2": (
        RXNMAPPER | {"hidden_act": "gelu_new", "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
                     "vocab_size": 30000}, 11_092_992),
    "distilbert-base-uncased": (DISTILBERT, 66_362_880),
    "distilbert-base-multilingual-cased": (DISTILBERT | {"output_past": True, "vocab_size": 119547}, 134_734_080),
    "distilbert-base-uncased-finetuned-sst-2-english": (DISTILBERT | SST2, 66_362_880),
    "distilbert-base-cased-distilled-squad": (
        DISTILBERT | {"architectures": ["DistilBertForQuestionAnswering"], "sinusoidal_pos_embds": True,
                      "vocab_size": 28996}, "architectures"),
    "microsoft/mpnet-base": (MPNET, 108_895_872),
    "sentence-transformers/all-mpnet-base-v2": (MPNET | {"_name_or_path": "microsoft/mpnet-base"}, 108_895_872),
    "google/vit-base-patch16-224": (VIT | VIT_CLASSES, 85_798_656),
    "google/vit-base-patch16-224-in21k": (VIT, 85_798_656),
    "google/vit-large-patch16-224": (VIT | VIT_CLASSES | LARGE, 303_301_632),
    "t5-small": (T5, 60_506_624),
    "t5-base": (T5 | T5_BASE, 222_903_552),
    "google/t5-v1_1-small": (T5_LATER, 76_961_152),
    "google/t5-v1_1-base": (T5_LATER | T5_LATER_BASE, 247_577_856),
    "google/flan-t5-small": (T5_LATER | FLAN, 76_961_152),
    "google/flan-t5-base": (T5_LATER | FLAN | T5_LATER_BASE, 247_577_856),
    "google/mt5-small": (MT5, 300_176_768),
    "google/mt5-base": (
        MT5 | {"d_ff": 2048, "d_model": 768, "num_decoder_layers": 12, "num_heads": 12, "num_layers": 12,
               "output_past": True}, 582_401_280),
    "google/umt5-small": (
        MT5 | {"architectures": ["UMT5ForConditionalGeneration"], "model_type": "umt5"}, "model_type"),
    "facebook/bart-base": (BART, 139_420_416),
    "facebook/bart-large": (BART_LARGE, 406_291_456),
    "facebook/bart-large-cnn": (BART_LARGE | CNN, 406_340_696),
    "facebook/bart-large-mnli": (
        BART_LARGE | {"architectures": ["BartForSequenceClassification"],
                      "id2label": {"0": "contradiction", "1": "neutral", "2": "entailment"}}, "architectures"),
    "facebook/mbart-large-50": (
        BART_LARGE | {"architectures": ["MBartForConditionalGeneration"], "model_type": "mbart",
                      "add_final_layer_norm": True, "normalize_before": True, "vocab_size": 250054}, "model_type"),
    "Helsinki-NLP/opus-mt-en-de": (OPUS, 73_944_309),
    "Helsinki-NLP/opus-mt-de-en": (OPUS | {"extra_pos_embeddings": 58101}, 73_944_309),
    "Helsinki-NLP/opus-mt-en-ROMANCE": (opus(65001, num_beams=4), 77_484_009),
    "Helsinki-NLP/opus-mt-fr-en": (
        opus(59514, decoder_vocab_size=59514, share_encoder_decoder_embeddings=True), 74_669_178),
    "Helsinki-NLP/opus-mt-tc-big-en-pt": (opus(54776, decoder_vocab_size=54776, **BIG), 232_502_776),
}  # fmt: skip
