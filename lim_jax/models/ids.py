"""Which positions of token ids matter to a model, for contexts of any lengths.

A context of l ids lives on its own token grid, so that nothing is padded; its energy is carried to
a common grid as a measure, whose mass is kept exactly.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import described, require, require_indices
from lim_jax.density import Influence, adjoint_energies
from lim_jax.grid import Regions, carried, token_grid
from lim_jax.loss import teacher_forcing
from lim_jax.models.causal import CausalLM

Profile = Float[Array, " length"]


def influence_of_ids(
    model: CausalLM,
    windows: Sequence[Int[Array, " _"]],
    regions: Regions,
    *,
    ask: Callable[[int], Profile] = teacher_forcing,
) -> Influence:
    r"""Measure the influence of contexts of ids, each with the id after it.

    A window of l + 1 ids is a context of l, whose targets are the ids after each. Windows of one
    length are one batch, and each length compiles once. Position is the share of a context's own
    length, and examples count alike.

    Parameters
    ----------
    model
        From `causal.load`, or any other.
    windows
        One array of ids for each example; at least one, of two ids or more.
    regions
        Of the grid that the result lives on, such as ``boundary_regions(token_grid(100), 0.2)``.
    ask
        From a context's length to its query weights: `loss.teacher_forcing`, `loss.last_token`, or
        another.

    Raises
    ------
    ValueError
        Where there are no windows, or one is no array of at least two ids.
    EquinoxRuntimeError
        Where an id is outside the vocabulary.
    """
    rows = isinstance(windows, Sequence) and not isinstance(windows, str) and len(windows) > 0
    require(
        rows,
        "windows",
        got=described(windows),
        expected="a list of arrays of ids, at least one",
        cure="Cut padding off: contexts may have different lengths.",
    )
    for window in windows:
        require_indices(window, "windows")
        require(
            window.shape[0] > 1,
            "windows",
            got="one id",
            expected="a context and the id after it",
            cure="The last id of a window is a target only.",
        )
    found: list[Array] = [jnp.zeros(0)] * len(windows)
    for length in sorted({window.shape[0] - 1 for window in windows}):
        members = [i for i, window in enumerate(windows) if window.shape[0] - 1 == length]
        ids = jax.device_put(np.stack([np.asarray(windows[i]) for i in members]))
        energies = _energies(model, ids, ask(length), regions)
        for i, energy in zip(members, energies, strict=True):
            found[i] = energy
    return Influence.from_energies(jnp.stack(found), regions)


@eqx.filter_jit
def _energies(
    model: CausalLM, windows: Int[Array, "examples tokens"], asked: Profile, regions: Regions
) -> Float[Array, "examples positions"]:
    grid = token_grid(windows.shape[1] - 1)
    energies = adjoint_energies(
        CausalLM.loss, model, jax.vmap(model.example, in_axes=(0, None))(windows, asked), grid
    )
    return jax.vmap(lambda energy: carried(energy, grid, regions.grid))(energies)
