"""Other programs' files of weights, PyTorch's and the tutorials', in and out.

Imports `nn` and `errors`, and PyTorch.
"""
