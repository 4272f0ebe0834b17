"""Models whose weights were written by hand, so that it is known which of their heads do the work."""

from transformer_jax.inspection.circuits.circuit import Circuit as Circuit
from transformer_jax.inspection.circuits.circuit import CircuitHead as CircuitHead
from transformer_jax.inspection.circuits.circuit import Edge as Edge
from transformer_jax.inspection.circuits.dyck import dyck_circuit as dyck_circuit
from transformer_jax.inspection.circuits.histogram import histogram_circuit as histogram_circuit
from transformer_jax.inspection.circuits.induction import induction_circuit as induction_circuit
from transformer_jax.inspection.circuits.reverse import reverse_circuit as reverse_circuit
from transformer_jax.inspection.circuits.scores import HeadScore as HeadScore
from transformer_jax.inspection.circuits.scores import score_heads as score_heads
from transformer_jax.inspection.circuits.sort import sort_circuit as sort_circuit
