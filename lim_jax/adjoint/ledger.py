r"""The exact residual, cone and local channels of the input adjoint.

.. math:: P_0 = P_{\rm res} + P_{\rm cone} + P_{\rm loc}

(`eq:adjoint-channel-vector-decomposition`): the terminal covector itself, and what the kernels and
the local operators of all layers add to it on the way back. Every term is evaluated at the full
adjoint. Vectors and energies are densities.

The same holds at every depth. Where early layers change the scale of the state, as those of trained
networks do, they add that to the covector: then look at a later depth, or at `hops`.
"""

from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import as_int, error_if
from lim_jax._jit import filter_jit
from lim_jax._precision import promote
from lim_jax.adjoint.sites import AttentionSites, attention_kinds, map_sites, require_sites
from lim_jax.adjoint.stages import pull_back_heads, pull_back_stages, with_rows
from lim_jax.adjoint.sweep import Example, TerminalLoss, run_forward
from lim_jax.adjoint.tangent import causal_by_construction, looks_ahead
from lim_jax.grid.integrals import inner
from lim_jax.grid.measure import Grid, Scalar, require_on_grid
from lim_jax.grid.partition import LEFT, MIDDLE, RIGHT, Regions, regional_averages, require_regions
from lim_jax.network.field import heads_of
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.slots import State
from lim_jax.probes import sample_mean

CHANNELS = ("residual", "cone", "local")
RESIDUAL, CONE, LOCAL = range(3)
PAIRS = tuple(combinations(range(3), 2))


class Channels(NamedTuple):
    r"""A flow, its adjoint along depth, and what each layer's channels add to the adjoint.

    All covectors are densities.

    Attributes
    ----------
    loss
        The terminal loss, a scalar.
    times
        The depth times :math:`t_0 = 0, \dots, t_M = T`.
    states
        :math:`X_0, \dots, X_M`, of shape ``(M + 1, length, width)``.
    covectors
        :math:`P_0, \dots, P_M`, of the states' shape.
    cone_by_depth
        What the kernels of layer k add, of shape ``(M, length, width)``.
    local_by_depth
        What the local operators of layer k add, of the same shape; with the kernels' part it is
        :math:`P_k - P_{k+1}`.
    """

    loss: Scalar
    times: Float[Array, " times"]
    states: Float[Array, "times length width"]
    covectors: Float[Array, "times length width"]
    cone_by_depth: Float[Array, "depth length width"]
    local_by_depth: Float[Array, "depth length width"]

    def __str__(self) -> str:
        """Say of how many layers, positions and components the channels are."""
        *batch, layers, length, width = self.cone_by_depth.shape
        of = f"{batch} " if batch else ""
        return f"{of}channels of {layers} layers, {length} positions and {width} components"

    @property
    def residual(self) -> State:
        r""":math:`P_{\rm res} = P_T` (`eq:recency-channel-term`)."""
        return self.covectors[-1]

    @property
    def cone(self) -> State:
        r""":math:`P_{\rm cone}` (`eq:primacy-channel-term`, `eq:depth-integrated-cone-channel`)."""
        return self.cone_by_depth.sum(axis=0)

    @property
    def local(self) -> State:
        r""":math:`P_{\rm loc}`."""
        return self.local_by_depth.sum(axis=0)

    @property
    def vectors(self) -> Float[Array, "3 length width"]:
        r"""The three channels, in the order of `CHANNELS`; their sum is :math:`P_0`."""
        return self.at_depth(0)

    def at_depth(self, depth: int) -> Float[Array, "3 length width"]:
        r"""Return the channels at depth k, in the order of `CHANNELS`; their sum is :math:`P_k`.

        They are :math:`P_T`, the residual channel at every depth, and what the kernels and the
        local operators of the layers :math:`l \ge k` add to it: densities.

        Parameters
        ----------
        depth
            k, a whole number from 0 to the number of layers, known before tracing.

        Returns
        -------
        Array
            The residual, cone and local channel, of shape ``(3, length, width)``.

        Raises
        ------
        ValueError
            If `depth` is no such number.
        """
        layers = self.cone_by_depth.shape[0]
        depth = as_int(
            depth,
            "depth",
            least=0,
            most=layers,
            expected=f"a depth from 0 to {layers}, the number of layers, known before tracing",
        )
        cone = self.cone_by_depth[depth:].sum(axis=0)
        local = self.local_by_depth[depth:].sum(axis=0)
        return jnp.stack([self.residual, cone, local])


