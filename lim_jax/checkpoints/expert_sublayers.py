"""Readers of mixtures of experts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from lim_jax.checkpoints.options import Configuration, require_config
from lim_jax.checkpoints.recipe import Recipe
from lim_jax.checkpoints.sublayers import (
    Arrays,
    gated_mlp,
    read_matrix,
)
from lim_jax.checkpoints.tensor_reader import Reader, Tensor
from lim_jax.network.experts import Experts, Gate, MixtureOfExperts, Routing, SparseMixer
from lim_jax.network.norms import Norm
from lim_jax.network.slots import Field
from lim_jax.network.tokenwise import GatedFeedForward

DENSE = "dense"
SPARSE = "sparse"


class Mixture(NamedTuple):
    """A family's experts, and the names of their tensors: a reader for `recipe.Recipe.network`.

    One scan serves all layers: what a dense or narrower layer lacks are zeros, which add nothing.
    """

    num_experts: int
    intermediate_size: int  # of each expert
    routing: Routing | SparseMixer
    # Reads all experts of a layer, by the names of `network.experts.Experts`.
    read: Callable[[Reader, str, "Mixture", Recipe], Arrays]
    router: str = "gate"
    router_bias: bool = False
    preference: str | None = None  # the tensor of `MixtureOfExperts.preference`
    preference_axes: tuple[int, ...] = ()  # that it has before that of experts
    shared: tuple[str, int] | None = None  # name and hidden size of the network of all tokens
    shared_scale: float = 1.0  # by which what that network gives is multiplied
    read_shared: Callable[..., Any] = gated_mlp  # reads it, where no layer is dense
    shared_gate: str | None = None  # the tensor of `MixtureOfExperts.shared_gate`
    latent: tuple[str, str, int] | None = None  # names of `inward` and `outward`, and their width
    weighs_input: bool = False
    combine: Callable[..., Any] | None = None  # in place of a gate with the recipe's activation
    dense_layers: frozenset[int] = frozenset()  # those with a gated network in place of experts
    dense_intermediate_size: int | None = None  # of that network, if it is not the recipe's
    dense_name: str | None = None  # of that network, if it is not the recipe's, in some files

    def __call__(
        self, read: Reader, at: str, recipe: Recipe, norm: Norm, output_norm: Norm | None
    ) -> MixtureOfExperts:
        """Read the experts of a layer."""
        dense = int(at.rpartition(".")[2]) in self.dense_layers
        name = self._name_of_network(read, at, recipe, dense)
        place = f"{at}.{name}" if name else at
        width = recipe.sizes.width
        count = self.num_experts
        parts = {}
        if dense:
            router = read.zeros(count, width)
            arrays = _zeros(read, self, recipe)
        else:
            router = read(f"{place}.{self.router}.weight", count, width)
            arrays = self.read(read, place, self, recipe)
        if self.router_bias:
            parts["router_bias"] = read(f"{place}.{self.router}.bias", count)
        if self.preference is not None:
            tensor = f"{place}.{self.preference}"
            shape = (*self.preference_axes, count)
            stored = read.zeros(count) if dense else read(tensor, *shape)
            parts["preference"] = stored.reshape(count)
        if self.shared_gate is not None:
            tensor = f"{place}.{self.shared_gate}.weight"
            parts["shared_gate"] = read.zeros(1, width) if dense else read(tensor, 1, width)
        if self.latent is not None:
            inward, outward, inner = self.latent
            parts["inward"] = read(f"{place}.{inward}.weight", inner, width)
            parts["outward"] = read(f"{place}.{outward}.weight", width, inner)
        if self.dense_layers:
            shared = _read_padded(read, place, self, recipe, dense)
        else:
            shared = _read_shared(read, place, self, recipe)
        return MixtureOfExperts(
            norm,
            router,
            Experts(**arrays, combine=self.combine or Gate(recipe.activation)),
            self.routing,
            **parts,
            shared=shared,
            weighs_input=self.weighs_input,
            output_norm=output_norm,
        )

    def _name_of_network(self, read: Reader, at: str, recipe: Recipe, dense: bool) -> str | None:
        """Return the name of a layer's network, which in dense layers may be one of their own."""
        gate = f"{at}.{self.dense_name}.{recipe.names.gate}.weight"
        return self.dense_name if dense and read.has(gate) else recipe.names.network


