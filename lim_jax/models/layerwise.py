"""Influence by a backward pass layer by layer, each state kept in a file: for runs of hours."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._jit import filter_jit
from lim_jax._partial_runs import Run, restore, store
from lim_jax._precision import promote
from lim_jax.density.adjoints import Ids, check_finite
from lim_jax.grid.cells import token_grid
from lim_jax.grid.measure import Grid
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets
from lim_jax.network.flow import ResidualFlow

States = Float[Array, "contexts length width"]
# States of more bytes than these are kept in files: a run of minutes has fewer, such as 512 tokens
# of seven billion weights.
STATES_IN_MEMORY = 2**28


def states_size(model: CausalLM, ids: Ids) -> int:
    """Return the size in bytes of the states between all layers, for some contexts."""
    table = model.embedding
    return (model.flow.depth + 1) * ids.size * table.shape[1] * table.dtype.itemsize


def energies_by_layers(
    loss: LossOfLogits,
    model: CausalLM,
    ids: Ids,
    y: Targets,
    folder: Path,
    run: Run,
    progress: Callable[[list], Iterable] = iter,
) -> Float[np.ndarray, "contexts length"]:
    r"""Compute the energies of `density.adjoint_energies` for a batch of ids, layer by layer.

    By the states :math:`X_0, \dots, X_M`, then the gradients back, each a file in `folder` of its
    step: an interrupted call goes on after the last. Files that no later step reads are removed.
    """
    flow = model.flow
    grid = token_grid(ids.shape[1], model.embedding.dtype)
    last = 2 * flow.depth + 1

    def read_step(step: int) -> States:
        """Read the result of an earlier step from its file."""
        return jax.device_put(restore(folder / str(step), run)[1][0])

    def compute_step(step: int, before: States) -> States:
        """Compute a step: a layer forward, the loss's gradient, or a layer backward."""
        if step == 0:
            return before
        if step <= flow.depth:
            return _forward(flow, jnp.array(step - 1), before, grid)
        if step == flow.depth + 1:
            return _terminal(loss, model, before, y)
        return _backward(flow, jnp.array(last - step), read_step(last - step), before, grid)

    done = max((int(file.name) for file in folder.glob("*") if file.name.isdecimal()), default=-1)
    result = read_step(done) if done >= 0 else _embed(model, ids, y)
    for step in progress(list(range(last + 1))):
        if step <= done:
            continue
        result = compute_step(step, result)
        store(folder / str(step), run, {}, result)
        if step > flow.depth:
            for needless in {step - 1, last - step}:
                (folder / str(needless)).unlink(missing_ok=True)
    return np.asarray(_energies(result, grid))


@filter_jit
def _embed(model: CausalLM, ids: Ids, y: Targets) -> States:
    """Embed a batch of contexts."""
    return jax.vmap(model.embed)(ids, y)


@filter_jit
def _forward(flow: ResidualFlow, number: Int[Array, ""], x: States, grid: Grid) -> States:
    """Compute the states after one layer."""

    def transition(layer: Any) -> States:
        """Apply one layer to all contexts."""
        return jax.vmap(lambda x: flow.transition(layer, x, grid))(x)

    return flow.at_layer(transition, number, x.dtype)


@filter_jit
def _terminal(loss: LossOfLogits, model: CausalLM, x: States, y: Targets) -> States:
    """Compute the gradient of each context's loss in its last state."""
    value_and_gradient = jax.value_and_grad(loss.terminal, argnums=1)
    losses, gradients = jax.vmap(value_and_gradient, in_axes=(None, 0, 0))(model, x, y)
    return check_finite(gradients, (x, y), losses)


@filter_jit
def _backward(
    flow: ResidualFlow, number: Int[Array, ""], x: States, gradient: States, grid: Grid
) -> States:
    """Pull gradients back through one layer."""

    def pull_back(layer: Any) -> States:
        """Pull the gradients back through this layer, at the states before it."""
        _, pullback = jax.vjp(jax.vmap(lambda x: flow.transition(layer, x, grid)), x)
        return pullback(gradient)[0]

    return flow.at_layer(pull_back, number, x.dtype)


@filter_jit
def _energies(gradients: States, grid: Grid) -> Float[Array, "contexts length"]:
    """Compute the energies of each token from the gradients in the input states."""
    weights = grid.in_single_precision.weights[None, :, None]
    energies = jnp.sum((promote(gradients) / weights) ** 2, axis=2)
    return check_finite(energies, (), None, energies)