@filter_jit
def channels(
    flow: ResidualFlow, terminal_loss: TerminalLoss, example: Example, grid: Grid
) -> Channels:
    r"""Split the input adjoint into its channels, in one reverse sweep.

    `eq:adjoint-channel-vector-decomposition`.

    Exact for the recursion itself, not only in the limit of depth: layer k adds
    :math:`\varepsilon\zeta K^*P + \varepsilon\zeta B^*P`, each stage of the layer at its own
    covector (`pull_back_stages`). Along a continuous flow, `continuous_adjoint` gives the
    same channels.

    Parameters
    ----------
    flow
        The depth flow, whose ``step`` is `euler` or `split`.
    terminal_loss
        A function ``terminal_loss(state, y)`` that returns a scalar, for example a cross-entropy of
        a readout.
    example
        A pair ``(x, y)``: the input :math:`X_0`, of shape ``(length, width)``, and its labels, any
        pytree, or None where the loss looks at none.
    grid
        The positions of x, in the precision of x.

    Returns
    -------
    Channels
        The adjoint at every depth, and what each layer's kernels and local operators add to it.

    Raises
    ------
    ValueError
        If the step is another one, `flow` is no `ResidualFlow`, the loss no function, the example
        no pair, or x does not fit the grid.
    EquinoxRuntimeError
        If a field is not causal, as far as `looks_ahead` sees: what comes through its context is no
        cone (`rem:attention-measure-scope`). The library's own fields are causal.

    Examples
    --------
    >>> grid, keys = lim.token_grid(3), jax.random.split(jax.random.key(0), 2)
    >>> flow = ResidualFlow(jax.vmap(lambda key: lim.TransformerField.init(2, key=key))(keys))
    >>> x = jax.random.normal(jax.random.key(1), (3, 2))
    >>> parts = channels(flow, lambda x, y: jnp.sum((x - y) ** 2), (x, jnp.ones((3, 2))), grid)
    >>> bool(jnp.allclose(parts.vectors.sum(axis=0), parts.covectors[0], atol=1e-5))
    True
    """
    (times, states), loss, gradient = run_forward(flow, terminal_loss, example, grid)
    terminal = gradient / grid.weights[:, None]
    may_look_ahead = not all(map(causal_by_construction, flow.kinds))

    def backward(covector, layer, state):
        """Pull the covector back through one layer; keep its cone and local parts."""
        stages = pull_back_stages(flow, layer, state, covector, grid)
        local = sum((stage.parts.local for stage in stages), jnp.zeros_like(covector))
        cone = sum((stage.parts.kernel for stage in stages), jnp.zeros_like(covector))
        covector = covector + cone + local
        ahead = []
        if may_look_ahead:
            ahead = [looks_ahead(stage.field, stage.state, grid) for stage in stages]
        return covector, (covector, cone, local, ahead)

    _, (covectors, cone, local, ahead) = flow.scan(backward, terminal, states[:-1], reverse=True)
    if may_look_ahead:
        message = (
            "flow.layers: got a field that reads later tokens, expected a causal one. Take "
            "adjoint_trajectory, which splits nothing: what comes through this context is no cone."
        )
        cone = error_if(cone, jnp.stack(ahead), message)
    covectors = jnp.concatenate([covectors, terminal[None]])
    return Channels(loss, times, states, covectors, cone, local)


def relative_energies(
    vectors: Float[Array, "parts length width"], state: State, grid: Grid
) -> Float[Array, "parts length"]:
    r"""Compute :math:`\|X\|_{\rm rms}^2\,\|P_\alpha(p)\|^2`, independent of the scale of states."""
    return inner(state, state, grid) * (promote(vectors) ** 2).sum(axis=-1)


@filter_jit
def cone_by_head(sites: AttentionSites, grid: Grid) -> Float[Array, "depth heads length width"]:
    r"""Compute the cone channel by layer and head; the sum over both is :math:`P_{\rm cone}`.

    Parameters
    ----------
    sites
        The `attention_sites` at the states and covectors of `channels`.
    grid
        The positions of the sites' states.

    Returns
    -------
    Array
        Densities of shape ``(depth, heads, length, width)``; zero in layers without attention, and
        in place of the heads that a layer lacks beside the one with most.

    Raises
    ------
    ValueError
        If `sites` are no `AttentionSites`, or their states do not fit the grid.
    """
    require_sites(sites, grid)
    most = max(map(heads_of, attention_kinds(sites.attention)))

    def at_site(attention: Any, site: AttentionSites) -> Float[Array, "heads length width"]:
        """Compute each head's cone contribution at one site, with zeros for missing heads."""
        if attention is None:
            return jnp.zeros((most, *site.states.shape), site.states.dtype)
        heads = pull_back_heads(attention, site.states, site.covectors, grid)
        return site.increments * with_rows(heads, most)

    return map_sites(at_site, sites)


