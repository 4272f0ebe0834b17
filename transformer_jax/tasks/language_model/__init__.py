"""Predict text byte by byte: the docstrings of Python's standard library, or any file."""
