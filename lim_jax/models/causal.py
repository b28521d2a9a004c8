"""Causal language models over token ids, as their checkpoints hold them."""

from pathlib import Path

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int

from lim_jax._checks import guarded, require, require_indices
from lim_jax.grid import Grid, token_grid
from lim_jax.loss import Labels, Logits, autoregressive_cross_entropy
from lim_jax.models.checkpoint import open_checkpoint
from lim_jax.models.families import FAMILIES
from lim_jax.models.gguf_file import open_gguf
from lim_jax.network.field import State
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.norms import Norm

Profile = Float[Array, " length"]


class CausalLM(eqx.Module):
    r"""Embeddings of ids and places, a network, a last norm and a head.

    Logits are :math:`\mathrm{norm}(X_M)\,W^\top`, with W the head, or the embedding where the two
    are tied. The states between are those of `flow`, so that every diagnostic of a flow is one of
    the model.

    Attributes
    ----------
    embedding
        One row for each word.
    positions
        One row for each place, added to the words'; None for networks that know places otherwise.
    flow
        The network.
    norm
        The last norm, of one token.
    head
        One row for each word, or None where it is the embedding.
    """

    embedding: Float[Array, "vocabulary width"]
    positions: Float[Array, "places width"] | None
    flow: ResidualFlow
    norm: Norm
    head: Float[Array, "vocabulary width"] | None = None

    @property
    def vocabulary(self) -> int:
        """The number of words."""
        return self.embedding.shape[0]

    def embed(self, ids: Int[Array, " length"]) -> State:
        r"""The input states :math:`X_0` of one context, whose influence is measured.

        Raises
        ------
        ValueError
            Where ids are no whole numbers along one axis, or more than there are places.
        EquinoxRuntimeError
            Where an id is outside the vocabulary.
        """
        require_indices(ids, "ids")
        last = self.vocabulary - 1
        message = f"ids: expected numbers from 0 to {last}, got others."
        ids = guarded(ids, (ids < 0) | (ids > last), message)
        if self.positions is None:
            return self.embedding[ids]
        places = self.positions.shape[0]
        require(
            ids.shape[0] <= places,
            "ids",
            got=f"{ids.shape[0]} of them",
            expected=f"at most {places}, the places that the network knows",
            cure="Cut the context.",
        )
        return self.embedding[ids] + self.positions[: ids.shape[0]]

    def readout(self, state: State, grid: Grid) -> Logits:
        """From the network's last states to logits of the next word, token by token."""
        head = self.embedding if self.head is None else self.head
        return jax.vmap(self.norm)(state) @ head.T

    def logits(self, ids: Int[Array, " length"]) -> Logits:
        """The logits of every next word of one context."""
        grid = token_grid(ids.shape[0])
        return self.readout(self.flow(self.embed(ids), grid), grid)

    def loss(self, x: State, targets: Labels, query_weights: Profile) -> Float[Array, ""]:
        """The next-word cross-entropy of one embedded context, in nats; targets may be ids."""
        return self.terminal_loss(self.flow(x, token_grid(x.shape[0])), targets, query_weights)

    def terminal_loss(
        self, state: State, targets: Labels, query_weights: Profile
    ) -> Float[Array, ""]:
        """The same loss, of the network's last state."""
        logits = self.readout(state, token_grid(state.shape[0]))
        return autoregressive_cross_entropy(logits, targets, query_weights)

    def loss_of_ids(
        self, ids: Int[Array, " length"], targets: Labels, query_weights: Profile
    ) -> Float[Array, ""]:
        """The same loss from ids: its gradient reaches the embeddings, so that training moves them.

        Give no `position` of the context a weight where it has no target.
        """
        return self.loss(self.embed(ids), targets, query_weights)


def load(path: Path | str, dtype: str = "float32") -> CausalLM:
    """Read a model from a folder of weights as its publisher left it, or from a GGUF file.

    The families are those of `families.FAMILIES`. Tensors are read one by one and converted
    as they come.

    Parameters
    ----------
    path
        A folder with ``config.json`` and safetensors files, as in `checkpoint`; or a file of
        llama.cpp, as in `gguf_file`.
    dtype
        The precision of the weights that come back; they are converted as they come.

    Raises
    ------
    ValueError
        Where folder or file are broken, the family or an option of it is not known, or tensors are
        missing, surplus, of another shape, or not finite.
    """
    require(
        dtype in ("float32", "float64"),
        "dtype",
        got=repr(dtype),
        expected='"float32" or "float64"',
        cure="Weights are kept in full precision.",
    )
    checkpoint = open_gguf(path) if Path(path).suffix == ".gguf" else open_checkpoint(path)
    family = checkpoint.config.get("model_type")
    require(
        family in FAMILIES,
        "config.json",
        got=f"model_type = {family!r}",
        expected=" or ".join(FAMILIES),
        cure="For other architectures write their field, and give influence a loss of your own.",
    )
    weights = FAMILIES[str(family)](checkpoint, dtype)
    surplus = sorted(set(checkpoint.files) - weights.known)
    require(
        not surplus,
        "tensors",
        got=f"{', '.join(surplus[:3])}, which the family does not have",
        expected="those of the family",
        cure="config.json may name a simpler family than the weights are of.",
    )
    return jax.device_put(CausalLM(*weights[:5]))
