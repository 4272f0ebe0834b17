from .batch import Batch as Batch
from .loader import make_loader as make_loader
from .stacked_samples import StackedSamples as StackedSamples
from .stacked_samples import numpy_collate as numpy_collate
