# pyright: reportArgumentType=false
"""Right calls of grids, losses, networks, adjoints and training, that are cheap to run."""

from functools import partial

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from reference.networks import drawn, layer_of, random_flow, random_labels, random_states
from reference.sample_calls import EMPTY, LENGTH, NEGATIVE, NO_SHARE, NOT_FINITE, NOT_POSITIVE, Call

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

WIDTH = 2
VOCABULARY = 4
EXAMPLES = 2
TOKENS = lim.token_grid(LENGTH)
REGIONS = lim.boundary_regions(TOKENS, 0.3)
FLOW = random_flow(width=WIDTH, heads=1)
FIELD = layer_of(FLOW)
KEY = jax.random.key(0)


def positive(seed, *shape):
    return jax.device_put(np.exp(np.asarray(random_states(seed, *shape))))


STATES = random_states(0, LENGTH, WIDTH)
LABELS = random_labels(1, LENGTH, VOCABULARY)
LOGITS = random_states(2, LENGTH, VOCABULARY)
PROFILE = positive(3, LENGTH)
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
    lambda time: FIELD,
    solver=diffrax.Euler(),
    first_step=0.5,
    max_steps=2,
    stepsize_controller=diffrax.ConstantStepSize(),
)


def squares(params, x, y):
    return jnp.sum(x**2)


def total(x, y):
    return jnp.sum(x**2)


def unlabelled(function):
    """A function of an example, of the input alone: its labels are None."""
    return lambda flow, terminal_loss, x, grid, **options: function(
        flow, terminal_loss, (x, None), grid, **options
    )


def observations(x):
    return (x**2).reshape(1, -1)


