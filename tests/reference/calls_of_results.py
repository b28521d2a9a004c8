# pyright: reportArgumentType=false
"""Right calls of results, tables, figures, costs and losses.

Most are dear where they are right, and refuse what is malformed before anything is computed.
"""

import jax
import numpy as np
import optax
from reference import made_results as made
from reference.networks import byte_network, layer_of, random_flow
from reference.sample_calls import EMPTY, Call

import lim_jax as lim
from lim_jax import (
    adjoint,
    attribution,
    checkpoints,
    cost,
    density,
    limits,
    loss,
    models,
    network,
    observability,
    plots,
    prompts,
    results,
    tasks,
    training,
)
from lim_jax.checkpoints.text import ChatTemplate
from lim_jax.cost.job import Cost
from lim_jax.limits.rows import Curve
from lim_jax.loss.losses import Slices
from lim_jax.prompts.documents import RenderedPrompt
from lim_jax.tasks.prompts import Prompt

LENGTH = 3
WIDTH = 2
KEY = jax.random.key(0)
TOKENS = lim.token_grid(LENGTH)
REGIONS = lim.boundary_regions(TOKENS, 0.3)


def numbers(*shape):
    return jax.device_put(np.exp(np.random.default_rng(0).standard_normal(shape)))


def observations(x):
    return (x**2).reshape(1, -1)


def squares(params, x, y):
    return (x**2).sum()


def weighted_squares(weights):
    return lambda params, x, y: weights @ (params * x[:, 0]) ** 2


