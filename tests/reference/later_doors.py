# pyright: reportArgumentType=false
"""Right calls of the rooms whose doors were opened last, by what must be refused before a trace.

Most are dear where they are right, and refuse what is malformed before anything is computed:
`tests/test_front_door.py` replaces one argument at a time.
"""

import jax
import numpy as np
import optax
from reference import made_results as made
from reference.hostile import (
    Free,
    Given,
    Known,
    Layers,
    Named,
    Real,
    Rows,
    Several,
    Shaped,
    Text,
    Texts,
    Thing,
    Unpoisoned,
    Unread,
    Whole,
    but,
    optional,
)
from reference.networks import byte_network, layer_of, random_flow

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

LENGTH, WIDTH = 3, 2
KEY = jax.random.key(0)
TOKENS = lim.token_grid(LENGTH)
REGIONS = lim.boundary_regions(TOKENS, 0.3)
ON, IN = Thing(TOKENS), Thing(REGIONS)


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
ONE, VECTORS = numbers(), numbers(2, LENGTH, WIDTH)
PROFILE, STATES = numbers(LENGTH), numbers(LENGTH, WIDTH)
SLICES = Slices(
    lambda start: jax.lax.dynamic_slice_in_dim(jax.device_put(STATES), start, 1, axis=1),
    1,
    WIDTH,
    "float64",
)
CONE = adjoint.JointCone(PROFILE, PROFILE, PROFILE, PROFILE, numbers())
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
    "accuracy": [[[0.5, 0.25, 0.5]] * 2], "risk": [[1.0, 2.0]], "answer_lim": [0.5, 0.75],
    "operations": 10, "seconds_per_step": 1.0, "steps": [3],
}  # fmt: skip
PROMPT = Prompt("a=1 b=2 a=", "1", ((0, 3), (4, 7)), (0,))
ROWS = made.ROWS
DOCUMENTS = [prompts.Document("a", "b")]
SAID = models.LanguageModel(byte_network(64))
TEMPLATE = ChatTemplate("{{ messages[0].content }}", {})
TRACES = {"observations": Thing(observations), "x": Free(STATES)}
WHOLE = jax.device_put(np.array([0, 2]))
MODEL = {
    "vocabulary": Known(5), "length": Known(4), "width": Known(4), "heads": Known(2),
    "depth": Known(2), "key": Thing(KEY),
}  # fmt: skip


def gaussian_model(vocabulary, length, width, heads, depth, key):
    return models.gaussian_model(
        vocabulary, length, width=width, heads=heads, depth=depth, key=key
    ).embedding


