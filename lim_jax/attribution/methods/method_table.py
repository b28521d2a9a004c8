"""The methods by name; one of your own is an entry more."""

from typing import Literal

from lim_jax._checks import as_int, require, require_name
from lim_jax.attribution.method import Method
from lim_jax.attribution.methods import (
    ablations,
    gradient_times_input,
    influence,
    informed,
    integrated_gradients,
    leave_one_out,
    mask_gradient,
    mask_path,
    rollout,
)

MethodName = Literal[
    "influence", "mask-gradient", "mask-path", "gradient-times-input", "integrated-gradients",
    "rollout", "leave-one-out", "ablations", "informed",
]  # fmt: skip
INFORMED = "informed"
GRADIENT = "mask-gradient"
PATH = "mask-path"
METHODS: dict[str, Method] = {
    "influence": influence.METHOD,
    "mask-gradient": mask_gradient.METHOD,
    "mask-path": mask_path.METHOD,
    "gradient-times-input": gradient_times_input.METHOD,
    "integrated-gradients": integrated_gradients.METHOD,
    "rollout": rollout.METHOD,
    "leave-one-out": leave_one_out.METHOD,
    "ablations": ablations.METHOD,
    "informed": informed.METHOD,
}


def method_named(name: str, passes: int | None = None, *, foil: bool = False) -> Method:
    """Return the method of a name, with a budget of passes where it has one.

    Raises ValueError where there is no such method, the budget is not one that it takes, or there
    is a foil of which it says nothing.
    """
    require_name(name, METHODS, "method", "Pass one of these names.")
    require(
        METHODS[name].reads_foil or not foil,
        "method",
        got=f"{name!r} with a foil",
        expected="one that asks why the answer was given: this one says the same of every answer",
        cure="Take another method, or leave the foil out.",
    )
    if passes is None:
        return METHODS[name]
    require(
        name == INFORMED,
        "passes",
        got=f"{passes} with the method {name!r}",
        expected=f"the method {INFORMED!r}, which alone has a budget",
        cure="Leave `passes` or `method` out.",
    )
    return informed.method(as_int(passes, "passes"))
