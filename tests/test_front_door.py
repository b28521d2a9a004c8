# pyright: reportArgumentType=false
"""Hostile arguments at every door: a call is right, or raises our own error.

One argument of a right call is replaced. What can mean nothing there (a list, a string, complex
numbers, rows that are not the grid's, no rows, ...) must be refused by a `ValueError` that says
what was got and what was expected; a NaN must be refused or stay visible; and whatever else
hypothesis thinks of must give finite numbers or an error of ours.
"""

import importlib
import inspect
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from reference.hostile import (
    LENGTH,
    Delta,
    Free,
    Given,
    Known,
    Layers,
    Numbers,
    Real,
    Rows,
    Samples,
    Several,
    Thing,
    Unread,
    Whole,
    optional,
)
from reference.later_doors import LATER, WITHOUT
from reference.networks import layer_of, random_flow, random_labels, random_states

import lim_jax as lim
from lim_jax import (
    adjoint,
    explanations,
    grid,
    loss,
    network,
    observability,
    probes,
    tasks,
    training,
    validation,
)

pytestmark = [
    pytest.mark.usefixtures("as_users_run", "as_promoted_by_users"),
    # NumPy's and Equinox's own, on the way to the same answer.
    pytest.mark.filterwarnings("ignore"),
]

WIDTH, VOCABULARY, EXAMPLES = 2, 4, 2
TOKENS = lim.token_grid(LENGTH)
REGIONS = lim.boundary_regions(TOKENS, 0.3)
FLOW = random_flow(width=WIDTH, heads=1)
FIELD = layer_of(FLOW)
KEY = jax.random.key(0)


def positive(seed, *shape):
    return jax.device_put(np.exp(np.asarray(random_states(seed, *shape))))


STATES, LABELS = random_states(0, LENGTH, WIDTH), random_labels(1, LENGTH, VOCABULARY)
LOGITS, PROFILE = random_states(2, LENGTH, VOCABULARY), positive(3, LENGTH)
VECTORS = random_states(4, EXAMPLES, LENGTH, WIDTH)
ASKED, ENERGIES = PROFILE / PROFILE.sum(), positive(9, EXAMPLES, LENGTH)
FACTORS = random_states(5, LENGTH, WIDTH, WIDTH)
GRAMIANS = jax.device_put(np.einsum("iab,icb->iac", FACTORS, FACTORS))
TARGETS = random_labels(6, EXAMPLES, LENGTH, VOCABULARY)
READOUT = lim.LinearReadout(random_states(7, WIDTH, VOCABULARY))
BAND = lim.BandReadout(random_states(7, WIDTH, VOCABULARY), 0.6)
LOCAL = loss.LocalReadout(random_states(7, LENGTH, 3, VOCABULARY, WIDTH))
GATED = network.GatedFeedForward.init(WIDTH, key=KEY)
CONTINUOUS = lim.ContinuousFlow(lambda time: FIELD)
ON, IN = Thing(TOKENS), Thing(REGIONS)


def squares(params, x, y):
    return jnp.sum(x**2)


def total(x, y):
    return jnp.sum(x**2)


def unlabelled(function):
    """A function of an example, of the input alone: its labels are None."""
    return lambda flow, terminal_loss, x, grid, **rest: function(
        flow, terminal_loss, (x, None), grid, **rest
    )


def observations(x):
    return (x**2).reshape(1, -1)


