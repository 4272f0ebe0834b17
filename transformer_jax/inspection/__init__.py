"""Looking inside a model: every activation has a name, can be captured, and can be changed.

Imports `trained` and the wings below it.
"""

from transformer_jax.inspection.activations import activation_names as activation_names
from transformer_jax.inspection.activations import capture as capture
from transformer_jax.inspection.activations import patch as patch
from transformer_jax.inspection.patches import Patch as Patch
from transformer_jax.inspection.patches import add as add
from transformer_jax.inspection.patches import knock_out as knock_out
from transformer_jax.inspection.patches import mean as mean
from transformer_jax.inspection.patches import replace as replace
from transformer_jax.inspection.patches import swap as swap
from transformer_jax.inspection.patches import zero as zero
