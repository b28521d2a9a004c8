# pyright: reportArgumentType=false
"""Right calls of grids, losses, networks, adjoints and training, an argument at a time."""

from functools import partial

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from reference.hostile import (
    LENGTH,
    Above,
    Delta,
    Epsilon,
    Free,
    Given,
    Known,
    Layers,
    Numbers,
    Real,
    Rows,
    Samples,
    Several,
    Share,
    Sizes,
    Thing,
    Unread,
    Whole,
    optional,
)
from reference.networks import drawn, layer_of, random_flow, random_labels, random_states

import lim_jax as lim
from lim_jax import (
    adjoint,
    grid,
    loss,
    network,
    observability,
    probes,
    tasks,
    training,
)
from lim_jax.loss.readouts import hat
from lim_jax.network.flow import unit_profile

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
ASKED = jax.device_put(np.asarray(PROFILE) / np.asarray(PROFILE).sum())
ENERGIES = positive(9, EXAMPLES, LENGTH)
FACTORS = random_states(5, LENGTH, WIDTH, WIDTH)
GRAMIANS = jax.device_put(np.einsum("iab,icb->iac", FACTORS, FACTORS))
TARGETS = random_labels(6, EXAMPLES, LENGTH, VOCABULARY)
READOUT = lim.LinearReadout(random_states(7, WIDTH, VOCABULARY))
BAND = lim.BandReadout(random_states(7, WIDTH, VOCABULARY), 0.6)
LOCAL = loss.LocalReadout(random_states(7, LENGTH, 3, VOCABULARY, WIDTH))
GATED = drawn(partial(network.GatedFeedForward.init, WIDTH))
CONTINUOUS = lim.ContinuousFlow(lambda time: FIELD)
STEPPED = lim.ContinuousFlow(
    lambda time: FIELD, solver=diffrax.Euler(), first_step=0.5, max_steps=2,
    stepsize_controller=diffrax.ConstantStepSize(),
)  # fmt: skip
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


