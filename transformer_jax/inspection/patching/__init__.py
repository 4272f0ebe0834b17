"""What a model loses, and what it gets back, where some of its activations are changed or come from another pass."""
