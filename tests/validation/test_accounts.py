"""What matters to trained networks, against its definitions with dense derivatives."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import drawn

from benchmarks.validation.accounts import evidence_record
from benchmarks.validation.retrieval import KeyValueTask
from benchmarks.validation.retrievers import (
    Setting,
    answer_batch,
    examples_of_every_place,
    new_retriever,
)
from lim_jax.adjoint import attention_hops
from lim_jax.grid import token_grid
from lim_jax.models import CausalLM

RECORDS = 3
SETTING = Setting(KeyValueTask(RECORDS, 5, 3), width=4, heads=1, depth=2, batch=2)


@pytest.mark.slow
def test_the_evidences_share_is_that_of_the_margins_gradient_and_its_hops_sum_to_one():
    """By seed, with the gold record's two places; what comes by no hop is nothing."""
    models = drawn(partial(new_retriever, SETTING), count=2)
    examples = examples_of_every_place(SETTING, 2, key=jax.random.key(1))
    record = evidence_record(SETTING, models, examples)
    ids, y = answer_batch(examples)

    @eqx.filter_jit
    @eqx.filter_vmap
    def slopes(model):
        return jax.vmap(lambda ids, y: jax.grad(model.margin_loss)(model.embed(ids), y))(ids, y)

    energies = (np.asarray(slopes(models)) ** 2).sum(axis=3)  # seeds, examples, places
    of_records = energies[:, :, :-1].reshape(2, -1, RECORDS, 2).sum(axis=3)
    gold = np.asarray(examples.gold)[:, 0]
    shares = of_records[:, np.arange(len(gold)), gold] / of_records.sum(axis=2)
    np.testing.assert_allclose(record["evidence"], shares.mean(axis=1), rtol=1e-8)
    hops = np.array(record["hops"])
    assert hops.shape == (2, 3)
    np.testing.assert_allclose(hops.sum(axis=1), 1)
    np.testing.assert_array_equal(hops[:, 0], 0)
    assert (hops[:, 1:] > 0).all()

    @eqx.filter_jit
    @eqx.filter_vmap
    def by_hop(model):
        def of_one(ids, y):
            example = (model.embed(ids), y)
            margin = partial(CausalLM.margin_loss.terminal, model)
            return attention_hops(model.flow, margin, example, grid, 2)[0]

        return jax.vmap(of_one)(ids, y)

    grid = token_grid(SETTING.task.length)
    parts = (np.asarray(by_hop(models)) ** 2).sum(axis=4)[..., :-1]  # seeds, examples, hops, places
    of_gold = parts.reshape(2, -1, 3, RECORDS, 2).sum(axis=4)[:, np.arange(len(gold)), :, gold]
    expected = of_gold / of_gold.sum(axis=2, keepdims=True)  # examples, seeds, hops
    np.testing.assert_allclose(hops, expected.mean(axis=0), rtol=1e-8)
    # One layer reaches its keys and values at once, and nothing else: the second adds nothing.
    of_first = jax.device_put(np.array([1.0, 0.0]))
    layers = jax.tree.map(
        lambda leaf: jnp.einsum("sl...,l->sl...", leaf, of_first), models.flow.layers
    )
    one_layer = eqx.tree_at(lambda model: model.flow.layers, models, layers)
    reached = evidence_record(SETTING, one_layer, examples)["hops"]
    np.testing.assert_allclose(reached, np.tile([0.0, 1.0, 0.0], (2, 1)), atol=1e-15)
