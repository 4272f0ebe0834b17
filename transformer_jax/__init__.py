"""transformer-jax: a Transformer in JAX and Flax to understand, trust and bend.

Letters of dimensions, in types, docstrings and comments alike:

    B  batch                          H  heads
    T  query or target length         d  width of one head, D / H
    S  key or source length           F  feed-forward width
    D  model width                    L  layers
    C  classes                        V  vocabulary
    K  beams                          N  rows that are decoded, B or B·K
"""

import lazy_loader

# Each name is imported when it is first used, so that a model does not wait for PyTorch or matplotlib.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "nn.attention": ["MultiheadAttention", "scaled_dot_product"],
        "decoding.beam_search": ["beam_search"],
        "cli": ["parse", "run"],
        "config": ["Criterion", "TrainingConfig", "setting"],
        "data.batch": ["Batch"],
        "nn.blocks": ["BlockSettings"],
        "nn.mesh_axis": ["all_rows", "device_number"],
        "tasks.experiment": ["TaskData", "train_and_test"],
        "nn.decoder": ["DecoderBlock", "TransformerDecoder"],
        "decoding.token_by_token": ["Decoded", "greedy_decode", "sample"],
        "nn.encoder": ["EncoderBlock", "TransformerEncoder"],
        "errors": ["InputError"],
        "data.loader": ["StackedSamples", "make_loader", "numpy_collate"],
        "trained.load": ["load_run"],
        "nn.masks": ["causal_mask", "combine_masks", "expand_mask", "padding_mask"],
        "plots": [
            "plot_attention_maps",
            "plot_image_sets",
            "plot_positional_curves",
            "plot_positional_encoding",
            "plot_schedules",
            "plot_set_prediction",
        ],
        "nn.positions": ["PositionalEncoding"],
        "nn.predictor": ["TransformerPredictor"],
        "trained.published": ["load_pretrained"],
        "training.schedules": ["cosine_warmup_schedule", "noam_schedule", "warmup_then_cosine_schedule"],
        "nn.encoder_decoder": ["DecodingCache", "Transformer"],
        "tasks.anomaly.task": ["AnomalyTrainer", "Cifar100Config", "DigitsConfig", "train_anomaly"],
        "tasks.anomaly.sets": ["SetAnomalyDataset", "stratified_split"],
        "tasks.reverse": ["ReverseConfig", "ReverseDataset", "ReverseTrainer", "train_reverse"],
        "tasks.translation.task": ["TranslationConfig", "TranslationTrainer", "train_translation"],
        "weights.pytorch": ["params_from_torch", "params_to_torch"],
        "training.compilation": ["prepare_jax"],
        "training.trainer": ["TrainerModule"],
    },
)