CALLS = {
    # Grids and values on them.
    "token_grid": (lim.token_grid, {"size": Known(LENGTH)}),
    "midpoint_grid": (lim.midpoint_grid, {"size": Known(LENGTH)}),
    "graded_grid": (lim.graded_grid, {"size": Known(LENGTH)}),
    "gauss_grid": (lim.gauss_grid, {"order": Known(LENGTH), "panels": Known(1)}),
    "boundary_regions": (lim.boundary_regions, {"grid": ON, "delta": Delta(0.3)}),
    "regional_averages": (lim.regional_averages, {"values": Rows(STATES), "regions": IN}),
    "integral": (lim.integral, {"values": Rows(STATES), "grid": ON}),
    "inner": (lim.inner, {"left": Rows(STATES), "right": Rows(STATES), "grid": ON}),
    "resample": (
        eqx.filter_jit(grid.resample),
        {"values": Rows(STATES), "source": ON, "target": ON},
    ),
    "interval_weights": (grid.interval_weights, {"grid": ON, "intervals": Several([(0, 0.5)])}),
    "Regions.without": (REGIONS.without, {"positions": Several([0])}),
    "cell_embedding": (
        grid.cell_embedding,
        {"values": Rows(STATES), "grid": ON, "positions": Free(ASKED)},
    ),
    # What is asked.
    "teacher_forcing": (loss.teacher_forcing, {"size": Known(LENGTH)}),
    "last_token": (loss.last_token, {"size": Known(LENGTH)}),
    "query_subset": (
        loss.query_subset,
        {"size": Known(LENGTH), "positions": Whole(jax.device_put(np.array([0, 2])))},
    ),
    "cross_entropy": (
        lim.cross_entropy,
        {"logits": Rows(LOGITS), "labels": Rows(LABELS), "grid": ON},
    ),
    "weighted cross_entropy": (
        lambda position_weights: lim.cross_entropy(LOGITS, LABELS, TOKENS, position_weights),
        {"position_weights": optional(Rows(PROFILE))},
    ),
    "autoregressive_cross_entropy": (
        lim.autoregressive_cross_entropy,
        {"logits": Rows(LOGITS), "targets": Rows(LABELS), "query_weights": Rows(ASKED)},
    ),
    "positionwise_cross_entropy": (
        loss.positionwise_cross_entropy,
        {"logits": Rows(LOGITS), "labels": Rows(LABELS)},
    ),
    "logit_residual": (loss.logit_residual, {"logits": Rows(LOGITS), "labels": Rows(LABELS)}),
    "LinearReadout": (READOUT.__call__, {"x": Rows(STATES), "grid": ON}),
    "LinearReadout.init": (
        lim.LinearReadout.init,
        {"width": Known(WIDTH), "vocabulary": Known(VOCABULARY), "key": Thing(KEY)},
    ),
    "LinearReadout's parameters": (
        lambda weight, bias: lim.LinearReadout(weight, bias)(STATES, TOKENS),
        {"weight": Free(READOUT.weight), "bias": optional(Free(READOUT.weight[0]))},
    ),
    "TokenwiseReadout": (
        lambda function, x, grid: lim.TokenwiseReadout(function)(x, grid),
        {"function": Thing(jnp.sin), "x": Rows(STATES), "grid": ON},
    ),
    "BandReadout": (BAND.__call__, {"x": Rows(STATES), "grid": ON}),
    "BandReadout's parameters": (
        lambda weight, bandwidth, kernel: lim.BandReadout(weight, bandwidth, kernel=kernel)(
            STATES, TOKENS
        ),
        {"weight": Free(BAND.weight), "bandwidth": Real(0.6), "kernel": Thing(loss.hat)},
    ),
    "LocalReadout": (LOCAL.__call__, {"x": Rows(STATES), "grid": ON}),
    "LocalReadout's parameters": (
        lambda blocks: loss.LocalReadout(blocks)(STATES, TOKENS),
        {"blocks": Rows(LOCAL.blocks)},
    ),
    # The network.
    "LayerNorm.init": (lim.LayerNorm.init, {"width": Known(WIDTH), "eta": Real(0.1)}),
    "LayerNorm": (lim.LayerNorm.init(LENGTH).__call__, {"z": Rows(PROFILE)}),
    "CausalAttention.init": (
        lim.CausalAttention.init,
        {
            "width": Known(WIDTH), "heads": Known(1), "groups": optional(Known(1)),
            "head_size": optional(Known(2)), "eta": Real(0.1), "key": Thing(KEY),
        },
    ),
    "FeedForward.init": (
        lim.FeedForward.init,
        {"width": Known(WIDTH), "hidden": optional(Known(3)), "eta": Real(0.1), "key": Thing(KEY)},
    ),
    "RMSNorm.init": (network.RMSNorm.init, {"width": Known(WIDTH), "eta": Real(0.1)}),
    "RMSNorm": (network.RMSNorm.init(LENGTH).__call__, {"z": Rows(PROFILE)}),
    "GatedFeedForward.init": (
        network.GatedFeedForward.init,
        {"width": Known(WIDTH), "hidden": optional(Known(3)), "eta": Real(0.1), "key": Thing(KEY)},
    ),
    "GatedFeedForward": (
        eqx.filter_jit(GATED.__call__),
        {"x": Rows(STATES), "context": Unread(STATES), "grid": ON},
    ),
    "Rotary": (
        lambda frequencies, tokens, grid: network.Rotary(frequencies, tokens).turns(grid),
        {"frequencies": Numbers([1.0, 0.1]), "tokens": optional(Real(8.0)), "grid": ON},
    ),
    "rotary_frequencies": (
        network.rotary_frequencies,
        {"size": Known(4), "base": Real(100.0)},
    ),
    "linear_scaling": (
        network.linear_scaling,
        {"frequencies": Numbers([1.0, 0.1]), "factor": Real(4.0)},
    ),
    "llama3_scaling": (
        network.llama3_scaling,
        {
            "frequencies": Numbers([1.0, 0.1]), "factor": Real(4.0), "low": Real(1.0),
            "high": Real(4.0), "trained": Real(64.0),
        },
    ),
    "TransformerField.init": (
        lim.TransformerField.init,
        {"width": Known(WIDTH), "heads": Known(1), "key": Thing(KEY)},
    ),
    "CausalAttention": (
        eqx.filter_jit(FIELD.attention.__call__),
        {"x": Rows(STATES), "context": Rows(STATES), "grid": ON},
    ),
    "FeedForward": (
        eqx.filter_jit(FIELD.feed_forward.__call__),
        {"x": Rows(STATES), "context": Unread(STATES), "grid": ON},
    ),
    "TransformerField": (
        eqx.filter_jit(FIELD.__call__),
        {"x": Rows(STATES), "context": Rows(STATES), "grid": ON},
    ),
    "causal_attention": (
        lim.causal_attention,
        {"query": Rows(STATES), "key": Rows(STATES), "value": Rows(STATES), "grid": ON},
    ),
    "attention_weights": (
        network.attention_weights,
        {"query": Rows(STATES), "key": Rows(STATES), "grid": ON},
    ),
    "attention_kernel": (
        network.attention_kernel,
        {"query": Rows(STATES), "key": Rows(STATES), "grid": ON},
    ),
    "blocked_attention": (
        network.blocked_attention,
        {"query": Rows(STATES), "key": Rows(STATES), "value": Rows(STATES), "grid": ON},
    ),
    "euler": (
        eqx.filter_jit(lim.euler),
        {"field": Thing(FIELD), "x": Rows(STATES), "grid": ON, "increment": Real(0.5)},
    ),
    "split": (
        eqx.filter_jit(lim.split),
        {"field": Thing(FIELD), "x": Rows(STATES), "grid": ON, "increment": Real(0.5)},
    ),
    "ResidualFlow": (
        lim.ResidualFlow,
        {
            "layers": Layers(FLOW.layers), "horizon": Real(1.0),
            "profile": Thing(network.unit_profile), "step": Thing(lim.euler),
        },
    ),
    "ResidualFlow's call": (eqx.filter_jit(FLOW.__call__), {"x": Rows(STATES), "grid": ON}),
    "ResidualFlow.trajectory": (eqx.filter_jit(FLOW.trajectory), {"x": Rows(STATES), "grid": ON}),
    "ContinuousFlow": (
        lim.ContinuousFlow,
        {
            "control": Thing(lambda time: FIELD), "horizon": Real(1.0),
            "profile": Thing(network.unit_profile),
        },
    ),
    "ContinuousFlow's call": (CONTINUOUS.__call__, {"x": Rows(STATES), "grid": ON}),
    "ContinuousFlow.trajectory": (
        CONTINUOUS.trajectory,
        {"x": Rows(STATES), "grid": ON, "times": Free(np.linspace(0, 1, 2))},
    ),
    # Influence.
    "influence": (
        lambda loss, x, grid, regions: lim.influence(loss, None, (x, None), grid, regions),
        {"loss": Thing(squares), "x": Rows(VECTORS), "grid": ON, "regions": optional(IN)},
    ),
    "influence's batch": (
        lambda batch: lim.influence(squares, None, batch, TOKENS),
        {"batch": Thing((VECTORS, None))},
    ),
    "influence_stream": (
        lambda loss, x, grid, regions: lim.influence_stream(
            loss, None, [(VECTORS, None), (x, None)], grid, regions
        ),
        {"loss": Thing(squares), "x": Rows(VECTORS), "grid": ON, "regions": optional(IN)},
    ),
    "Influence.from_energies": (
        lim.Influence.from_energies,
        {"energies": Rows(positive(8, EXAMPLES, LENGTH)), "regions": IN},
    ),
    "indices": (lim.indices, {"averages": Rows(PROFILE), "epsilon": Real(1e-8)}),
    # The adjoint.
    "adjoint_trajectory": (
        unlabelled(lim.adjoint_trajectory),
        {"flow": Thing(FLOW), "terminal_loss": Thing(total), "x": Rows(STATES), "grid": ON},
    ),
    "channels": (
        unlabelled(adjoint.channels),
        {"flow": Thing(FLOW), "terminal_loss": Thing(total), "x": Rows(STATES), "grid": ON},
    ),
    "an example": (
        lambda example: adjoint.channels(FLOW, total, example, TOKENS),
        {"example": Thing((STATES, None))},
    ),
    "regional_channels": (
        adjoint.regional_channels,
        {"vectors": Rows(jnp.stack([VECTORS] * 3, axis=1)), "regions": IN},
    ),
    "terminal_adjoint": (
        lambda terminal_loss, state, grid: adjoint.terminal_adjoint(
            terminal_loss, (state, None), grid
        ),
        {"terminal_loss": Thing(total), "state": Rows(STATES), "grid": ON},
    ),
    "pull_back": (
        eqx.filter_jit(adjoint.pull_back),
        {"field": Thing(FIELD), "x": Rows(STATES), "covector": Rows(STATES), "grid": ON},
    ),
    "cone_mass": (
        adjoint.cone_mass,
        {"attention": Thing(FIELD.attention), "x": Rows(STATES), "grid": ON},
    ),
    "interaction_orders": (
        unlabelled(adjoint.interaction_orders),
        {
            "flow": Thing(FLOW), "terminal_loss": Thing(total), "x": Rows(STATES), "grid": ON,
            "highest": Known(1),
        },
    ),
    "attention_hops": (
        unlabelled(adjoint.attention_hops),
        {
            "flow": Thing(FLOW), "terminal_loss": Thing(total), "x": Rows(STATES), "grid": ON,
            "highest": Known(1),
        },
    ),
    "one_hop_by_head": (
        unlabelled(adjoint.one_hop_by_head),
        {
            "flow": Thing(FLOW), "terminal_loss": Thing(total), "x": Rows(STATES), "grid": ON,
            "depth": Known(0),
        },
    ),
    "relative_energies": (
        adjoint.relative_energies,
        {"vectors": Rows(VECTORS), "state": Rows(STATES), "grid": ON},
    ),
    "query_masses": (adjoint.query_masses, {"query_weights": Rows(ASKED), "regions": IN}),
    "readout_support": (
        adjoint.readout_support,
        {"query_weights": Free(ASKED), "radius": Known(1)},
    ),
    "continuous_adjoint": (
        unlabelled(lim.continuous_adjoint),
        {
            "flow": Thing(CONTINUOUS), "terminal_loss": Thing(total), "x": Rows(STATES),
            "grid": ON, "times": Free(np.linspace(0, 1, 2)),
        },
    ),
    "recency_survival": (
        adjoint.recency_survival,
        {
            "terminal": Rows(VECTORS), "initial": Rows(VECTORS),
            "amplification": Free(positive(9, EXAMPLES)), "regions": IN,
        },
    ),
    "energy_stability": (
        adjoint.energy_stability,
        {
            "terminal": Rows(VECTORS), "initial": Rows(VECTORS),
            "amplification": Free(positive(9, EXAMPLES)), "regions": IN,
        },
    ),
    "right_biased_queries": (
        adjoint.right_biased_queries,
        {
            "query_weights": Rows(ASKED), "residual_energies": Rows(PROFILE),
            "terminal": Rows(VECTORS), "regions": IN,
        },
    ),
    "interaction_norms": (
        lambda flow, x, grid, key, steps, failure: adjoint.interaction_norms(
            flow, x, grid, key=key, steps=steps, failure=failure
        ),
        {
            "flow": Thing(FLOW), "x": Rows(STATES), "grid": ON, "key": Thing(KEY),
            "steps": Known(2), "failure": Real(0.1),
        },
    ),
    "generator_norms": (
        lambda flow, x, grid, times, key: adjoint.generator_norms(
            flow, x, grid, times, key=key, steps=2
        ),
        {
            "flow": Thing(CONTINUOUS), "x": Rows(STATES), "grid": ON,
            "times": Free(np.linspace(0, 1, 2)), "key": Thing(KEY),
        },
    ),
    "readout_residual_energies": (
        adjoint.readout_residual_energies,
        {
            "readout": Given(READOUT), "states": Rows(VECTORS), "targets": Rows(TARGETS),
            "regions": IN,
        },
    ),
    # Observability.
    "sample_mean": (probes.sample_mean, {"samples": Samples(STATES)}),
    "gaussian_probes": (
        probes.gaussian_probes,
        {"count": Known(2), "width": Known(WIDTH), "key": Thing(KEY)},
    ),
    "orthogonal_probes": (
        probes.orthogonal_probes,
        {"count": Known(2), "width": Known(WIDTH), "key": Thing(KEY)},
    ),
    "observability_gramians": (
        observability.observability_gramians,
        {"observations": Thing(observations), "x": Free(STATES), "step": Real(0.5)},
    ),
    "gramian_traces": (observability.gramian_traces, {"gramians": Free(GRAMIANS)}),
    "condition_numbers": (observability.condition_numbers, {"gramians": Free(GRAMIANS)}),
    "probed_traces": (
        observability.probed_traces,
        {"gramians": Free(GRAMIANS), "probes": Free(VECTORS[0])},
    ),
    "gaussian_probe_moments": (
        observability.gaussian_probe_moments,
        {"gramians": Rows(GRAMIANS), "grid": ON, "probes": Known(2)},
    ),
    "systematic_sample": (
        observability.systematic_sample,
        {"sizes": Free(ASKED), "count": Known(1), "key": Thing(KEY)},
    ),
    # Training.
    "influence_discrepancy": (
        training.influence_discrepancy,
        {"density": Rows(PROFILE), "target": Real(1.0), "grid": ON},
    ),
    "balanced_density": (
        training.balanced_density,
        {"energies": Free(ENERGIES), "weights": Rows(PROFILE), "epsilon": Real(1e-8)},
    ),
    "crossed_density": (
        training.crossed_density,
        {"energies": Free(ENERGIES), "weights": Rows(PROFILE), "epsilon": Real(1e-8)},
    ),
    "example_density": (
        training.example_density,
        {"energies": Free(ENERGIES), "weights": Rows(PROFILE), "epsilon": Real(1e-8)},
    ),
    "influence_penalty": (
        lambda loss, x, grid, target, epsilon: training.influence_penalty(
            loss, None, (x, None), grid, target=target, epsilon=epsilon
        ),
        {
            "loss": Thing(squares), "x": Rows(VECTORS), "grid": ON, "target": Real(1.0),
            "epsilon": Real(1e-8),
        },
    ),
    "pooled influence_penalty": (
        lambda pools, target, estimate: training.influence_penalty(
            squares, None, (VECTORS, None), TOKENS, target=target, estimate=estimate, pools=pools
        ),
        {
            "pools": optional(Rows(ENERGIES)), "target": Real(1.0),
            "estimate": Thing(training.example_density),
        },
    ),
    "balanced_gradients": (
        eqx.filter_jit(
            lambda loss, x, grid: training.balanced_gradients(loss, None, (x, None), grid)
        ),
        {"loss": Thing(squares), "x": Rows(VECTORS), "grid": ON},
    ),
    "averaged_gradients": (
        eqx.filter_jit(
            lambda loss, x, grid, memory: training.averaged_gradients(
                loss, None, (x, None), grid, previous=PROFILE, memory=memory
            )
        ),
        {"loss": Thing(squares), "x": Rows(VECTORS), "grid": ON, "memory": Real(0.5)},
    ),
    "raised_multiplier": (
        training.raised_multiplier,
        {
            "multiplier": Real(1.0), "penalty": Real(0.5), "limit": Real(0.25),
            "stiffness": Real(4.0),
        },
    ),
    "trace_penalty": (training.trace_penalty, {"traces": Rows(PROFILE), "grid": ON}),
    "gramian_penalty": (training.gramian_penalty, {"gramians": Rows(GRAMIANS), "grid": ON}),
    "crossfit_penalty": (
        training.crossfit_penalty,
        {"first": Rows(PROFILE), "second": Rows(PROFILE), "grid": ON},
    ),
    "sampled_trace_penalty": (
        training.sampled_trace_penalty,
        {"traces": Rows(PROFILE), "weights": Rows(PROFILE)},
    ),
    "ratio_bias": (training.ratio_bias, {"energies": Rows(positive(8, 2, LENGTH)), "grid": ON}),
    "shift_bound": (
        training.shift_bound,
        {"strength": Real(0.5), "slope": Real(2.0), "convexity": Real(4.0)},
    ),
    "reweight_positions": (
        training.reweight_positions,
        {
            "weights": Rows(PROFILE), "density": Rows(PROFILE), "target": Real(1.0), "grid": ON,
            "rate": Real(0.5), "smallest": Real(0.1), "largest": Real(8.0),
        },
    ),
    "importance_weights": (
        training.importance_weights,
        {"deployed": Rows(PROFILE), "trained": Rows(ASKED), "grid": ON},
    ),
    # Tasks.
    "edge_law": (
        tasks.edge_law,
        {"records": Known(LENGTH), "width": Real(0.25), "odds": Real(0.1)},
    ),
    "middle_law": (
        tasks.middle_law,
        {"records": Known(LENGTH), "width": Real(0.25), "odds": Real(0.1)},
    ),
    "law_of_weights": (tasks.law_of_weights, {"weights": Free(PROFILE)}),
    "gold_places": (
        tasks.gold_places,
        {"law": Free(ASKED), "count": Known(2), "key": Thing(KEY)},
    ),
    "key_value_examples": (
        lambda gold, key: tasks.key_value_examples(tasks.KeyValueTask(4, 5, 3), gold, key=key),
        {"gold": Whole(jax.device_put(np.array([1, 0]))), "key": Thing(KEY)},
    ),
    "record_weights": (
        tasks.record_weights,
        {
            "records": Whole(jax.device_put(np.array([1, 0, -1]))), "cells": Rows(PROFILE),
            "count": Known(2),
        },
    ),
    "decodes_greedily": (
        tasks.decodes_greedily,
        {
            "logits": Rows(LOGITS),
            "targets": Whole(jax.device_put(np.array([3, 0, 2]))),
            "weights": Rows(ASKED),
        },
    ),
    # Studies.
    "paired_interval": (
        validation.paired_interval,
        {"differences": Samples(VECTORS), "level": Real(0.9)},
    ),
    "rank_correlation": (
        validation.rank_correlation,
        {"x": Rows(PROFILE), "y": Rows(ASKED)},
    ),
    "bootstrap_interval": (
        lambda samples, level, resamples, seed: validation.bootstrap_interval(
            samples, level=level, resamples=resamples, seed=seed
        ),
        {
            "samples": Samples(np.asarray(VECTORS)), "level": Real(0.9), "resamples": Known(3),
            "seed": Known(0),
        },
    ),
    "gradient_times_input": (
        lambda loss, x: explanations.gradient_times_input(loss, None, x, None),
        {"loss": Thing(squares), "x": Free(STATES)},
    ),
    "integrated_gradients": (
        lambda loss, x, baseline, steps: explanations.integrated_gradients(
            loss, None, x, None, baseline, steps=steps
        ),
        {"loss": Thing(squares), "x": Rows(STATES), "baseline": Rows(STATES), "steps": Known(2)},
    ),
    "occlusion": (
        lambda loss, x, baseline, records, count: explanations.occlusion(
            loss, None, x, None, baseline, records, count
        ),
        {
            "loss": Thing(squares), "x": Rows(STATES), "baseline": Rows(STATES),
            "records": Whole(jax.device_put(np.array([1, 0, 1]))), "count": Known(2),
        },
    ),
    "attention_rollout": (
        explanations.attention_rollout,
        {"flow": Thing(FLOW), "x": Rows(STATES), "grid": ON},
    ),
}  # fmt: skip
CALLS |= LATER