OF_NETWORKS = {
    # Grids and values on them.
    "token_grid": Call(lim.token_grid, {"size": LENGTH}),
    "midpoint_grid": Call(lim.midpoint_grid, {"size": LENGTH}),
    "graded_grid": Call(lim.graded_grid, {"size": LENGTH}),
    "gauss_grid": Call(lim.gauss_grid, {"order": LENGTH, "panels": 1}),
    "boundary_regions": Call(
        lim.boundary_regions,
        {"grid": TOKENS, "delta": 0.3},
        accepts={"delta": "boolean"},
        refuses={"delta": NOT_FINITE},
    ),
    "regional_averages": Call(lim.regional_averages, {"values": STATES, "regions": REGIONS}),
    "integral": Call(lim.integral, {"values": STATES, "grid": TOKENS}),
    "inner": Call(lim.inner, {"left": STATES, "right": STATES, "grid": TOKENS}),
    "Regions.without": Call(REGIONS.without, {"positions": [0]}),
    "cell_embedding": Call(
        grid.cell_embedding,
        {"values": STATES, "grid": TOKENS, "positions": ASKED},
        accepts={"positions": "rows"},
    ),
    # What is asked.
    "teacher_forcing": Call(loss.teacher_forcing, {"size": LENGTH}),
    "last_token": Call(loss.last_token, {"size": LENGTH}),
    "cross_entropy": Call(lim.cross_entropy, {"logits": LOGITS, "labels": LABELS, "grid": TOKENS}),
    "weighted cross_entropy": Call(
        lambda position_weights: lim.cross_entropy(LOGITS, LABELS, TOKENS, position_weights),
        {"position_weights": PROFILE},
        accepts={"position_weights": "none"},
    ),
    "autoregressive_cross_entropy": Call(
        lim.autoregressive_cross_entropy,
        {"logits": LOGITS, "targets": LABELS, "query_weights": ASKED},
    ),
    "positionwise_cross_entropy": Call(
        loss.positionwise_cross_entropy, {"logits": LOGITS, "labels": LABELS}
    ),
    "logit_residual": Call(loss.logit_residual, {"logits": LOGITS, "labels": LABELS}),
    "LinearReadout": Call(READOUT.__call__, {"x": STATES, "grid": TOKENS}),
    "LinearReadout.init": Call(
        lim.LinearReadout.init, {"width": WIDTH, "vocabulary": VOCABULARY, "key": KEY}
    ),
    "LinearReadout's parameters": Call(
        lambda weight, bias: lim.LinearReadout(weight, bias)(STATES, TOKENS),
        {"weight": READOUT.weight, "bias": random_states(7, VOCABULARY)},
        accepts={"bias": "none"},
    ),
    "TokenwiseReadout": Call(
        lambda function, x, grid: lim.TokenwiseReadout(function)(x, grid),
        {"function": jnp.sin, "x": STATES, "grid": TOKENS},
    ),
    "BandReadout": Call(BAND.__call__, {"x": STATES, "grid": TOKENS}),
    "LocalReadout": Call(LOCAL.__call__, {"x": STATES, "grid": TOKENS}),
    "LocalReadout's parameters": Call(
        lambda blocks: loss.LocalReadout(blocks)(STATES, TOKENS), {"blocks": LOCAL.blocks}
    ),
    "BandReadout's parameters": Call(
        lambda weight, bandwidth, kernel: lim.BandReadout(weight, bandwidth, kernel=kernel)(
            STATES, TOKENS
        ),
        {"weight": BAND.weight, "bandwidth": 0.6, "kernel": hat},
    ),
    # The network.
    "LayerNorm.init": Call(lim.LayerNorm.init, {"width": WIDTH, "norm_eps": 0.1}),
    "LayerNorm": Call(lim.LayerNorm.init(LENGTH).__call__, {"z": PROFILE}),
    "CausalAttention.init": Call(
        lim.CausalAttention.init,
        {
            "width": WIDTH,
            "heads": 1,
            "num_kv_heads": 1,
            "head_dim": 2,
            "norm_eps": 0.1,
            "key": KEY,
        },
        accepts={"num_kv_heads": "none", "head_dim": "none"},
    ),
    "FeedForward.init": Call(
        lim.FeedForward.init,
        {"width": WIDTH, "intermediate_size": 3, "norm_eps": 0.1, "key": KEY},
        accepts={"intermediate_size": "none"},
    ),
    "RMSNorm.init": Call(network.RMSNorm.init, {"width": WIDTH, "norm_eps": 0.1}),
    "RMSNorm": Call(network.RMSNorm.init(LENGTH).__call__, {"z": PROFILE}),
    "GatedFeedForward.init": Call(
        network.GatedFeedForward.init,
        {"width": WIDTH, "intermediate_size": 3, "norm_eps": 0.1, "key": KEY},
        accepts={"intermediate_size": "none"},
    ),
    "GatedFeedForward": Call(
        eqx.filter_jit(GATED.__call__),
        {"x": STATES, "context": STATES, "grid": TOKENS},
        hides_nan="context",
    ),
    "Rotary": Call(
        lambda frequencies, tokens: network.Rotary(frequencies, tokens).rope(TOKENS),
        {"frequencies": [1.0, 0.1], "tokens": 8.0},
        accepts={"frequencies": "list", "tokens": "none"},
        refuses={"frequencies": EMPTY},
    ),
    "AttentionMask": Call(
        lambda window: network.AttentionMask(window).prefixes(TOKENS).prefix_weights(),
        {"window": 2},
        accepts={"window": "none"},
    ),
    "TransformerField.init": Call(
        lim.TransformerField.init, {"width": WIDTH, "heads": 1, "key": KEY}
    ),
    "CausalAttention": Call(
        eqx.filter_jit(FIELD.attention.__call__), {"x": STATES, "context": STATES, "grid": TOKENS}
    ),
    "FeedForward": Call(
        eqx.filter_jit(FIELD.feed_forward.__call__),
        {"x": STATES, "context": STATES, "grid": TOKENS},
        hides_nan="context",
    ),
    "TransformerField": Call(
        eqx.filter_jit(FIELD.__call__), {"x": STATES, "context": STATES, "grid": TOKENS}
    ),
    "causal_attention": Call(
        lim.causal_attention, {"query": STATES, "key": STATES, "value": STATES, "grid": TOKENS}
    ),
    "attention_weights": Call(
        network.attention_weights, {"query": STATES, "key": STATES, "grid": TOKENS}
    ),
    "attention_kernel": Call(
        network.attention_kernel, {"query": STATES, "key": STATES, "grid": TOKENS}
    ),
    "euler": Call(
        eqx.filter_jit(lim.euler), {"field": FIELD, "x": STATES, "grid": TOKENS, "increment": 0.5}
    ),
    "split": Call(
        eqx.filter_jit(lim.split), {"field": FIELD, "x": STATES, "grid": TOKENS, "increment": 0.5}
    ),
    "ResidualFlow": Call(
        lim.ResidualFlow,
        {
            "layers": FLOW.layers,
            "horizon": 1.0,
            "profile": unit_profile,
            "step": lim.euler,
        },
        accepts={"layers": "array"},
    ),
    "ResidualFlow's call": Call(eqx.filter_jit(FLOW.__call__), {"x": STATES, "grid": TOKENS}),
    "ResidualFlow.trajectory": Call(eqx.filter_jit(FLOW.trajectory), {"x": STATES, "grid": TOKENS}),
    "ContinuousFlow": Call(
        lim.ContinuousFlow,
        {
            "control": lambda time: FIELD,
            "horizon": 1.0,
            "profile": unit_profile,
            "first_step": 0.5,
            "max_steps": 8,
        },
        accepts={"first_step": "none"},
        refuses={"first_step": NOT_POSITIVE},
    ),
    "ContinuousFlow's call": Call(CONTINUOUS.__call__, {"x": STATES, "grid": TOKENS}),
    "ContinuousFlow.trajectory": Call(
        CONTINUOUS.trajectory, {"x": STATES, "grid": TOKENS, "times": np.linspace(0, 1, 2)}
    ),
    # Influence.
    "influence": Call(
        lambda loss, x, grid, regions: lim.influence(loss, None, (x, None), grid, regions),
        {"loss": squares, "x": VECTORS, "grid": TOKENS, "regions": REGIONS},
        accepts={"regions": "none"},
    ),
    "influence's batch": Call(
        lambda batch: lim.influence(squares, None, batch, TOKENS),
        {"batch": (VECTORS, None)},
        refuses={"batch": EMPTY},
    ),
    "influence_stream": Call(
        lambda loss, x, grid, regions: lim.influence_stream(
            loss, None, [(VECTORS, None), (x, None)], grid, regions
        ),
        {"loss": squares, "x": VECTORS, "grid": TOKENS, "regions": REGIONS},
        accepts={"regions": "none"},
    ),
    "Influence.from_energies": Call(
        lim.Influence.from_energies, {"energies": positive(8, EXAMPLES, LENGTH), "regions": REGIONS}
    ),
    "indices": Call(
        lim.indices,
        {"averages": PROFILE, "epsilon": 1e-8},
        refuses={"epsilon": NEGATIVE},
    ),
    # The adjoint.
    "adjoint_trajectory": Call(
        unlabelled(lim.adjoint_trajectory),
        {"flow": FLOW, "terminal_loss": total, "x": STATES, "grid": TOKENS},
    ),
    "channels": Call(
        unlabelled(adjoint.channels),
        {"flow": FLOW, "terminal_loss": total, "x": STATES, "grid": TOKENS},
    ),
    "regional_channels": Call(
        adjoint.regional_channels,
        {"vectors": random_states(4, EXAMPLES, 3, LENGTH, WIDTH), "regions": REGIONS},
    ),
    "terminal_adjoint": Call(
        lambda terminal_loss, state, grid: adjoint.terminal_adjoint(
            terminal_loss, (state, None), grid
        ),
        {"terminal_loss": total, "state": STATES, "grid": TOKENS},
    ),
    "pull_back": Call(
        eqx.filter_jit(adjoint.pull_back),
        {"field": FIELD, "x": STATES, "covector": STATES, "grid": TOKENS},
    ),
    "cone_mass": Call(
        adjoint.cone_mass, {"attention": FIELD.attention, "x": STATES, "grid": TOKENS}
    ),
    "interaction_orders": Call(
        unlabelled(adjoint.interaction_orders),
        {
            "flow": FLOW,
            "terminal_loss": total,
            "x": STATES,
            "grid": TOKENS,
            "highest": 1,
        },
    ),
    "attention_hops": Call(
        unlabelled(adjoint.attention_hops),
        {
            "flow": FLOW,
            "terminal_loss": total,
            "x": STATES,
            "grid": TOKENS,
            "highest": 1,
        },
    ),
    "mask_gradient": Call(
        unlabelled(adjoint.mask_gradient),
        {"flow": FLOW, "terminal_loss": total, "x": STATES, "grid": TOKENS},
    ),
    "mask_path": Call(
        unlabelled(adjoint.mask_path),
        {
            "flow": FLOW,
            "terminal_loss": total,
            "x": STATES,
            "grid": TOKENS,
            "chosen": jax.device_put(np.arange(LENGTH) < 2),
            "nodes": 1,
            "least": 0.1,
        },
        refuses={"least": NO_SHARE},
        hides_nan="least",
    ),
    "one_hop_by_head": Call(
        unlabelled(adjoint.one_hop_by_head),
        {
            "flow": FLOW,
            "terminal_loss": total,
            "x": STATES,
            "grid": TOKENS,
            "depth": 0,
        },
    ),
    "query_masses": Call(adjoint.query_masses, {"query_weights": ASKED, "regions": REGIONS}),
    "readout_support": Call(
        adjoint.readout_support,
        {"query_weights": ASKED, "radius": 1},
        accepts={"query_weights": "rows"},
    ),
    "continuous_adjoint": Call(
        unlabelled(lim.continuous_adjoint),
        {
            "flow": CONTINUOUS,
            "terminal_loss": total,
            "x": STATES,
            "grid": TOKENS,
            "times": np.linspace(0, 1, 2),
        },
    ),
    "recency_survival": Call(
        adjoint.recency_survival,
        {
            "terminal": VECTORS,
            "initial": VECTORS,
            "amplification": positive(9, EXAMPLES),
            "regions": REGIONS,
        },
    ),
    "energy_stability": Call(
        adjoint.energy_stability,
        {
            "terminal": VECTORS,
            "initial": VECTORS,
            "amplification": positive(9, EXAMPLES),
            "regions": REGIONS,
        },
    ),
    "right_biased_queries": Call(
        adjoint.right_biased_queries,
        {
            "query_weights": ASKED,
            "residual_energies": PROFILE,
            "terminal": VECTORS,
            "regions": REGIONS,
        },
    ),
    "interaction_norms": Call(
        lambda flow, x, grid, key, steps, failure: adjoint.interaction_norms(
            flow, x, grid, key=key, steps=steps, failure=failure
        ),
        {
            "flow": FLOW,
            "x": STATES,
            "grid": TOKENS,
            "key": KEY,
            "steps": 2,
            "failure": 0.1,
        },
    ),
    "generator_norms": Call(
        lambda flow, x, grid, times, key: adjoint.generator_norms(
            flow, x, grid, times, key=key, steps=2
        ),
        {
            "flow": STEPPED,
            "x": STATES,
            "grid": TOKENS,
            "times": np.linspace(0, 1, 2),
            "key": KEY,
        },
    ),
    "readout_residual_energies": Call(
        adjoint.readout_residual_energies,
        {
            "readout": READOUT,
            "states": VECTORS,
            "targets": TARGETS,
            "regions": REGIONS,
        },
        accepts={"readout": "anything"},
    ),
    # Observability.
    "sample_mean": Call(
        probes.sample_mean, {"samples": STATES}, accepts={"samples": "batched, rows"}
    ),
    "gaussian_probes": Call(probes.gaussian_probes, {"count": 2, "width": WIDTH, "key": KEY}),
    "observability_gramians": Call(
        observability.observability_gramians,
        {"observations": observations, "x": STATES, "step": 0.5},
        accepts={"x": "rows"},
    ),
    "condition_numbers": Call(
        observability.condition_numbers, {"gramians": GRAMIANS}, accepts={"gramians": "rows"}
    ),
    "gramian_traces": Call(
        observability.gramian_traces, {"gramians": GRAMIANS}, accepts={"gramians": "rows"}
    ),
    "probed_traces": Call(
        observability.probed_traces,
        {"gramians": GRAMIANS, "probes": random_states(4, LENGTH, WIDTH)},
        accepts={"gramians": "rows", "probes": "rows"},
    ),
    "gaussian_probe_moments": Call(
        observability.gaussian_probe_moments, {"gramians": GRAMIANS, "grid": TOKENS, "probes": 2}
    ),
    # Training.
    "influence_discrepancy": Call(
        training.influence_discrepancy, {"density": PROFILE, "target": 1.0, "grid": TOKENS}
    ),
    **{
        name: Call(
            getattr(training, name),
            {"density": PROFILE, "target": 1.0, "weights": PROFILE},
            refuses={"weights": {"negative": -np.asarray(PROFILE)}},
        )
        for name in ("squared_discrepancy", "cross_entropy_discrepancy")
    },
    "balanced_density": Call(
        training.balanced_density,
        {"energies": ENERGIES, "weights": PROFILE, "epsilon": 1e-8},
        accepts={"energies": "rows"},
        refuses={
            "weights": {"negative": -np.asarray(PROFILE)},
            "epsilon": NEGATIVE,
        },
    ),
    "crossed_density": Call(
        training.crossed_density,
        {"energies": ENERGIES, "weights": PROFILE, "epsilon": 1e-8},
        accepts={"energies": "rows"},
        refuses={
            "weights": {"negative": -np.asarray(PROFILE)},
            "epsilon": NEGATIVE,
        },
    ),
    "ratio_bias": Call(
        training.ratio_bias,
        {"energies": positive(8, 2, LENGTH), "grid": TOKENS, "epsilon": 1e-8},
        refuses={"epsilon": NEGATIVE},
    ),
    "raised_multiplier": Call(
        training.raised_multiplier,
        {
            "multiplier": 1.0,
            "value": 0.5,
            "limit": 0.25,
            "stiffness": 4.0,
        },
        refuses={
            "multiplier": NEGATIVE,
            "stiffness": NOT_POSITIVE,
        },
    ),
    "influence_penalty": Call(
        lambda loss, x, grid, target, epsilon: training.influence_penalty(
            loss, None, (x, None), grid, training.Penalty(target, epsilon=epsilon)
        ),
        {
            "loss": squares,
            "x": VECTORS,
            "grid": TOKENS,
            "target": 1.0,
            "epsilon": 1e-8,
        },
        refuses={"epsilon": NEGATIVE},
    ),
    "pooled influence_penalty": Call(
        lambda pools, target, estimate: training.influence_penalty(
            squares,
            None,
            (VECTORS, None),
            TOKENS,
            training.Penalty(target, estimate=estimate, pools=pools),
        ),
        {
            "pools": ENERGIES,
            "target": 1.0,
            "estimate": training.balanced_density,
        },
        accepts={"pools": "none"},
    ),
    "risk_and_penalty": Call(
        eqx.filter_jit(
            lambda loss, x, grid, memory: training.risk_and_penalty(
                loss, None, (x, None), grid, previous=PROFILE, memory=memory
            )
        ),
        {"loss": squares, "x": VECTORS, "grid": TOKENS, "memory": 0.5},
        refuses={"memory": NO_SHARE},
        hides_nan="memory",
    ),
    "trace_penalty": Call(training.trace_penalty, {"traces": PROFILE, "grid": TOKENS}),
    "gramian_penalty": Call(training.gramian_penalty, {"gramians": GRAMIANS, "grid": TOKENS}),
    "crossfit_penalty": Call(
        training.crossfit_penalty, {"first": PROFILE, "second": PROFILE, "grid": TOKENS}
    ),
    "shift_bound": Call(
        training.shift_bound,
        {"strength": 0.5, "slope": 2.0, "convexity": 4.0},
        refuses={"strength": NEGATIVE, "slope": NEGATIVE},
    ),
    "reweight_positions": Call(
        training.reweight_positions,
        {
            "weights": PROFILE,
            "density": PROFILE,
            "target": 1.0,
            "grid": TOKENS,
            "rate": 0.5,
            "smallest": 0.1,
            "largest": 8.0,
        },
    ),
    "importance_weights": Call(
        training.importance_weights, {"deployed": PROFILE, "trained": ASKED, "grid": TOKENS}
    ),
    # Tasks.
    "record_weights": Call(
        tasks.record_weights,
        {
            "records": jax.device_put(np.array([1, 0, -1])),
            "cells": PROFILE,
            "count": 2,
        },
    ),
    "decodes_greedily": Call(
        tasks.decodes_greedily,
        {
            "logits": LOGITS,
            "targets": jax.device_put(np.array([3, 0, 2])),
            "weights": ASKED,
        },
    ),
    # Studies.
}
