"""What is trained: a task's hooks, and the pure step. `fit` trains a task; `fitted` is what comes out.

To read in this order: `metrics`, `step`, `task` (the hooks).

Imports the wings below: `runs`, `data`, `nn`, `config`, `errors`.
"""

import lazy_loader

# The public names, as in `__init__.pyi`; each is imported when it is first used. Some are of the wings above.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    "transformer_jax",
    submod_attrs={
        "fit.trainer": ["TrainerModule"],
        "training.callbacks": ["Callback", "Epoch", "Evaluation", "Step"],
        "training.inspected_example": ["Answer", "AnswerPart", "InspectedExample"],
        "training.schedules": [
            "cosine_warmup_schedule",
            "noam_schedule",
            "one_cycle_schedule",
            "warmup_then_cosine_schedule",
        ],
    },
)