def _zeros(read: Reader, mixture: Mixture, recipe: Recipe) -> Arrays:
    """Return matrices of zeros in the shapes of a layer's experts."""
    up = read.zeros(*_shape(mixture, recipe))
    return {"gate": up, "up": up, "down": up.transpose(0, 2, 1)}


def _read_shared(read: Reader, at: str, mixture: Mixture, recipe: Recipe) -> Field | None:
    """Read the expert of all tokens, where no layer is dense; None if there is none."""
    if mixture.shared is None:
        return None
    name, hidden = mixture.shared
    sizes = recipe.sizes._replace(intermediate_size=hidden)
    of_shared = recipe._replace(sizes=sizes, names=recipe.names._replace(network=name))
    network = mixture.read_shared(read, at, of_shared, eqx.nn.Identity(), None)
    if mixture.shared_scale == 1:
        return network
    return replace(network, down=mixture.shared_scale * network.down)


def _read_padded(
    read: Reader, at: str, mixture: Mixture, recipe: Recipe, dense: bool
) -> GatedFeedForward:
    """Read a dense layer's MLP, or another layer's shared expert, padded to one size."""
    width = recipe.sizes.width
    of_dense = mixture.dense_intermediate_size
    dense_size = recipe.sizes.intermediate_size if of_dense is None else of_dense
    name, hidden = mixture.shared or (None, 0)
    # Each has a row for each hidden feature, `down` transposed; rows that nothing fills stay zero.
    matrices = [read.zeros(max(hidden, dense_size), width) for _ in range(3)]
    place = at if dense else f"{at}.{name}"
    size = dense_size if dense else hidden
    if dense or name is not None:
        for rows, part in zip(matrices, ("gate", "up", "down"), strict=True):
            shape = (width, size) if part == "down" else (size, width)
            matrix = read_matrix(read, f"{place}.{getattr(recipe.names, part)}", *shape, recipe)
            rows[:size] = matrix.T if part == "down" else matrix
    gate, up, down = matrices
    if dense and mixture.shared_gate is not None:
        down *= 2  # a gate of zeros lets half of it through
    if not dense:
        down *= mixture.shared_scale
    return GatedFeedForward(eqx.nn.Identity(), gate, up, down.T, activation=recipe.activation)


class ByExpert(NamedTuple):
    """Reads matrices of these names for each expert, by its number."""

    gate: str | None
    up: str
    down: str

    def __call__(self, read: Reader, at: str, mixture: Mixture, recipe: Recipe) -> Arrays:
        """Read all experts of a layer."""
        arrays = {name: zeros.copy() for name, zeros in _zeros(read, mixture, recipe).items()}
        for name, matrix in self._asdict().items():
            if matrix is None:
                arrays[name] = None
                continue
            for expert, rows in enumerate(arrays[name]):
                rows[...] = read(f"{at}.experts.{expert}.{matrix}.weight", *rows.shape)
        return arrays