FIRST = {
    # Grids and values on them.
    "token_grid": (lim.token_grid, {"size": Known(LENGTH)}),
    "midpoint_grid": (lim.midpoint_grid, {"size": Known(LENGTH)}),
    "graded_grid": (lim.graded_grid, {"size": Known(LENGTH)}),
    "gauss_grid": (lim.gauss_grid, {"order": Known(LENGTH), "panels": Known(1)}),
    "boundary_regions": (lim.boundary_regions, {"grid": ON, "delta": Delta(0.3)}),
    "regional_averages": (lim.regional_averages, {"values": Rows(STATES), "regions": IN}),
    "integral": (lim.integral, {"values": Rows(STATES), "grid": ON}),
    "inner": (lim.inner, {"left": Rows(STATES), "right": Rows(STATES), "grid": ON}),
    "Regions.without": (REGIONS.without, {"positions": Several([0])}),
    "cell_embedding": (
        grid.cell_embedding,
        {"values": Rows(STATES), "grid": ON, "positions": Free(ASKED)},
    ),
    # What is asked.
    "teacher_forcing": (loss.teacher_forcing, {"size": Known(LENGTH)}),
    "last_token": (loss.last_token, {"size": Known(LENGTH)}),
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
        {"weight": Free(READOUT.weight), "bias": optional(Free(random_states(7, VOCABULARY)))},
    ),
    "TokenwiseReadout": (
        lambda function, x, grid: lim.TokenwiseReadout(function)(x, grid),
        {"function": Thing(jnp.sin), "x": Rows(STATES), "grid": ON},
    ),
    "BandReadout": (BAND.__call__, {"x": Rows(STATES), "grid": ON}),
    "LocalReadout": (LOCAL.__call__, {"x": Rows(STATES), "grid": ON}),
    "LocalReadout's parameters": (
        lambda blocks: loss.LocalReadout(blocks)(STATES, TOKENS),
        {"blocks": Rows(LOCAL.blocks)},
    ),
    "BandReadout's parameters": (
        lambda weight, bandwidth, kernel: lim.BandReadout(weight, bandwidth, kernel=kernel)(
            STATES, TOKENS
        ),
        {"weight": Free(BAND.weight), "bandwidth": Real(0.6), "kernel": Thing(hat)},
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
        lambda frequencies, tokens: network.Rotary(frequencies, tokens).rope(TOKENS),
        {"frequencies": Numbers([1.0, 0.1]), "tokens": optional(Real(8.0))},
    ),
    "AttentionMask": (
        lambda window: network.AttentionMask(window).prefixes(TOKENS).prefix_weights(),
        {"window": optional(Known(2))},
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
            "profile": Thing(unit_profile), "step": Thing(lim.euler),
        },
    ),
    "ResidualFlow's call": (eqx.filter_jit(FLOW.__call__), {"x": Rows(STATES), "grid": ON}),
    "ResidualFlow.trajectory": (eqx.filter_jit(FLOW.trajectory), {"x": Rows(STATES), "grid": ON}),
    "ContinuousFlow": (
        lim.ContinuousFlow,
        {
            "control": Thing(lambda time: FIELD), "horizon": Real(1.0),
            "profile": Thing(unit_profile), "first_step": optional(Above(0.5)),
            "max_steps": Known(8),
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
    "indices": (lim.indices, {"averages": Rows(PROFILE), "epsilon": Epsilon(1e-8)}),
    # The adjoint.
    "adjoint_trajectory": (
        unlabelled(lim.adjoint_trajectory),
        {"flow": Thing(FLOW), "terminal_loss": Thing(total), "x": Rows(STATES), "grid": ON},
    ),
    "channels": (
        unlabelled(adjoint.channels),
        {"flow": Thing(FLOW), "terminal_loss": Thing(total), "x": Rows(STATES), "grid": ON},
    ),
    "regional_channels": (
        adjoint.regional_channels,
        {"vectors": Rows(random_states(4, EXAMPLES, 3, LENGTH, WIDTH)), "regions": IN},
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
    "mask_gradient": (
        unlabelled(adjoint.mask_gradient),
        {"flow": Thing(FLOW), "terminal_loss": Thing(total), "x": Rows(STATES), "grid": ON},
    ),
    "mask_path": (
        unlabelled(adjoint.mask_path),
        {
            "flow": Thing(FLOW), "terminal_loss": Thing(total), "x": Rows(STATES), "grid": ON,
            "chosen": Whole(jax.device_put(np.arange(LENGTH) < 2)), "nodes": Known(1),
            "least": Share(0.1),
        },
    ),
    "one_hop_by_head": (
        unlabelled(adjoint.one_hop_by_head),
        {
            "flow": Thing(FLOW), "terminal_loss": Thing(total), "x": Rows(STATES), "grid": ON,
            "depth": Known(0),
        },
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
            "flow": Thing(STEPPED), "x": Rows(STATES), "grid": ON,
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
    "observability_gramians": (
        observability.observability_gramians,
        {"observations": Thing(observations), "x": Free(STATES), "step": Real(0.5)},
    ),
    "condition_numbers": (observability.condition_numbers, {"gramians": Free(GRAMIANS)}),
    "gramian_traces": (observability.gramian_traces, {"gramians": Free(GRAMIANS)}),
    "probed_traces": (
        observability.probed_traces,
        {"gramians": Free(GRAMIANS), "probes": Free(random_states(4, LENGTH, WIDTH))},
    ),
    "gaussian_probe_moments": (
        observability.gaussian_probe_moments,
        {"gramians": Rows(GRAMIANS), "grid": ON, "probes": Known(2)},
    ),
    # Training.
    "influence_discrepancy": (
        training.influence_discrepancy,
        {"density": Rows(PROFILE), "target": Real(1.0), "grid": ON},
    ),
    **{
        name: (
            getattr(training, name),
            {"density": Rows(PROFILE), "target": Real(1.0), "weights": Sizes(PROFILE)},
        )
        for name in ("squared_discrepancy", "cross_entropy_discrepancy")
    },
    "balanced_density": (
        training.balanced_density,
        {"energies": Free(ENERGIES), "weights": Sizes(PROFILE), "epsilon": Epsilon(1e-8)},
    ),
    "crossed_density": (
        training.crossed_density,
        {"energies": Free(ENERGIES), "weights": Sizes(PROFILE), "epsilon": Epsilon(1e-8)},
    ),
    "ratio_bias": (
        training.ratio_bias,
        {"energies": Rows(positive(8, 2, LENGTH)), "grid": ON, "epsilon": Epsilon(1e-8)},
    ),
    "raised_multiplier": (
        training.raised_multiplier,
        {
            "multiplier": Epsilon(1.0), "value": Real(0.5), "limit": Real(0.25),
            "stiffness": Above(4.0),
        },
    ),
    "influence_penalty": (
        lambda loss, x, grid, target, epsilon: training.influence_penalty(
            loss, None, (x, None), grid, training.Penalty(target, epsilon=epsilon)
        ),
        {
            "loss": Thing(squares), "x": Rows(VECTORS), "grid": ON, "target": Real(1.0),
            "epsilon": Epsilon(1e-8),
        },
    ),
    "pooled influence_penalty": (
        lambda pools, target, estimate: training.influence_penalty(
            squares, None, (VECTORS, None), TOKENS,
            training.Penalty(target, estimate=estimate, pools=pools),
        ),
        {
            "pools": optional(Rows(ENERGIES)), "target": Real(1.0),
            "estimate": Thing(training.balanced_density),
        },
    ),
    "risk_and_penalty": (
        eqx.filter_jit(
            lambda loss, x, grid, memory: training.risk_and_penalty(
                loss, None, (x, None), grid, previous=PROFILE, memory=memory
            )
        ),
        {"loss": Thing(squares), "x": Rows(VECTORS), "grid": ON, "memory": Share(0.5)},
    ),
    "trace_penalty": (training.trace_penalty, {"traces": Rows(PROFILE), "grid": ON}),
    "gramian_penalty": (training.gramian_penalty, {"gramians": Rows(GRAMIANS), "grid": ON}),
    "crossfit_penalty": (
        training.crossfit_penalty,
        {"first": Rows(PROFILE), "second": Rows(PROFILE), "grid": ON},
    ),
    "shift_bound": (
        training.shift_bound,
        {"strength": Epsilon(0.5), "slope": Epsilon(2.0), "convexity": Real(4.0)},
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
}  # fmt: skip
