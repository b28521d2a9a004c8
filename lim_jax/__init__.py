"""Which positions of a long context a causal Transformer really uses, why, and how to change it.

The core names are here; the rest is in the modules (`lim_jax.gramian`, `lim_jax.paper`,
`lim_jax.plots`, ...). The name `lim_jax.influence` is the function.
"""

from lim_jax.adjoint import AdjointTrajectory as AdjointTrajectory
from lim_jax.adjoint import adjoint_trajectory as adjoint_trajectory
from lim_jax.adjoint import continuous_adjoint as continuous_adjoint
from lim_jax.attention import causal_attention as causal_attention
from lim_jax.field import CausalAttention as CausalAttention
from lim_jax.field import FeedForward as FeedForward
from lim_jax.field import LayerNorm as LayerNorm
from lim_jax.field import TransformerField as TransformerField
from lim_jax.flow import ContinuousFlow as ContinuousFlow
from lim_jax.flow import ResidualFlow as ResidualFlow
from lim_jax.flow import euler as euler
from lim_jax.flow import split as split
from lim_jax.grid import Grid as Grid
from lim_jax.grid import boundary_regions as boundary_regions
from lim_jax.grid import gauss_grid as gauss_grid
from lim_jax.grid import graded_grid as graded_grid
from lim_jax.grid import inner as inner
from lim_jax.grid import integral as integral
from lim_jax.grid import midpoint_grid as midpoint_grid
from lim_jax.grid import regional_averages as regional_averages
from lim_jax.grid import token_grid as token_grid
from lim_jax.influence import Influence as Influence
from lim_jax.influence import indices as indices
from lim_jax.influence import influence as influence
from lim_jax.influence import influence_stream as influence_stream
from lim_jax.loss import BandReadout as BandReadout
from lim_jax.loss import LinearReadout as LinearReadout
from lim_jax.loss import TokenwiseReadout as TokenwiseReadout
from lim_jax.loss import autoregressive_cross_entropy as autoregressive_cross_entropy
from lim_jax.loss import cross_entropy as cross_entropy
