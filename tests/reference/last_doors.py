# pyright: reportArgumentType=false
"""Right calls of what people train, ask and keep, by what must be refused before a trace.

As in `later_doors`: dear where they are right, and never run to the end here. Networks are made by
hand, so that nothing compiles for them.
"""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import numpy as np
from reference import made_results as made
from reference.hostile import (
    LENGTH,
    Above,
    Anything,
    Argument,
    Known,
    Layers,
    Named,
    Numbers,
    Rows,
    Several,
    Shaped,
    Share,
    Stated,
    Text,
    Texts,
    Thing,
    Unpoisoned,
    Unread,
    Whole,
    but,
    optional,
)
from reference.networks import layer_of, random_flow

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

WIDTH, WORDS, EXAMPLES, RECORDS = 2, 8, 2, 4
KEY = jax.random.key(0)
TOKENS = lim.token_grid(LENGTH)
REGIONS = lim.boundary_regions(TOKENS, 0.3)
ON, IN, DRAWN = Thing(TOKENS), Thing(REGIONS), Thing(KEY)


def numbers(*shape):
    return jax.device_put(np.exp(np.random.default_rng(0).standard_normal(shape)))


def whole(*shape):
    return jax.device_put(np.random.default_rng(0).integers(0, 3, shape))


FLOW = random_flow(width=WIDTH, heads=1)
FIELD, DEPTH = layer_of(FLOW), FLOW.depth
STATES, VECTORS, PROFILE = numbers(LENGTH, WIDTH), numbers(EXAMPLES, LENGTH, WIDTH), numbers(LENGTH)
ALONG_DEPTH = numbers(DEPTH + 1, LENGTH, WIDTH)
MET = numbers(DEPTH, LENGTH, WIDTH)
GRAMIANS, SAMPLES = numbers(LENGTH, WIDTH, WIDTH), numbers(EXAMPLES, LENGTH)
SITES = AttentionSites(FLOW.layers.attention, numbers(DEPTH), numbers(DEPTH), MET, MET)
FACTORS = adjoint.KernelFactors(
    FIELD.attention, STATES, None, numbers(1, LENGTH, LENGTH), numbers(1, LENGTH, 2),
    numbers(1, LENGTH, 2), numbers(1, LENGTH, 2),
)  # fmt: skip
CONTINUOUS = lim.ContinuousFlow(lambda time: FIELD)


MODEL = models.CausalLM(
    numbers(WORDS, WIDTH), numbers(9, WIDTH), FLOW, eqx.nn.Identity(), numbers(WORDS, WIDTH)
)
NOWHERE = Text("no such folder/file")
BATCH = {
    "loss": Thing(lambda params, x, y: (params * x**2).sum()),
    "x": Unread(VECTORS),
    "grid": ON,
}


def observed(x):
    return (x**2).reshape(1, -1)


def observations(params, x):
    return params * observed(x)


SEEN = {"observations": Thing(observed), "x": Unread(STATES)}


def adjoint_objective(name, **right):
    """An objective of a loss in its parameters, of a batch of inputs without labels."""

    def call(loss, x, grid, **rest):
        return getattr(training, name)(loss, PROFILE[0], (x, None), grid, **rest)

    return call, BATCH | right


