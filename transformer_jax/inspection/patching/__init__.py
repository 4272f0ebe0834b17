"""Ablation and patching: what a model loses or regains if activations are changed or come from another pass."""