def public_functions():
    """What the rooms' stubs name, but for types and for functions of no argument: room and name."""
    package = Path(lim.__file__).parent
    for stub in sorted(package.glob("*/__init__.pyi")):
        room = importlib.import_module(f"lim_jax.{stub.parent.name}")
        for name in re.findall(r"^from \.\w+ import (\w+) as", stub.read_text(), re.MULTILINE):
            function = getattr(room, name)
            if not isinstance(function, type) and inspect.signature(function).parameters:
                yield stub.parent.name, name


def test_every_public_function_has_a_sample_call_or_a_reason_to_have_none():
    """A key of `CALLS` holds the function's name, after its room's where two rooms have it."""
    sampled = {word for key in CALLS for word in re.split(r"[ ']", key)}
    without = {name for names in WITHOUT.values() for name in names.split()}
    found = list(public_functions())
    several = {name for _, name in found if [one for _, one in found].count(name) > 1}
    spelt = {f"{room}.{name}" if name in several else name for room, name in found}
    assert sorted(spelt - sampled - without) == []
    assert sorted((without - spelt) | (without & sampled)) == []  # and none that is no more so


def test_every_path_may_be_a_string():
    for room, name in public_functions():
        function = getattr(getattr(lim, room), name)
        for parameter in inspect.signature(function).parameters.values():
            spelt = str(parameter.annotation)
            assert "pathlib." not in spelt or "str" in spelt, f"{room}.{name}: {parameter}"


