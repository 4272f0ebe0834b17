"""Models of HuggingFace Transformers from their directories, and written back: one file for each family of models."""
