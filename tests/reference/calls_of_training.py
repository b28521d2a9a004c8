# pyright: reportArgumentType=false
"""Right calls of what people train, ask of published models and keep.

They are dear where they are right, and refuse what is malformed before anything is computed.
Networks are made by hand, so that nothing compiles for them.
"""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import numpy as np
from reference import made_results as made
from reference.networks import layer_of, random_flow
from reference.sample_calls import EMPTY, LENGTH, NO_SHARE, NOT_POSITIVE, Call

import lim_jax as lim
from lim_jax import (
    adjoint,
    checkpoints,
    cost,
    explanations,
    grid,
    limits,
    loss,
    models,
    network,
    observability,
    results,
    training,
)
from lim_jax.adjoint.krylov import NormBounds
from lim_jax.adjoint.sites import AttentionSites

WIDTH = 2
WORDS = 8
EXAMPLES = 2
RECORDS = 4
KEY = jax.random.key(0)
TOKENS = lim.token_grid(LENGTH)
REGIONS = lim.boundary_regions(TOKENS, 0.3)


def numbers(*shape):
    return jax.device_put(np.exp(np.random.default_rng(0).standard_normal(shape)))


def whole(*shape):
    return jax.device_put(np.random.default_rng(0).integers(0, 3, shape))


FLOW = random_flow(width=WIDTH, heads=1)
FIELD = layer_of(FLOW)
DEPTH = FLOW.depth
STATES = numbers(LENGTH, WIDTH)
VECTORS = numbers(EXAMPLES, LENGTH, WIDTH)
PROFILE = numbers(LENGTH)
ALONG_DEPTH = numbers(DEPTH + 1, LENGTH, WIDTH)
MET = numbers(DEPTH, LENGTH, WIDTH)
GRAMIANS = numbers(LENGTH, WIDTH, WIDTH)
SAMPLES = numbers(EXAMPLES, LENGTH)
SITES = AttentionSites(FLOW.layers.attention, numbers(DEPTH), numbers(DEPTH), MET, MET)
FACTORS = adjoint.KernelFactors(
    FIELD.attention,
    STATES,
    None,
    numbers(1, LENGTH, LENGTH),
    numbers(1, LENGTH, 2),
    numbers(1, LENGTH, 2),
    numbers(1, LENGTH, 2),
)
CONTINUOUS = lim.ContinuousFlow(lambda time: FIELD)


MODEL = models.CausalLM(
    numbers(WORDS, WIDTH), numbers(9, WIDTH), FLOW, eqx.nn.Identity(), numbers(WORDS, WIDTH)
)
NOWHERE = "no such folder/file"
BATCH = {
    "loss": lambda params, x, y: (params * x**2).sum(),
    "x": VECTORS,
    "grid": TOKENS,
}


def observed(x):
    return (x**2).reshape(1, -1)


def observations(params, x):
    return params * observed(x)


SEEN = {"observations": observed, "x": STATES}


def adjoint_objective(name):
    """An objective of a loss in its parameters, of a batch of inputs without labels."""

    def call(loss, x, grid, **options):
        return getattr(training, name)(loss, PROFILE[0], (x, None), grid, **options)

    return call


# `save` keeps results, numbers, texts, and lists and dictionaries of them.
ANYTHING_KEPT = "none, int, float, array, string, list, list of strings, empty list, dictionary"

