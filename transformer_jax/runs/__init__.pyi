from .loggers import CsvLogger as CsvLogger
from .loggers import Logger as Logger
from .loggers import LogPosition as LogPosition
from .tensorboard import TensorBoardLogger as TensorBoardLogger
