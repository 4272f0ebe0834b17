"""Import and export of weights: PyTorch's modules and the tutorials' files.

Imports `nn` and `errors`, and PyTorch.
"""
