"""Import and export of HuggingFace Transformers models: one file per model family."""