OF_TRAINING = {
    # Grids.
    "segment_starts": Call(grid.segment_starts, {"segments": whole(LENGTH)}),
    # Networks.
    "attention_regularity": Call(network.attention_regularity, {"attention": FIELD.attention}),
    "field_regularity": Call(network.field_regularity, {"field": FIELD}),
    "control_distance": Call(
        network.control_distance,
        {
            "layers": FLOW.layers,
            "control": lambda time: FIELD,
            "horizon": 1.0,
        },
        accepts={"layers": "array"},
        hides_nan="horizon",
    ),
    # Adjoints.
    "amplification": Call(adjoint.amplification, {"norms": NormBounds(PROFILE, PROFILE)}),
    "attention_sites": Call(
        adjoint.attention_sites,
        {
            "flow": FLOW,
            "states": ALONG_DEPTH,
            "covectors": ALONG_DEPTH,
            "grid": TOKENS,
        },
        hides_nan="states covectors",
    ),
    **{
        name: Call(getattr(adjoint, name), {"sites": SITES, "grid": TOKENS})
        for name in ("cone_by_head", "cone_energies")
    },
    "joint_cone": Call(
        adjoint.joint_cone,
        {
            "sites": jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf)[None], SITES)),
            "grid": TOKENS,
        },
    ),
    "looks_ahead": Call(
        adjoint.looks_ahead, {"field": FIELD, "x": STATES, "grid": TOKENS}, hides_nan="x"
    ),
    "probed_cone_mass": Call(
        adjoint.probed_cone_mass,
        {
            "attention": FIELD.attention,
            "x": STATES,
            "grid": TOKENS,
            "probes": numbers(2, WIDTH),
            "normalisation": "density",
        },
        refuses={"normalisation": {"string": "3?"}},
        hides_nan="x probes",
    ),
    # Observability.
    "layer_injected_traces": Call(
        lambda observations, x, step, injected: observability.layer_injected_traces(
            observations, x, step, injected
        ),
        SEEN | {"step": 0.5, "injected": numbers(2, 1, LENGTH * WIDTH)},
        hides_nan="x step injected",
    ),
    "layer_products": Call(
        lambda observations, x, positions, depth: observability.layer_products(
            observations, x, positions, depth=depth
        ),
        SEEN
        | {
            "x": STATES,
            "positions": whole(2),
            "depth": 2,
        },
        accepts={"x": "rows", "positions": "none"},
        hides_nan="x",
    ),
    "penalty_bias": Call(
        observability.penalty_bias, {"covariance": numbers(LENGTH, LENGTH), "grid": TOKENS}
    ),
    # Limits.
    "convergence_study": Call(
        lambda network, states, grids, quantities, **options: limits.convergence_study(
            network, states, grids, quantities, **options
        ),
        {
            "network": lambda x, grid: x,
            "states": lambda p: p[:, None],
            "grids": [lim.token_grid(n) for n in (10, 20, 40, 80)],
            "quantities": {"state": limits.Quantity(lambda x, grid: x)},
            "depths": [1, 2, 3, 4],
            "scheme": limits.Scheme(),
            "references": limits.attention_error.SMOOTH,
        },
        accepts={
            "depths": "none, list",
            "scheme": "none",
            "references": "none",
        },
        refuses={
            "grids": EMPTY,
            "depths": EMPTY,
            "references": EMPTY,
        },
    ),
    "time_slopes": Call(
        limits.time_slopes,
        {
            "flow": CONTINUOUS,
            "x": STATES,
            "grid": TOKENS,
            "times": np.linspace(0, 1, 2),
        },
        hides_nan="x times",
    ),
    # Tasks.
    # Training.
    "adjoint_growth": Call(
        lambda loss, x, grid, direction: training.adjoint_growth(
            loss, PROFILE, (x, None), grid, direction
        ),
        BATCH | {"direction": PROFILE},
        accepts={"direction": "rows"},
        hides_nan="x direction",
    ),
    "penalty_premises": Call(
        lambda loss, x, grid, direction: training.penalty_premises(
            loss, PROFILE, (x, None), grid, direction
        ),
        BATCH | {"direction": PROFILE},
        accepts={"direction": "rows"},
        hides_nan="x direction",
    ),
    "balanced_objective": Call(
        adjoint_objective("balanced_objective"), BATCH | {"strength": 1.0}, hides_nan="x strength"
    ),
    "constrained_objective": Call(
        adjoint_objective("constrained_objective"),
        BATCH | {"limit": 0.1, "multiplier": 0.0, "stiffness": 10.0},
        hides_nan="x limit multiplier stiffness",
    ),
    "averaged risk_and_penalty": Call(
        adjoint_objective("risk_and_penalty"),
        BATCH | {"memory": 0.5, "previous": PROFILE},
        accepts={"previous": "none, int, float"},
        refuses={"memory": NO_SHARE},
        hides_nan="x memory previous",
    ),
    "functional_of_adjoints": Call(
        lambda functional, loss, x, grid: training.functional_of_adjoints(
            functional, loss, PROFILE[0], (x, None), grid, None
        ),
        {"functional": lambda losses, adjoints, options: losses.sum()} | BATCH,
        hides_nan="x",
    ),
    "gradient_flow": Call(
        adjoint_objective("gradient_flow"),
        BATCH | {"times": [0.0, 1.0], "checkpoint": None},
        accepts={"times": "list", "checkpoint": "none, string"},
        refuses={"times": EMPTY},
        hides_nan="x",
    ),
    "injected_objective": Call(
        lambda loss, observations, x, grid, injected, **options: training.injected_objective(
            loss, observations, PROFILE[0], (x, None), grid, injected, **options
        ),
        BATCH
        | {
            "observations": observations,
            "injected": numbers(EXAMPLES, 2, 1, LENGTH * WIDTH),
            "strength": 1.0,
            "step": 0.5,
            "previous": PROFILE,
            "memory": 0.5,
        },
        accepts={"previous": "none"},
        refuses={"memory": NO_SHARE},
        hides_nan="x injected strength step previous memory",
    ),
    "observability_objective": Call(
        lambda loss, observations, x, grid, probes, **options: training.observability_objective(
            loss, observations, PROFILE[0], (x, None), grid, probes, **options
        ),
        BATCH
        | {
            "observations": observations,
            "probes": numbers(2, WIDTH),
            "strength": 1.0,
            "step": 0.5,
            "positions": whole(LENGTH),
            "weights": PROFILE,
            "previous": PROFILE,
            "memory": 0.5,
        },
        accepts={"positions": "none", "weights": "none", "previous": "none"},
        hides_nan="x probes strength step weights previous memory",
    ),
    # Results.
    "save": Call(
        results.save,
        {"result": made.STUDY, "path": NOWHERE},
        accepts={"result": ANYTHING_KEPT},
    ),
    "to_pandas": Call(
        results.to_pandas,
        {"result": made.influence(), "by": "position"},
        accepts={"result": "array"},
    ),
    "to_xarray": Call(
        results.to_xarray,
        {
            "result": made.influence(),
            "axes": "",
            "grid": made.GRID,
            "tokens": list("abcdefg"),
            "model": "m",
            "loss": "l",
        },
        accepts={"result": "array", "grid": "none", "tokens": "none, list of strings"},
        refuses={"tokens": EMPTY},
    ),
    # Explanations.
    "account_of_context": Call(
        explanations.account_of_context,
        {
            "model": MODEL,
            "window": whole(LENGTH + 1),
            "query_weights": PROFILE,
            "depth": 0,
            "loss": models.CausalLM.loss,
        },
        hides_nan="query_weights",
    ),
    "explain": Call(
        lambda model, windows, query_weights, regions, **options: explanations.explain(
            model, windows, query_weights, regions, **options
        ),
        {
            "model": MODEL,
            "windows": whole(2, LENGTH + 1),
            "query_weights": PROFILE,
            "regions": REGIONS,
            "key": KEY,
            "depth": 0,
            "certificates": "deciding",
        },
        hides_nan="query_weights",
    ),
    # Costs, losses and texts.
    "texts_of_ids": Call(
        checkpoints.texts_of_ids,
        {"ids": whole(3), "tokenizer": None},
        accepts={"tokenizer": "none, string"},
    ),
    "job_cost": Call(cost.job_cost, {"job": np.sin}),
    # Published models, asked.
    **{
        name: Call(
            partial(getattr(models, name), **regions),
            {
                "model": MODEL,
                "windows": [whole(LENGTH + 1)],
                "ask": loss.last_token,
                "loss": models.CausalLM.loss,
            },
        )
        for name, regions in (("energies_of_ids", {}), ("influence_of_ids", {"regions": REGIONS}))
    },
    "energies_of_ids' weights": Call(
        lambda ask: models.energies_of_ids(MODEL, [whole(LENGTH + 1)], ask=[ask]),
        {"ask": PROFILE},
        accepts={"ask": "as a list, integers"},
    ),
    "CausalLM": Call(
        partial(replace, MODEL),
        {
            "embedding_scale": 1.0,
            "logit_scale": 1.0,
            "logit_cap": 1.0,
            "trained": 8,
        },
        accepts={"logit_cap": "none", "trained": "none"},
        refuses={
            "embedding_scale": NOT_POSITIVE,
            "logit_scale": NOT_POSITIVE,
            "logit_cap": NOT_POSITIVE,
        },
    ),
    "contexts": Call(
        models.contexts,
        {
            "ids": whole(2, 4),
            "mask": np.ones((2, 4), int),
            "segments": np.ones((2, 4), int),
        },
        accepts={"mask": "none", "segments": "none"},
    ),
    "answer": Call(
        models.answer,
        {
            "model": MODEL,
            "ids": whole(3),
            "tokens": 1,
            "end": [1],
        },
    ),
}
