from .beam_search import beam_search as beam_search
from .prefixes import AfterPrefix as AfterPrefix
from .prefixes import after_prefix as after_prefix
from .prefixes import grow_after_prefix as grow_after_prefix
from .token_by_token import Decoded as Decoded
from .token_by_token import greedy_decode as greedy_decode
from .token_by_token import sample as sample