class RegionalChannels(NamedTuple):
    r"""Products of the channels over regions, from which the criteria on energies are computed.

    Attributes
    ----------
    products
        :math:`|B|^{-1}\langle\Pi_B P_\alpha, \Pi_B P_\beta\rangle` for every example, region (left,
        middle, right) and pair of channels (residual, cone, local), of shape ``(examples, 3, 3,
        3)``.
    """

    products: Float[Array, "examples 3 3 3"]

    @property
    @filter_jit
    def means(self) -> Float[Array, "3 3 3"]:
        """The expectation of the products."""
        return self.products.mean(axis=0)

    @property
    @filter_jit
    def energies(self) -> Float[Array, "3 3"]:
        r""":math:`J_\alpha(B)`, by region and channel (`eq:regional-channel-energies`)."""
        return jnp.diagonal(self.means, axis1=1, axis2=2)

    @property
    @filter_jit
    def pairs(self) -> Float[Array, "3 3"]:
        r"""The means of :math:`\alpha\ne\beta`, by region and over `PAIRS`."""
        return jnp.stack([self.means[:, a, b] for a, b in PAIRS], axis=1)

    @property
    @filter_jit
    def cross_terms(self) -> Float[Array, "3"]:
        r""":math:`\Xi(B)`, twice the sum of the pairs (`eq:regional-channel-cross-terms`)."""
        return 2 * self.pairs.sum(axis=1)

    @property
    @filter_jit
    def totals(self) -> Float[Array, "3"]:
        r""":math:`\mathcal A(B) = \sum_\alpha J_\alpha + \Xi`, the influence averaged over B.

        `eq:exact-regional-influence-decomposition`.
        """
        return self.energies.sum(axis=1) + self.cross_terms

    @property
    @filter_jit
    def correlations(self) -> Float[Array, "3 3"]:
        r"""The least :math:`\rho_{\alpha\beta,B}` of `eq:channel-correlation-bound`, over `PAIRS`.

        Zero where a channel vanishes.
        """
        energies = self.energies
        is_nonzero = energies != 0  # NaN is not zero either, and stays
        # Roots before products: a product of two small energies may underflow, of large overflow.
        roots = jnp.sqrt(jnp.where(is_nonzero, energies, 1))
        first, second = np.array(PAIRS).T
        both = is_nonzero[:, first] & is_nonzero[:, second]
        return jnp.where(both, jnp.abs(self.pairs) / roots[:, first] / roots[:, second], 0)

    @property
    @filter_jit
    def residual_contrast(self) -> Scalar:
        r""":math:`\mathsf R_{\rm res}`, right minus middle (`eq:residual-recency-contrast`)."""
        return self.energies[RIGHT, RESIDUAL] - self.energies[MIDDLE, RESIDUAL]

    @property
    @filter_jit
    def standard_errors(self) -> Float[Array, "3 3"]:
        """The standard errors of `energies`; infinite with one example."""
        return sample_mean(jnp.diagonal(self.products, axis1=2, axis2=3)).error


def regional_channels(
    vectors: Float[Array, "examples 3 length width"], regions: Regions
) -> RegionalChannels:
    """Multiply the channels of a batch with each other over E_L, E_M and E_R.

    Parameters
    ----------
    vectors
        The residual, cone and local channel of every example, densities, of shape
        ``(examples, 3, length, width)``: `Channels.vectors`, by `vmap`, or those of a
        `ContinuousAdjoint`, stacked.
    regions
        The regions E_L, E_M and E_R, from `boundary_regions` on the channels' grid.

    Returns
    -------
    RegionalChannels
        The products, averaged over each region; energies, cross terms, totals and correlations are
        its properties.

    Raises
    ------
    ValueError
        If `regions` are no `Regions`, or the vectors are not three channels on their grid.

    Examples
    --------
    >>> residual, cone = jnp.array([1.0, 0.5, 1.0]), jnp.array([-1.0, 0.5, -1.0])
    >>> vectors = jnp.stack([residual, cone, jnp.zeros(3)])[None, :, :, None]
    >>> regional = regional_channels(vectors, lim.boundary_regions(lim.token_grid(3), "1/3"))
    >>> jnp.round(regional.energies[:, 0], 3).tolist(), jnp.round(regional.totals, 3).tolist()
    ([1.0, 0.25, 1.0], [0.0, 1.0, 0.0])
    """
    require_regions(regions)
    require_on_grid(vectors, regions.grid, "vectors", "examples channels length width", channels=3)

    def products(vectors: Float[Array, "3 length width"]) -> Float[Array, "3 3 3"]:
        """Average the inner products of an example's three channels over the regions."""
        vectors = promote(vectors)
        return regional_averages(jnp.einsum("aid,bid->iab", vectors, vectors), regions)

    return RegionalChannels(jax.vmap(products)(vectors))


class BoundaryStrengths(NamedTuple):
    r"""The strengths of the boundary channels, integrals rather than averages.

    Attributes
    ----------
    primacy
        :math:`\mathsf P_L = \int_0^\delta \mathbb E\|P_{\rm cone}\|^2` (`eq:primacy-strength`).
    recency
        :math:`\mathsf P_R = \int_{1-\delta}^1 \mathbb E\|P_{\rm res}\|^2` (`eq:recency-strength`).
    """

    primacy: Scalar
    recency: Scalar


def boundary_strengths(regional: RegionalChannels, regions: Regions) -> BoundaryStrengths:
    """Integrate the cone's energy over E_L and the residual's over E_R."""
    sizes = regions.in_single_precision.weights.sum(axis=1)
    return BoundaryStrengths(
        primacy=sizes[LEFT] * regional.energies[LEFT, CONE],
        recency=sizes[RIGHT] * regional.energies[RIGHT, RESIDUAL],
    )
