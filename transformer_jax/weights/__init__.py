"""Import and export of weights: PyTorch's modules and the tutorials' files; export of whole models to PyTorch.

Imports `nn` and `errors`, and PyTorch.
"""
