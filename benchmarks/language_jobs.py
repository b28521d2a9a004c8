"""What is measured of a published network in bfloat16: each job as one function of nothing.

Of a context's window of ids, the last of which is the target of the loss at the last position.
"""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from sides import Job

import lim_jax as lim
from lim_jax._jit import filter_jit
from lim_jax.adjoint.masking import mask_gradient, mask_path
from lim_jax.adjoint.sweep import TerminalLoss
from lim_jax.models.causal import CausalLM, Targets

JOBS = ("influence", "mask gradient", "mask path", "ten greedy tokens")
ANSWER = 10  # tokens
NODES = 4  # of a mask path
LEAST = 1e-3  # the weight at which the document of a mask path begins


def in_document(tokens: int) -> np.ndarray:
    """Tell whether each position is in the document of the mask path: the second quarter."""
    quarters = 4 * np.arange(tokens) // tokens
    return quarters == 1


def our_jobs(path: Path, window: np.ndarray, remat: str) -> dict[str, Job]:
    """Return each job of a network that is read once, with its weights and products in bfloat16.

    What its backward pass computes again is by `remat`, as a `ResidualFlow` has it.
    """
    model = lim.models.load(path, storage_dtype="bfloat16", compute="bfloat16")
    model = dataclasses.replace(model, flow=dataclasses.replace(model.flow, remat=remat))
    tokens = len(window) - 1
    ids = jnp.asarray(window, jnp.int32)
    chosen = jnp.asarray(in_document(tokens))
    grid = lim.token_grid(tokens)

    def influence() -> dict[str, np.ndarray]:
        """Compute the energy of each token."""
        ask = lim.loss.last_token
        return {"": lim.models.energies_of_ids(model, [ids], ask=ask)[0]}

    @filter_jit
    def gradient(model: CausalLM, ids: Int[Array, " window"]) -> Float[Array, " tokens"]:
        """Compute the loss's gradient in each token's log weight."""
        loss, example = last_token(model, ids)
        return grid.weights * mask_gradient(model.flow, loss, example, grid).total

    @filter_jit
    def path_and_ends(model: CausalLM, ids: Int[Array, " window"]) -> dict[str, jax.Array]:
        """Compute the mask path of the document, and the loss with it and without."""
        loss, example = last_token(model, ids)
        path = mask_path(model.flow, loss, example, grid, chosen, nodes=NODES, least=LEAST)
        ends = jnp.stack([path.loss, path.loss_without])
        return {"path": grid.weights * path.total, "ends": ends}

    def greedy() -> dict[str, np.ndarray]:
        """Let the network go on with the context."""
        # The one length needs a program of its own: nothing is padded for others.
        answer = lim.models.answer(model, ids[:-1], ANSWER, padding=lambda length: length)
        return {"": np.asarray(answer)}

    return {
        "influence": influence,
        "mask gradient": lambda: {"": np.asarray(gradient(model, ids))},
        "mask path": lambda: jax.device_get(path_and_ends(model, ids)),
        "ten greedy tokens": greedy,
    }


def last_token(
    model: CausalLM, ids: Int[Array, " window"]
) -> tuple[TerminalLoss, tuple[Array, Targets]]:
    """Return the loss of the last state, and the embedded context with its one target."""
    last = ids.shape[0] - 2
    asked = Targets(ids[-1:], jnp.ones(1), jnp.array([last]))
    return model.terminal_loss, (model.embed(ids[:-1]), asked)
