"""Results of section 4, made by hand, for what draws them and lays them out."""

import jax.numpy as jnp
import numpy as np

import lim_jax as lim
from lim_jax.paper.algorithms import GateRun
from lim_jax.paper.outcomes import ProbeStudy, Row, Section4, Summary


def section4_by_hand():
    """Results of section 4 in which no two numbers are alike."""
    generator = np.random.default_rng(0)

    def numbers(*shape):
        return jnp.asarray(1 + generator.random(shape))

    def row():
        return Row(lim.density.Indices(*numbers(6)), numbers()[()], numbers()[()], numbers(48))

    names = ("baseline", "algorithm1", "algorithm2", "algorithm3")
    counts = jnp.array([1.0, 2.0, 4.0])
    return Section4(
        table={name: row() for name in names},
        minimiser={name: row() for name in names[1::2]},
        objectives={name: numbers()[()] for name in names[1::2]},
        runs={name: GateRun(numbers(48), numbers()[()], numbers(5)) for name in names[1:]},
        trace_densities={"before": numbers(48), "after": numbers(48)},
        condition_numbers=Summary(*numbers(3, 3)),
        probes=ProbeStudy(numbers()[()], counts, *numbers(4, 3)),
    )
