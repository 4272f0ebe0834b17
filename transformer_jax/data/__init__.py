"""Data on their way to the compiled step: order of samples, loading, padding, stacking; downloads.

Imports `errors` and `trees`. PyTorch is imported in `loader` alone, when the first batch is asked for.
"""