def called(name, **hostile):
    """The finished result of a right call in which some arguments are replaced."""
    function, arguments = CALLS[name]
    right = {argument: value.right for argument, value in arguments.items()}
    return jax.block_until_ready(function(**right | hostile))


def refused(error):
    """Whether an error names an argument and what was expected of it.

    Arrays of strings and objects are no arrays of JAX: where a compiled function begins, it is
    JAX's own error that says so.
    """
    text, ours = str(error), r"\w: (got .+, )?expected "
    by_jax = isinstance(error, TypeError) and "Error interpreting argument" in text
    return by_jax or isinstance(error, ValueError | RuntimeError) and re.search(ours, text, re.S)


def outcome(name, **hostile):
    """The floating-point numbers of a call, or None where one of our own errors was raised."""
    try:
        leaves = jax.tree.leaves(called(name, **hostile))
    except Exception as error:
        assert refused(error), f"foreign {type(error).__name__} at {hostile}: {error}"
        return None
    return [np.asarray(leaf) for leaf in leaves if eqx.is_inexact_array_like(leaf)]


def finite(numbers):
    return all(np.isfinite(number).all() for number in numbers)


@pytest.fixture
def as_promoted_by_users():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("name", CALLS)
def test_what_can_mean_nothing_is_refused(name):
    accepted = [
        (argument, kind)
        for argument, expected in CALLS[name][1].items()
        for kind, value in expected.malformed().items()
        if outcome(name, **{argument: value}) is not None
    ]
    assert accepted == []