class Stacked(NamedTuple):
    """Two tensors of all experts: gates, then ups or by turns (`interleaved`), and downs."""

    up: str = "experts.gate_up_proj"
    down: str = "experts.down_proj"
    transposed: bool = False
    interleaved: bool = False

    def __call__(self, read: Reader, at: str, mixture: Mixture, recipe: Recipe) -> Arrays:
        """Read all experts of a layer."""
        count, hidden, width = _shape(mixture, recipe)
        both = self._matrices(read, f"{at}.{self.up}", (count, 2 * hidden, width))
        downs = self._matrices(read, f"{at}.{self.down}", (count, width, hidden))
        if not self.interleaved:
            gates, ups = np.split(both, 2, axis=1)
            return {"gate": gates, "up": ups, "down": downs}
        biases = read(f"{at}.{self.up}_bias", count, 2 * hidden)
        down_bias = read(f"{at}.{self.down}_bias", count, width)
        return {
            "gate": both[:, ::2],
            "up": both[:, 1::2],
            "down": downs,
            "gate_bias": biases[:, ::2],
            "up_bias": biases[:, 1::2],
            "down_bias": down_bias,
        }

    def _matrices(self, read: Reader, name: str, shape: tuple[int, int, int]) -> Tensor:
        """Read one matrix per expert, transposed if the file holds them so."""
        count, rows, columns = shape
        turned = self.transposed
        return read(name, count, columns, rows).swapaxes(1, 2) if turned else read(name, *shape)


PROJECTIONS = ByExpert("gate_proj", "up_proj", "down_proj")


def fused_or_separate(read: Reader, at: str, mixture: Mixture, recipe: Recipe) -> Arrays:
    """Read experts from two fused tensors if a file has them, and else from matrices of each."""
    kind = Stacked() if read.has(f"{at}.experts.gate_up_proj") else PROJECTIONS
    return kind(read, at, mixture, recipe)


def stacked_either_way(read: Reader, at: str, mixture: Mixture, recipe: Recipe) -> Arrays:
    """Read experts from two fused tensors, transposed or not as their shapes tell."""
    count, hidden, width = _shape(mixture, recipe)
    shapes = [read.shape(f"{at}.experts.{name}_proj") for name in ("gate_up", "down")]
    transposed = shapes == [(count, width, 2 * hidden), (count, hidden, width)]
    return Stacked(transposed=transposed)(read, at, mixture, recipe)


def _shape(mixture: Mixture, recipe: Recipe) -> tuple[int, int, int]:
    """Return the number of experts, their hidden size and the width of their input."""
    width = recipe.sizes.width if mixture.latent is None else mixture.latent[2]
    return mixture.num_experts, mixture.intermediate_size, width


def read_dense_layers(config: Configuration, depth: int, first: int) -> frozenset[int]:
    """Return the indices of dense layers: by ``mlp_layer_types``, or else the first `first`."""
    kinds = config.get_texts("mlp_layer_types") or [
        DENSE if k < first else SPARSE for k in range(depth)
    ]
    require_config(
        len(kinds) == depth and {*kinds} <= {DENSE, SPARSE},
        f"mlp_layer_types = {kinds}",
        f"{depth} of {DENSE} or {SPARSE}",
    )
    return frozenset(k for k, kind in enumerate(kinds) if kind == DENSE)


def read_top(
    config: Configuration, count: int, default: int | None, name: str = "num_experts_per_tok"
) -> int:
    """Read how many of `count` experts each token takes, by the option of this name."""
    top = config.get_int(name, default)
    return config.require(name, top, top <= count, f"at most the {count} experts that there are")


def require_open(routing: Routing, count: int) -> None:
    """Raise ValueError if the open expert groups hold fewer experts than each token takes."""
    # Else the choice among closed experts would be arbitrary.
    fits = (
        count % routing.groups == 0
        and routing.topk_group <= routing.groups
        and routing.top <= count // routing.groups * routing.topk_group
    )
    require_config(
        fits,
        f"{routing.top} of {count} experts in {routing.topk_group} of {routing.groups} groups",
        "groups that share the experts, of which the open ones hold that many",
    )
    judged = routing.topk_group == routing.groups or routing.best <= count // routing.groups
    require_config(
        judged,
        f"{routing.groups} groups of {count // routing.groups} of {count} experts",
        f"at least {routing.best} in each, by whose scores a group is judged",
        "Such groups have no merit: state fewer of them.",
    )
