"""The methods by name; one of your own is an entry more."""

from typing import Literal

from lim_jax._checks import require_name
from lim_jax.attribution.method import Method
from lim_jax.attribution.methods import (
    ablations,
    gradient_times_input,
    influence,
    integrated_gradients,
    leave_one_out,
    mask_gradient,
    mask_path,
    rollout,
)

MethodName = Literal[
    "influence", "mask-gradient", "mask-path", "gradient-times-input", "integrated-gradients",
    "rollout", "leave-one-out", "ablations",
]  # fmt: skip
METHODS: dict[str, Method] = {
    "influence": influence.METHOD,
    "mask-gradient": mask_gradient.METHOD,
    "mask-path": mask_path.METHOD,
    "gradient-times-input": gradient_times_input.METHOD,
    "integrated-gradients": integrated_gradients.METHOD,
    "rollout": rollout.METHOD,
    "leave-one-out": leave_one_out.METHOD,
    "ablations": ablations.METHOD,
}


def method_named(name: str) -> Method:
    """Return the method of a name; raise ValueError unless there is one."""
    require_name(name, METHODS, "method", "Pass one of these names.")
    return METHODS[name]