@pytest.mark.parametrize("name", CALLS)
def test_nan_and_infinity_are_refused_or_stay_visible(name):
    vanished = [
        (argument, kind)
        for argument, expected in CALLS[name][1].items()
        for kind, value in expected.poisoned().items()
        if (found := outcome(name, **{argument: value})) is not None and finite(found)
    ]
    assert vanished == []


COUNTS = [
    pytest.param(name, argument, id=f"{name}-{argument}")
    for name, (_, arguments) in CALLS.items()
    for argument, expected in arguments.items()
    if isinstance(expected, Known)
]


@pytest.mark.parametrize("name, argument", COUNTS)
def test_a_count_is_known_before_tracing(name, argument):
    """An integer of NumPy is as good as Python's, or refused; a traced one is refused."""
    right = CALLS[name][1][argument].right
    found = outcome(name, **{argument: np.int32(right)})
    if found is not None:
        expected = outcome(name)
        assert all(map(np.array_equal, found, expected)) and len(found) == len(expected)
    with pytest.raises(ValueError, match="known before tracing|whole number"):
        jax.jit(lambda count: jax.tree.leaves(called(name, **{argument: count}))[:0])(right)


NUMBERS = st.one_of(st.integers(-2, 4), st.floats(width=32), st.booleans(), st.complex_numbers())
ARRAYS = st.sampled_from(["float16", "float32", "float64", "int32", "bool", "complex64"]).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
ANYTHING = st.one_of(st.none(), NUMBERS, ARRAYS, st.text(max_size=3), st.lists(NUMBERS, max_size=3))
PLACES = [(name, argument) for name in CALLS.keys() - LATER for argument in CALLS[name][1]]
PLACES.sort()


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.sampled_from(PLACES), hostile=ANYTHING)
def test_anything_else_gives_numbers_or_is_refused(place, hostile):
    """Finite where it is finite itself, and well inside the range of its precision."""
    name, argument = place
    if isinstance(CALLS[name][1][argument], Given | Layers):
        return
    found = outcome(name, **{argument: hostile})
    moderate = isinstance(hostile, float | int) and abs(hostile) < 100
    if found is not None and moderate:
        assert finite(found), f"{hostile} for {argument} gives {found}"