FLOW = random_flow(width=WIDTH, heads=1)
FIELD = layer_of(FLOW)
ONE = numbers()
VECTORS = numbers(2, LENGTH, WIDTH)
PROFILE = numbers(LENGTH)
STATES = numbers(LENGTH, WIDTH)
SLICES = Slices(
    lambda start: jax.lax.dynamic_slice_in_dim(jax.device_put(STATES), start, 1, axis=1),
    1,
    WIDTH,
    "float64",
)
FUTURES = jax.device_put(1 - np.arange(LENGTH) / LENGTH)
CONE = adjoint.JointCone(PROFILE, PROFILE, PROFILE, FUTURES, numbers())
CHANNELS = np.asarray(numbers(2, 3, 3, 4))
REGIONAL = adjoint.RegionalChannels(
    jax.device_put(np.einsum("nbad,nbcd->nbac", CHANNELS, CHANNELS))
)
BOUNDS = adjoint.ChannelBounds(numbers(3, 3), numbers(), numbers(), numbers(3, 3))
EXPLAINED = made.explanation()
INFLUENCE = made.influence()
PAIRED = np.array([[0, 1], [2, 0]])
SQUARE = np.array([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
DOCUMENTS = prompts.named_documents([prompts.Document("", f"Text {n}.") for n in range(3)])
LINE = prompts.Line("here", documents=DOCUMENTS, question="What?", answer=" it")
TWO_WAY = results.two_way_shares(
    np.exp(np.sin(np.arange(18.0))).reshape(2, 3, 3), np.stack([SQUARE] * 2)
)
MEASURED = made.measured_contexts()
COMPARED = made.compared_contexts()
RECORD = {
    "accuracy": [[[0.5, 0.25, 0.5]] * 2],
    "risk": [[1.0, 2.0]],
    "answer_lim": [0.5, 0.75],
    "operations": 10,
    "seconds_per_step": 1.0,
    "steps": [3],
}
PROMPT = Prompt("a=1 b=2 a=", "1", ((0, 3), (4, 7)), (0,))
ROWS = made.ROWS
DOCUMENTS = [prompts.Document("a", "b")]
SAID = models.LanguageModel(byte_network(64))
TEMPLATE = ChatTemplate("{{ messages[0].content }}", {})
TRACES = {"observations": observations, "x": STATES}
WHOLE = jax.device_put(np.array([0, 2]))
MODEL = {
    "vocabulary": 5,
    "length": 4,
    "width": 4,
    "heads": 2,
    "depth": 2,
    "key": KEY,
}


def gaussian_model(vocabulary, length, width, heads, depth, key):
    return models.gaussian_model(
        vocabulary, length, width=width, heads=heads, depth=depth, key=key
    ).embedding


OF_RESULTS = {
    # Certificates and channels.
    "cone_bounds": Call(adjoint.cone_bounds, {"cone": CONE, "regions": REGIONS}),
    "primacy_noncancellation": Call(
        adjoint.primacy_noncancellation, {"cone": CONE, "regions": REGIONS}
    ),
    "double_deficit": Call(adjoint.double_deficit, {"regional": REGIONAL, "bounds": BOUNDS}),
    "exact_characterisation": Call(adjoint.exact_characterisation, {"regional": REGIONAL}),
    "Channels.at_depth": Call(made.channels().at_depth, {"depth": 1}),
    "certificate_table": Call(adjoint.certificate_table, {"certificates": made.CERTIFICATES}),
    # Cost.
    "require_fits": Call(
        cost.require_fits,
        {"cost": Cost(0, 1, 1, 1), "available": 2**30},
        accepts={"available": "float, negative"},
    ),
    "sweep_storage": Call(
        cost.sweep_storage,
        {
            "depth": 2,
            "length": LENGTH,
            "width": WIDTH,
            "heads": 1,
            "checkpoints": [2],
        },
    ),
    # Grids.
    # Limits.
    # Models.
    "gaussian_model": Call(gaussian_model, MODEL),
    "byte_model": Call(
        lambda length, width, heads, depth, key: (
            models.byte_model(length, width=width, heads=heads, depth=depth, key=key).embedding
        ),
        {name: right for name, right in MODEL.items() if name != "vocabulary"},
    ),
    "sample_windows": Call(
        lambda text, length, count, key: models.sample_windows(text, length, count, key=key),
        {
            "text": jax.device_put(np.arange(9)),
            "length": 3,
            "count": 2,
            "key": KEY,
        },
    ),
    "standard_library_text": Call(models.standard_library_text, {"size": 10}),
    "models.load": Call(models.load, {"path": "no such file"}),
    "open": Call(models.open, {"path": "no such file"}),
    "open_checkpoint": Call(checkpoints.open_checkpoint, {"folder": "no such file"}),
    # Observability.
    "trace_products": Call(
        lambda observations, x, draws, positions, depth: observability.trace_products(
            observations, x, draws, positions, depth=depth
        ),
        TRACES
        | {
            "x": STATES,
            "draws": 2,
            "positions": WHOLE,
            "depth": 3,
        },
        accepts={"x": "rows", "positions": "none"},
        hides_nan="x",
    ),
    "accumulated_numbers": Call(
        observability.accumulated_numbers,
        TRACES | {"x": STATES, "draws": 2, "positions": WHOLE},
        accepts={"x": "rows", "positions": "none"},
        hides_nan="x",
    ),
    "probed_observability": Call(
        lambda observations, x, positions: observability.probed_observability(
            observations, x, 0.5, numbers(1, WIDTH), positions
        ),
        TRACES | {"positions": WHOLE},
        accepts={"x": "rows", "positions": "none"},
    ),
    # Plots.
    "convergence_rates": Call(plots.convergence_rates, {"rows": ROWS, "title": "t"}),
    "error_against_cost": Call(
        plots.error_against_cost, {"curves": [Curve("a", (1.0,), (1.0,))], "cost": "c"}
    ),
    "certificate_margins": Call(
        plots.certificate_margins, {"certificates": made.CERTIFICATES, "title": "t"}
    ),
    "channel_energies": Call(plots.channel_energies, {"result": EXPLAINED, "title": "t"}),
    "hop_energies": Call(plots.hop_energies, {"result": EXPLAINED, "title": "t"}),
    "cone_masses": Call(
        plots.cone_masses,
        {
            "masses": {"a": lim.probes.Estimate(PROFILE, PROFILE)},
            "regions": REGIONS,
            "title": "t",
        },
    ),
    "influence_profile": Call(plots.influence_profile, {"result": INFLUENCE, "title": "t"}),
    # Pages.
    # Results.
    "results.load": Call(results.load, {"path": "no such file"}),
    # Tasks.
    "encode": Call(
        tasks.encode, {"prompt": PROMPT, "tokenizer": None}, accepts={"tokenizer": "none"}
    ),
    "encode_text": Call(
        tasks.encode_text, {"text": "a", "tokenizer": None}, accepts={"tokenizer": "none"}
    ),
    # Training.
    "resumable": Call(
        lambda step, steps, every, checkpoint: training.resumable(
            step, PROFILE, steps, run="a run", every=every, checkpoint=checkpoint
        ),
        {
            "step": lambda state, index: (state, state),
            "steps": 1,
            "every": 1,
            "checkpoint": None,
        },
        accepts={"checkpoint": "none, string"},
    ),
    "reweighting_run": Call(
        lambda stage, measure, grid, updates, target, rate, weights, every, checkpoint: (
            training.reweighting_run(
                stage,
                measure,
                PROFILE,
                grid,
                updates,
                target=target,
                rate=rate,
                smallest=0.1,
                largest=8.0,
                weights=weights,
                every=every,
                checkpoint=checkpoint,
            )
        ),
        {
            "stage": lambda state, weights, index: (state, weights),
            "measure": lambda state, index: state,
            "grid": TOKENS,
            "updates": 1,
            "target": 1.0,
            "rate": 0.5,
            "weights": PROFILE,
            "every": 1,
            "checkpoint": None,
        },
        accepts={"weights": "none", "checkpoint": "none, string"},
    ),
    "parameter_shift": Call(
        training.parameter_shift,
        {
            "risk": np.sum,
            "penalty": np.sum,
            "params": PROFILE,
            "strength": 1.0,
            "tolerance": 1e-3,
        },
        accepts={"params": "anything"},
    ),
    # Fields and steps: what is not read here is read in the steps' own tests.
    **{
        name: Call(
            getattr(network, name),
            {"field": FIELD, "x": STATES, "grid": TOKENS, "increment": 0.5},
            hides_nan="x increment",
        )
        for name in ("heun", "rk4", "strang")
    },
    "push_forward": Call(
        adjoint.push_forward,
        {"field": FIELD, "x": STATES, "tangent": STATES, "grid": TOKENS},
        hides_nan="x tangent",
    ),
    "local_blocks": Call(
        adjoint.local_blocks, {"field": FIELD, "x": STATES, "grid": TOKENS}, hides_nan="x"
    ),
    "kernel_factors": Call(
        adjoint.kernel_factors,
        {"attention": FIELD.attention, "x": STATES, "grid": TOKENS},
        hides_nan="x",
    ),
    "splitting_remainders": Call(
        lambda flow, x, grid, key: adjoint.splitting_remainders(flow, x, grid, key=key),
        {"flow": FLOW, "x": STATES, "grid": TOKENS, "key": KEY},
        hides_nan="x",
    ),
    "linear_control": Call(
        network.linear_control, {"fields": FLOW.layers, "horizon": 1.0}, accepts={"fields": "array"}
    ),
    "trajectory_radius": Call(
        network.trajectory_radius,
        {
            "fields": FIELD,
            "x": STATES,
            "grid": TOKENS,
            "times": PROFILE,
        },
        accepts={"times": "anything"},
        hides_nan="x",
    ),
    "mean_square": Call(limits.mean_square, {"gap": PROFILE, "grid": TOKENS}, hides_nan="gap"),
    # Losses and penalties.
    "adjoint_energies": Call(
        lambda loss, x, grid: density.adjoint_energies(loss, None, (x, None), grid),
        {"loss": squares, "x": VECTORS, "grid": TOKENS},
        hides_nan="x",
    ),
    "margin_loss": Call(
        loss.margin_loss,
        {
            "logits": STATES,
            "targets": jax.device_put(np.array([0, 1, 0])),
            "query_weights": PROFILE / PROFILE.sum(),
        },
        hides_nan="logits query_weights",
    ),
    "own_margin_loss": Call(
        loss.own_margin_loss,
        {"logits": STATES, "query_weights": PROFILE / PROFILE.sum()},
        hides_nan="logits query_weights",
    ),
    "fourth_moments": Call(
        lambda loss, x, grid: training.fourth_moments(loss, ONE, (x, None), grid, ONE),
        {"loss": squares, "x": VECTORS, "grid": TOKENS},
        hides_nan="x",
    ),
    "sensitivity_norm": Call(
        lambda loss, x, grid, steps, key: training.sensitivity_norm(
            loss, ONE, (x, None), grid, steps=steps, key=key
        ),
        {
            "loss": squares,
            "x": VECTORS,
            "grid": TOKENS,
            "steps": 1,
            "key": KEY,
        },
        hides_nan="x",
    ),
    "density_dynamics": Call(
        lambda loss, x, grid: training.density_dynamics(loss, ONE, (x, None), grid),
        {"loss": squares, "x": VECTORS, "grid": TOKENS},
        hides_nan="x",
    ),
    "balanced_objective": Call(
        lambda loss, x, grid, strength: training.balanced_objective(
            loss, ONE, (x, None), grid, strength=strength
        ),
        {"loss": squares, "x": VECTORS, "grid": TOKENS, "strength": 1.0},
        hides_nan="x strength",
    ),
    "separate_gradients": Call(
        lambda loss, x, grid: training.separate_gradients(
            lambda losses, adjoints, options: losses.sum(), loss, ONE, (x, None), grid, None
        ),
        {"loss": squares, "x": VECTORS, "grid": TOKENS},
        hides_nan="x",
    ),
    "risk": Call(
        lambda loss, x: training.risk(loss, ONE, (x, None)),
        {"loss": squares, "x": VECTORS},
        accepts={"x": "anything"},
    ),
    "first_order_step": Call(
        training.first_order_step,
        {
            "weights": PROFILE,
            "density": PROFILE,
            "target": 1.0,
            "grid": TOKENS,
            "rate": 0.5,
        },
        hides_nan="weights density target rate",
    ),
    "response_map": Call(
        training.response_map,
        {
            "weighted_loss": weighted_squares,
            "params": PROFILE,
            "weights": PROFILE,
            "batch": (VECTORS, None),
            "grid": TOKENS,
            "optimiser": optax.sgd(0.1),
            "steps": 1,
        },
        accepts={"params": "anything", "batch": "anything"},
    ),
    "response": Call(
        training.response,
        {
            "stage": lambda w: w,
            "weights": PROFILE,
            "change": PROFILE,
            "regions": REGIONS,
        },
        hides_nan="weights change",
    ),
    # Counts and lists.
    # What is asked.
    "named_documents": Call(prompts.named_documents, {"documents": DOCUMENTS}),
    "document_prompt": Call(prompts.document_prompt, {"documents": DOCUMENTS, "question": "what"}),
    "chat_prompt": Call(
        prompts.chat_prompt, {"messages": [{"role": "user", "content": "a"}], "template": TEMPLATE}
    ),
    "ask": Call(
        lambda question, answer, **given: attribution.ask(SAID, question, DOCUMENTS, answer=answer),
        {"question": "Who?", "answer": "She"},
        accepts={"answer": "none"},
    ),
    "tokenize_context": Call(
        prompts.tokenize_context, {"prompt": RenderedPrompt("ab"), "answer": "c"}
    ),
    "tokenize_prompt": Call(prompts.tokenize_prompt, {"prompt": RenderedPrompt("ab")}),
    "loss.contrast_loss": Call(
        loss.contrast_loss,
        {
            "logits": STATES,
            "answer": jax.device_put(np.array([0, 1, 0])),
            "foil_logits": STATES,
            "foil": jax.device_put(np.array([1, 1, 0])),
        },
        hides_nan="logits foil_logits",
    ),
    # Tables and figures of results.
    "compare": Call(results.compare, {"first": INFLUENCE, "second": INFLUENCE}),
    "compare_contexts": Call(results.compare_contexts, {"first": MEASURED, "second": MEASURED}),
    "cyclic_orders": Call(
        prompts.cyclic_orders,
        {"documents": 3, "orders": 4, "seed": 0},
        accepts={"seed": "anything"},
    ),
    "shuffle_documents": Call(
        lambda line: prompts.shuffle_documents(line, SQUARE, None, "answer", 60).shares(
            [np.ones(53)] * 3
        ),
        {"line": LINE},
    ),
    "two_way_shares": Call(
        lambda shares, documents: results.two_way_shares(shares, documents)._replace(table=None),
        {"shares": numbers(2, 3, 3), "documents": np.stack([SQUARE] * 2)},
        accepts={"shares": "rows", "documents": "anything"},
    ),
    "two_way_table": Call(
        results.two_way_table,
        {"result": TWO_WAY, "names": ["a", "b", "c"]},
        accepts={"names": "list of strings"},
        refuses={"names": EMPTY},
    ),
}