LATER = {
    # Certificates and channels.
    "cone_bounds": (adjoint.cone_bounds, {"cone": Thing(CONE), "regions": IN}),
    "primacy_noncancellation": (
        adjoint.primacy_noncancellation,
        {"cone": Thing(CONE), "regions": IN},
    ),
    "double_deficit": (
        adjoint.double_deficit,
        {"regional": Thing(REGIONAL), "bounds": Thing(BOUNDS)},
    ),
    "exact_characterisation": (adjoint.exact_characterisation, {"regional": Thing(REGIONAL)}),
    "Channels.at_depth": (made.channels().at_depth, {"depth": Known(1)}),
    "certificate_table": (adjoint.certificate_table, {"certificates": Several(made.CERTIFICATES)}),
    # Cost.
    "require_fits": (
        cost.require_fits,
        {"cost": Thing(Cost(0, 1, 1, 1)), "available": Real(2**30)},
    ),
    "sweep_storage": (
        cost.sweep_storage,
        {
            "depth": Known(2), "length": Known(LENGTH), "width": Known(WIDTH), "heads": Known(1),
            "checkpoints": Several([2]),
        },
    ),
    # Grids.
    # Limits.
    # Models.
    "gaussian_model": (gaussian_model, MODEL),
    "byte_model": (
        lambda length, width, heads, depth, key: models.byte_model(
            length, width=width, heads=heads, depth=depth, key=key
        ).embedding,
        {name: right for name, right in MODEL.items() if name != "vocabulary"},
    ),
    "sample_windows": (
        lambda text, length, count, key: models.sample_windows(text, length, count, key=key),
        {
            "text": Whole(jax.device_put(np.arange(9))), "length": Known(3), "count": Known(2),
            "key": Thing(KEY),
        },
    ),
    "standard_library_text": (models.standard_library_text, {"size": Known(10)}),
    "models.load": (models.load, {"path": Text("no such file")}),
    "open": (models.open, {"path": Text("no such file")}),
    "open_checkpoint": (checkpoints.open_checkpoint, {"folder": Text("no such file")}),
    # Observability.
    "trace_products": (
        lambda observations, x, draws, positions, depth: observability.trace_products(
            observations, x, draws, positions, depth=depth
        ),
        TRACES | {
            "x": Shaped(STATES), "draws": Known(2), "positions": optional(Whole(WHOLE)),
            "depth": Known(3),
        },
    ),
    "accumulated_numbers": (
        observability.accumulated_numbers,
        TRACES | {"x": Shaped(STATES), "draws": Known(2), "positions": optional(Whole(WHOLE))},
    ),
    "probed_observability": (
        lambda observations, x, positions: observability.probed_observability(
            observations, x, 0.5, numbers(1, WIDTH), positions
        ),
        TRACES | {"positions": optional(Whole(WHOLE))},
    ),
    # Plots.
    "convergence_rates": (plots.convergence_rates, {"rows": Several(ROWS), "title": Text("t")}),
    "error_against_cost": (
        plots.error_against_cost,
        {"curves": Several([Curve("a", (1.0,), (1.0,))]), "cost": Text("c")},
    ),
    "certificate_margins": (
        plots.certificate_margins,
        {"certificates": Several(made.CERTIFICATES), "title": Text("t")},
    ),
    "channel_energies": (plots.channel_energies, {"result": Thing(EXPLAINED), "title": Text("t")}),
    "hop_energies": (plots.hop_energies, {"result": Thing(EXPLAINED), "title": Text("t")}),
    "cone_masses": (
        plots.cone_masses,
        {
            "masses": Named({"a": lim.probes.Estimate(PROFILE, PROFILE)}), "regions": IN,
            "title": Text("t"),
        },
    ),
    "influence_profile": (
        plots.influence_profile,
        {"result": Thing(INFLUENCE), "title": Text("t")},
    ),
    # Pages.
    # Results.
    "results.load": (results.load, {"path": Text("no such file")}),
    # Tasks.
    "encode": (tasks.encode, {"prompt": Thing(PROMPT), "tokenizer": optional(Thing(None))}),
    "encode_text": (tasks.encode_text, {"text": Text("a"), "tokenizer": optional(Thing(None))}),
    # Training.
    "resumable": (
        lambda step, steps, every, checkpoint: training.resumable(
            step, PROFILE, steps, run="a run", every=every, checkpoint=checkpoint
        ),
        {
            "step": Thing(lambda state, index: (state, state)), "steps": Known(1),
            "every": Known(1), "checkpoint": optional(Text(None)),
        },
    ),
    "reweighting_run": (
        lambda stage, measure, grid, updates, target, rate, weights, every, checkpoint:
        training.reweighting_run(
            stage, measure, PROFILE, grid, updates, target=target, rate=rate, smallest=0.1,
            largest=8.0, weights=weights, every=every, checkpoint=checkpoint,
        ),
        {
            "stage": Thing(lambda state, weights, index: (state, weights)),
            "measure": Thing(lambda state, index: state), "grid": ON, "updates": Known(1),
            "target": Real(1.0), "rate": Real(0.5), "weights": optional(Rows(PROFILE)),
            "every": Known(1), "checkpoint": optional(Text(None)),
        },
    ),
    "parameter_shift": (
        training.parameter_shift,
        {
            "risk": Thing(np.sum), "penalty": Thing(np.sum), "params": Given(PROFILE),
            "strength": Real(1.0), "tolerance": Real(1e-3),
        },
    ),
    # Fields and steps: what is not read here is read in the steps' own tests.
    **{
        name: (
            getattr(network, name),
            {"field": Thing(FIELD), "x": Unread(STATES), "grid": ON, "increment": Unpoisoned(0.5)},
        )
        for name in ("heun", "rk4", "strang")
    },
    "push_forward": (
        adjoint.push_forward,
        {"field": Thing(FIELD), "x": Unread(STATES), "tangent": Unread(STATES), "grid": ON},
    ),
    "local_blocks": (
        adjoint.local_blocks,
        {"field": Thing(FIELD), "x": Unread(STATES), "grid": ON},
    ),
    "kernel_factors": (
        adjoint.kernel_factors,
        {"attention": Thing(FIELD.attention), "x": Unread(STATES), "grid": ON},
    ),
    "splitting_remainders": (
        lambda flow, x, grid, key: adjoint.splitting_remainders(flow, x, grid, key=key),
        {"flow": Thing(FLOW), "x": Unread(STATES), "grid": ON, "key": Thing(KEY)},
    ),
    "linear_control": (
        network.linear_control,
        {"fields": Layers(FLOW.layers), "horizon": Real(1.0)},
    ),
    "trajectory_radius": (
        network.trajectory_radius,
        {
            "fields": Thing(FIELD), "x": Unread(STATES), "grid": ON, "times": Given(PROFILE),
        },
    ),
    "mean_square": (limits.mean_square, {"gap": Unread(PROFILE), "grid": ON}),
    # Losses and penalties.
    "adjoint_energies": (
        lambda loss, x, grid: density.adjoint_energies(loss, None, (x, None), grid),
        {"loss": Thing(squares), "x": Unread(VECTORS), "grid": ON},
    ),
    "margin_loss": (
        loss.margin_loss,
        {
            "logits": Unread(STATES), "targets": Whole(jax.device_put(np.array([0, 1, 0]))),
            "query_weights": Unread(PROFILE / PROFILE.sum()),
        },
    ),
    "own_margin_loss": (
        loss.own_margin_loss,
        {"logits": Unread(STATES), "query_weights": Unread(PROFILE / PROFILE.sum())},
    ),
    "fourth_moments": (
        lambda loss, x, grid: training.fourth_moments(loss, ONE, (x, None), grid, ONE),
        {"loss": Thing(squares), "x": Unread(VECTORS), "grid": ON},
    ),
    "sensitivity_norm": (
        lambda loss, x, grid, steps, key: training.sensitivity_norm(
            loss, ONE, (x, None), grid, steps=steps, key=key
        ),
        {
            "loss": Thing(squares), "x": Unread(VECTORS), "grid": ON, "steps": Known(1),
            "key": Thing(KEY),
        },
    ),
    "density_dynamics": (
        lambda loss, x, grid: training.density_dynamics(loss, ONE, (x, None), grid),
        {"loss": Thing(squares), "x": Unread(VECTORS), "grid": ON},
    ),
    "balanced_objective": (
        lambda loss, x, grid, strength: training.balanced_objective(
            loss, ONE, (x, None), grid, strength=strength
        ),
        {"loss": Thing(squares), "x": Unread(VECTORS), "grid": ON, "strength": Unpoisoned(1.0)},
    ),
    "gradients_apart": (
        lambda loss, x, grid: training.gradients_apart(
            lambda losses, adjoints, options: losses.sum(), loss, ONE, (x, None), grid, None
        ),
        {"loss": Thing(squares), "x": Unread(VECTORS), "grid": ON},
    ),
    "risk": (
        lambda loss, x: training.risk(loss, ONE, (x, None)),
        {"loss": Thing(squares), "x": Given(VECTORS)},
    ),
    "first_order_step": (
        training.first_order_step,
        {
            "weights": Unread(PROFILE), "density": Unread(PROFILE), "target": Unpoisoned(1.0),
            "grid": ON, "rate": Unpoisoned(0.5),
        },
    ),
    "response_map": (
        training.response_map,
        {
            "weighted_loss": Thing(weighted_squares), "params": Given(PROFILE),
            "weights": Rows(PROFILE), "batch": Given((VECTORS, None)), "grid": ON,
            "optimiser": Thing(optax.sgd(0.1)), "steps": Known(1),
        },
    ),
    "response": (
        training.response,
        {
            "stage": Thing(lambda w: w), "weights": Unread(PROFILE), "change": Unread(PROFILE),
            "regions": IN,
        },
    ),
    # Counts and lists.
    # What is asked.
    "named_documents": (prompts.named_documents, {"documents": Several(DOCUMENTS)}),
    "document_prompt": (
        prompts.document_prompt,
        {"documents": Several(DOCUMENTS), "question": Text("what")},
    ),
    "chat_prompt": (
        prompts.chat_prompt,
        {"messages": Several([{"role": "user", "content": "a"}]), "template": Thing(TEMPLATE)},
    ),
    "ask": (
        lambda question, answer, **given: attribution.ask(SAID, question, DOCUMENTS, answer=answer),
        {"question": Text("Who?"), "answer": but(Text("She"), "none")},
    ),
    "context_of": (prompts.context_of, {"laid": Thing(RenderedPrompt("ab")), "answer": Text("c")}),
    "unanswered": (prompts.unanswered, {"laid": Thing(RenderedPrompt("ab"))}),
    "loss.contrast_loss": (
        loss.contrast_loss,
        {
            "logits": Unread(STATES), "answer": Whole(jax.device_put(np.array([0, 1, 0]))),
            "foil_logits": Unread(STATES), "foil": Whole(jax.device_put(np.array([1, 1, 0]))),
        },
    ),
    # Tables and figures of results.
    "compare": (
        results.compare,
        {"first": Thing(INFLUENCE), "second": Thing(INFLUENCE)},
    ),
    "compare_contexts": (
        results.compare_contexts,
        {"first": Thing(MEASURED), "second": Thing(MEASURED)},
    ),
    "cyclic_orders": (
        prompts.cyclic_orders,
        {"documents": Known(3), "orders": Known(4), "seed": Given(0)},
    ),
    "shuffled": (
        lambda line: prompts.shuffled(line, SQUARE, None, "answer", 60).shares(
            [np.ones(53)] * 3
        ),
        {"line": Thing(LINE)},
    ),
    "two_way_shares": (
        lambda shares, documents: results.two_way_shares(shares, documents)._replace(table=None),
        {"shares": Free(numbers(2, 3, 3)), "documents": Given(np.stack([SQUARE] * 2))},
    ),
    "two_way_table": (
        results.two_way_table,
        {"result": Thing(TWO_WAY), "names": Texts(["a", "b", "c"])},
    ),
}  # fmt: skip
