"""Looking inside a model: every activation has a name, can be captured, and can be changed.

Imports `trained` and the wings below it.
"""

from transformer_jax.inspection.ablation import Ablation as Ablation
from transformer_jax.inspection.ablation import ablate_heads as ablate_heads
from transformer_jax.inspection.ablation import ablation_table as ablation_table
from transformer_jax.inspection.ablation import mean_head_outputs as mean_head_outputs
from transformer_jax.inspection.activation_patching import patch_activations as patch_activations
from transformer_jax.inspection.activations import activation_names as activation_names
from transformer_jax.inspection.activations import capture as capture
from transformer_jax.inspection.activations import patch as patch
from transformer_jax.inspection.attention_flow import attention_flow as attention_flow
from transformer_jax.inspection.attention_rollout import attention_rollout as attention_rollout
from transformer_jax.inspection.gradient_attention import gradient_attention as gradient_attention
from transformer_jax.inspection.head_scores import induction_scores as induction_scores
from transformer_jax.inspection.head_scores import previous_token_scores as previous_token_scores
from transformer_jax.inspection.linear_probe import Probe as Probe
from transformer_jax.inspection.linear_probe import linear_probe as linear_probe
from transformer_jax.inspection.logit_attribution import attribute_logits as attribute_logits
from transformer_jax.inspection.logit_lens import logit_lens as logit_lens
from transformer_jax.inspection.patches import Patch as Patch
from transformer_jax.inspection.patches import add as add
from transformer_jax.inspection.patches import knock_out as knock_out
from transformer_jax.inspection.patches import mean as mean
from transformer_jax.inspection.patches import replace as replace
from transformer_jax.inspection.patches import swap as swap
from transformer_jax.inspection.patches import zero as zero
from transformer_jax.inspection.path_patching import patch_path as patch_path
from transformer_jax.inspection.representation_similarity import cka_table as cka_table
from transformer_jax.inspection.representation_similarity import linear_cka as linear_cka
