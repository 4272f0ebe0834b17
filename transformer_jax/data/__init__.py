"""Batches of NumPy arrays: order, loading, padding, stacking; downloads.

Imports `errors`, and PyTorch in `loader` alone.
"""
