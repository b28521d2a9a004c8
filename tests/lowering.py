"""Export the library's jobs for platforms that are not there, and print what is in the programs.

``EQX_ON_ERROR=off python lowering.py``: without checks, whose callbacks belong to one platform.
Each is traced once, in small tiles, for any number of examples, and lowered once, for both
platforms. A line for each job and platform: how many calls of the fused kernel its program has,
forward and backward. Influence is that of a
network in half precision, as where the kernel is at hand.
"""

import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import export
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import AxisType
from reference import publishers
from reference.light import without_norm
from reference.networks import randomised

import lim_jax as lim
from lim_jax import adjoint, models
from lim_jax.adjoint.cone import cone_mass
from lim_jax.loss import teacher_forcing
from lim_jax.network import CausalAttention, attention, cudnn_attention, tiles
from lim_jax.network.ring import RingAttention
from lim_jax.observability.gramian import ObservedTokens, observability_gramians
from lim_jax.training.density_objectives import balanced_objective
from lim_jax.training.dynamics import density_dynamics

LENGTH = 12
WIDTH = 16
HEADS = 2
CLASSES = 3
EXAMPLES = 2
PLACES = 8
KERNELS = [
    export.DisabledSafetyCheck.custom_call(f"__cudnn$fmhaSoftmax{way}") for way in ("", "Backward")
]
FORWARD = "@__cudnn$fmhaSoftmax("
BACKWARD = "@__cudnn$fmhaSoftmaxBackward("


def network(attend=attention.causal_attention):
    """Two layers and a readout, and a batch of states and labels.

    Without norms, which lower as any sum does: with them the programs are a third longer.
    """
    keys = jax.random.split(jax.random.key(0), 2)
    make = jax.vmap(lambda key: CausalAttention.init(WIDTH, heads=HEADS, attend=attend, key=key))
    flow = lim.ResidualFlow(without_norm(make(keys)))
    batch = jnp.zeros((EXAMPLES, LENGTH, WIDTH)), jnp.zeros((EXAMPLES, LENGTH, CLASSES))
    return (flow, lim.LinearReadout.init(WIDTH, CLASSES, key=keys[0])), batch


def grid(x):
    return lim.token_grid(LENGTH, x.dtype)


def terminal_loss(model):
    return lambda state, y: lim.cross_entropy(model[1](state, grid(state)), y, grid(state))


def loss(model, x, y):
    return terminal_loss(model)(model[0](x, grid(x)), y)


def influence(model, batch):
    return lim.influence(loss, model, batch, grid(batch[0])).energy


def algorithm_1(model, batch):
    on = grid(batch[0])
    return jax.grad(lambda m: balanced_objective(loss, m, batch, on, strength=1.0))(model)


def first_example(batch):
    return jax.tree.map(lambda leaf: leaf[0], batch)


def channels(model, batch):
    x, y = first_example(batch)
    return adjoint.channels(model[0], terminal_loss(model), (x, y), grid(x)).vectors


def hops(model, batch):
    x, y = first_example(batch)
    return adjoint.attention_hops(model[0], terminal_loss(model), (x, y), grid(x), 2)[0]


def cone(model, batch):
    first = jax.tree.map(lambda leaf: leaf[0], model[0].layers)
    return cone_mass(first, batch[0][0], grid(batch[0]))


def gramians(model, batch):
    observed = ObservedTokens(model[0], grid(batch[0]), jnp.array([LENGTH - 1]))
    return observability_gramians(observed, batch[0][0], 1.0)


JOBS = {
    "algorithm 1": algorithm_1,
    "mdot": lambda model, batch: density_dynamics(loss, model, batch, grid(batch[0])).rate,
    "channels": channels,
    "hops": hops,
    "cone mass": cone,
    "gramians": gramians,
}


def open_batch(batch):
    """The shapes of as many examples as there may be."""
    (examples,) = export.symbolic_shape("examples")
    sizes = {EXAMPLES: examples}
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((sizes[x.shape[0]], *x.shape[1:]), x.dtype), batch
    )


def say(name, job, model, batch, *targets):
    """Trace once, lower for each target: for both platforms at once, if no others are given."""
    traced = jax.jit(job)
    batch = open_batch(batch)
    for platforms in targets or (("cuda", "tpu"),):
        exported = export.export(traced, platforms=platforms, disabled_checks=KERNELS)
        text = exported(model, batch).mlir_module()
        for platform in platforms:
            print(name, platform, text.count(FORWARD), text.count(BACKWARD), sep=",", flush=True)


def say_numbers():
    """Whether the program of any number of examples gives what the library gives of two."""
    model, (x, y) = randomised(jax.eval_shape(network), 0)
    batch = x, jnp.square(y)
    exported = export.export(jax.jit(influence))(model, open_batch(batch))
    alike = jnp.allclose(exported.call(model, batch), influence(model, batch))
    print("numbers", "cpu", int(alike), int(alike), sep=",")


def profile():
    """The influence of a published network's contexts, of token numbers, in half precision."""
    with tempfile.TemporaryDirectory() as folder:
        path = publishers.write(Path(folder), publishers.CONFIGS["gpt2"])
        model = models.load(path, storage_dtype="bfloat16", compute="bfloat16")
    arrays, static = eqx.partition(model, eqx.is_array)

    def job(arrays, windows):
        model = eqx.combine(arrays, static)
        batch = jax.vmap(lambda ids: model.example(ids, teacher_forcing(PLACES)))(windows)
        return lim.influence(models.CausalLM.loss, model, batch, lim.token_grid(PLACES)).energy

    say("profile", job, arrays, jnp.zeros((EXAMPLES, PLACES + 1), int))


def ring():
    mesh = jax.make_mesh((1,), ("context",), axis_types=(AxisType.Auto,))
    say("ring", influence, *jax.eval_shape(lambda: network(RingAttention(mesh, "context"))))


def with_cudnn():
    """As on a machine whose card and library are there."""
    cudnn.check_cudnn_version = lambda: 91300
    cudnn.check_compute_capability = lambda *_: True
    cudnn_attention._capability = lambda: 9.0
    single = jax.eval_shape(network)
    half = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), single)
    say("influence", influence, *half, ("cuda",), ("tpu", "cpu"))


if __name__ == "__main__":
    tiles.TILE = tiles.WIDE = attention.DENSE = 4
    shapes = jax.eval_shape(network)
    for name, job in JOBS.items():
        say(name, job, *shapes)
    profile()
    ring()
    say_numbers()
    with_cudnn()
