from .batch import ArrayDataset as ArrayDataset
from .batch import Batch as Batch
from .batch import StackedSamples as StackedSamples
from .batch import numpy_collate as numpy_collate
from .loader import make_loader as make_loader