LAST = {
    # Grids.
    "segment_starts": (grid.segment_starts, {"segments": Whole(whole(LENGTH))}),
    # Networks.
    "attention_regularity": (
        network.attention_regularity,
        {"attention": Thing(FIELD.attention)},
    ),
    "field_regularity": (network.field_regularity, {"field": Thing(FIELD)}),
    "control_distance": (
        network.control_distance,
        {
            "layers": Layers(FLOW.layers), "control": Thing(lambda time: FIELD),
            "horizon": Unpoisoned(1.0),
        },
    ),
    # Adjoints.
    "amplification": (
        adjoint.amplification,
        {"norms": Thing(NormBounds(PROFILE, PROFILE))},
    ),
    "attention_sites": (
        adjoint.attention_sites,
        {
            "flow": Thing(FLOW), "states": Unread(ALONG_DEPTH), "covectors": Unread(ALONG_DEPTH),
            "grid": ON,
        },
    ),
    **{
        name: (getattr(adjoint, name), {"sites": Thing(SITES), "grid": ON})
        for name in ("cone_by_head", "cone_energies")
    },
    "joint_cone": (
        adjoint.joint_cone,
        {
            "sites": Thing(
                jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf)[None], SITES))
            ),
            "grid": ON,
        },
    ),
    "looks_ahead": (
        adjoint.looks_ahead,
        {"field": Thing(FIELD), "x": Unread(STATES), "grid": ON},
    ),
    "probed_cone_mass": (
        adjoint.probed_cone_mass,
        {
            "attention": Thing(FIELD.attention), "x": Unread(STATES), "grid": ON,
            "probes": Unread(numbers(2, WIDTH)), "normalisation": Argument("density"),
        },
    ),
    # Observability.
    "layer_injected_traces": (
        lambda observations, x, step, injected: observability.layer_injected_traces(
            observations, x, step, injected
        ),
        SEEN | {"step": Unpoisoned(0.5), "injected": Unread(numbers(2, 1, LENGTH * WIDTH))},
    ),
    "layer_products": (
        lambda observations, x, positions, depth: observability.layer_products(
            observations, x, positions, depth=depth
        ),
        SEEN | {
            "x": Shaped(STATES), "positions": optional(Whole(whole(2))), "depth": Known(2),
        },
    ),
    "penalty_bias": (
        observability.penalty_bias,
        {"covariance": Rows(numbers(LENGTH, LENGTH)), "grid": ON},
    ),
    # Limits.
    "convergence_study": (
        lambda network, states, grids, quantities, **rest: limits.convergence_study(
            network, states, grids, quantities, **rest
        ),
        {
            "network": Thing(lambda x, grid: x), "states": Thing(lambda p: p[:, None]),
            "grids": Thing([lim.token_grid(n) for n in (10, 20, 40, 80)]),
            "quantities": Named({"state": limits.Quantity(lambda x, grid: x)}),
            "depths": optional(Numbers([1, 2, 3, 4])),
            "scheme": optional(Thing(limits.Scheme())),
            "references": optional(Thing(limits.attention.SMOOTH)),
        },
    ),
    "time_slopes": (
        limits.time_slopes,
        {
            "flow": Thing(CONTINUOUS), "x": Unread(STATES), "grid": ON,
            "times": Unread(np.linspace(0, 1, 2)),
        },
    ),
    # Tasks.
    # Training.
    "adjoint_growth": (
        lambda loss, x, grid, direction: training.adjoint_growth(
            loss, PROFILE, (x, None), grid, direction
        ),
        BATCH | {"direction": Shaped(PROFILE)},
    ),
    "penalty_premises": (
        lambda loss, x, grid, direction: training.penalty_premises(
            loss, PROFILE, (x, None), grid, direction
        ),
        BATCH | {"direction": Shaped(PROFILE)},
    ),
    "balanced_objective": adjoint_objective("balanced_objective", strength=Unpoisoned(1.0)),
    "constrained_objective": adjoint_objective(
        "constrained_objective", limit=Unpoisoned(0.1), multiplier=Unpoisoned(0.0),
        stiffness=Unpoisoned(10.0),
    ),
    "averaged risk_and_penalty": adjoint_objective(
        "risk_and_penalty", memory=Share(0.5),
        previous=but(Unread(PROFILE), "none", "int", "float"),
    ),
    "functional_of_adjoints": (
        lambda functional, loss, x, grid: training.functional_of_adjoints(
            functional, loss, PROFILE[0], (x, None), grid, None
        ),
        {"functional": Thing(lambda losses, adjoints, options: losses.sum())} | BATCH,
    ),
    "gradient_flow": adjoint_objective(
        "gradient_flow", times=Numbers([0.0, 1.0]), checkpoint=optional(Text(None)),
    ),
    "injected_objective": (
        lambda loss, observations, x, grid, injected, **rest: training.injected_objective(
            loss, observations, PROFILE[0], (x, None), grid, injected, **rest
        ),
        BATCH | {
            "observations": Thing(observations),
            "injected": Unread(numbers(EXAMPLES, 2, 1, LENGTH * WIDTH)),
            "strength": Unpoisoned(1.0), "step": Unpoisoned(0.5),
            "previous": optional(Unread(PROFILE)), "memory": Share(0.5),
        },
    ),
    "observability_objective": (
        lambda loss, observations, x, grid, probes, **rest: training.observability_objective(
            loss, observations, PROFILE[0], (x, None), grid, probes, **rest
        ),
        BATCH | {
            "observations": Thing(observations), "probes": Unread(numbers(2, WIDTH)),
            "strength": Unpoisoned(1.0), "step": Unpoisoned(0.5),
            "positions": optional(Whole(whole(LENGTH))), "weights": optional(Unread(PROFILE)),
            "previous": optional(Unread(PROFILE)), "memory": Unpoisoned(0.5),
        },
    ),
    # Results.
    "save": (results.save, {"result": Anything(made.STUDY), "path": NOWHERE}),
    "to_pandas": (
        results.to_pandas,
        {"result": Layers(made.influence()), "by": Text("position")},
    ),
    "to_xarray": (
        results.to_xarray,
        {
            "result": Layers(made.influence()), "axes": Text(""),
            "grid": optional(Thing(made.GRID)), "tokens": optional(Texts(list("abcdefg"))),
            "model": Text("m"), "loss": Text("l"),
        },
    ),
    # Explanations.
    "account_of_context": (
        explanations.account_of_context,
        {
            "model": Thing(MODEL), "window": Whole(whole(LENGTH + 1)),
            "query_weights": Unread(PROFILE), "depth": Stated(0),
            "loss": Thing(models.CausalLM.loss),
        },
    ),
    "explain": (
        lambda model, windows, query_weights, regions, **rest: explanations.explain(
            model, windows, query_weights, regions, **rest
        ),
        {
            "model": Thing(MODEL), "windows": Whole(whole(2, LENGTH + 1)),
            "query_weights": Unread(PROFILE), "regions": IN, "key": DRAWN, "depth": Stated(0),
            "certificates": Text("deciding"),
        },
    ),
    # Costs, losses and texts.
    "texts_of_ids": (
        checkpoints.texts_of_ids,
        {"ids": Whole(whole(3)), "tokenizer": optional(Text(None))},
    ),
    "job_cost": (cost.job_cost, {"job": Thing(np.sin)}),
    # Published models, asked.
    **{
        name: (
            partial(getattr(models, name), **regions),
            {
                "model": Thing(MODEL), "windows": Several([whole(LENGTH + 1)]),
                "ask": Thing(loss.last_token), "loss": Thing(models.CausalLM.loss),
            },
        )
        for name, regions in (("energies_of_ids", {}), ("influence_of_ids", {"regions": REGIONS}))
    },
    "energies_of_ids' weights": (
        lambda ask: models.energies_of_ids(MODEL, [whole(LENGTH + 1)], ask=[ask]),
        {"ask": but(Rows(PROFILE), "as a list", "integers")},
    ),
    "CausalLM": (
        partial(replace, MODEL),
        {
            "embedding_scale": Above(1.0), "logit_scale": Above(1.0),
            "logit_cap": optional(Above(1.0)), "trained": optional(Known(8)),
        },
    ),
    "contexts": (
        models.contexts,
        {
            "ids": Whole(whole(2, 4)), "mask": optional(Whole(np.ones((2, 4), int))),
            "segments": optional(Whole(np.ones((2, 4), int))),
        },
    ),
    "answer": (
        models.answer,
        {
            "model": Thing(MODEL), "ids": Whole(whole(3)), "tokens": Stated(1),
            "end": Several([1]),
        },
    ),
}  # fmt: skip
