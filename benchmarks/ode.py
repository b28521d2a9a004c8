"""The continuous depth flow: diffrax against our recursion, and against torchdiffeq.

First diffrax's Euler method on the steps of a 12-layer recursion, forward and gradient, on the same
weights. Then one autonomous field to depth time 1 by Dormand and Prince's method at equal
tolerances, ours and torchdiffeq's, numbers compared first. Pin one thread, for example
``taskset -c 1 python benchmarks/ode.py``; the peer comes by
``pip install torch==2.13.0 torchdiffeq==0.2.5``.
"""

import os

# Before JAX starts: one thread, as for the peer.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import numpy as np
import peer_torch
import record
import torch
import torch.nn.functional as F
import tyro
from torchdiffeq import odeint
from tqdm import tqdm

import lim_jax as lim
from lim_jax.network.controls import LayerwiseControl

RESULTS = record.RESULTS / "ode.json"
LENGTH = 256
WIDTH = 64
HEADS = 4
DEPTH = 12
GRID = lim.token_grid(LENGTH, "float32")
TOLERANCE = 1e-4


def layers(depth: int) -> lim.TransformerField:
    """Draw fields with a leading layer axis."""
    keys = jax.random.split(jax.random.key(0), depth)
    return jax.vmap(lambda key: lim.TransformerField.init(WIDTH, heads=HEADS, key=key))(keys)


def states() -> jax.Array:
    """Draw the states of one example."""
    return jax.random.normal(jax.random.key(1), (LENGTH, WIDTH))


def medians(jobs: dict[str, Callable[[], object]], repeats: int, label: str) -> dict[str, float]:
    """Time each job by turns; return the medians in seconds."""
    times = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in tqdm(range(repeats), desc=label, leave=False):
        for name, job in jobs.items():
            times[name].append(record.seconds(job))
    return {name: float(np.median(values)) for name, values in times.items()}


def ready(job: Callable, *arguments: object) -> Callable[[], object]:
    """Return a compiled job, to be called with nothing."""
    compiled = record.compile_job(job, *arguments)
    return lambda: jax.block_until_ready(jax.tree.leaves(compiled(*arguments)))


def euler_row(kind: str, repeats: int) -> dict:
    """Time Diffrax's Euler steps beside the recursion, forward or the gradient of a sum."""
    fields = layers(DEPTH)
    x = states()
    flows = {
        "recursion": lim.ResidualFlow(fields),
        "diffrax": lim.ContinuousFlow(
            LayerwiseControl(fields),
            solver=diffrax.Euler(),
            stepsize_controller=diffrax.ConstantStepSize(),
            first_step=1 / DEPTH,
            max_steps=DEPTH,
            # Every step is kept, as by the recursion.
            adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints=DEPTH),
        ),
    }
    forward = {name: eqx.filter_jit(lambda flow, x: flow(x, GRID)) for name in flows}
    ends = {name: np.asarray(forward[name](flow, x)) for name, flow in flows.items()}
    np.testing.assert_allclose(ends["diffrax"], ends["recursion"], rtol=0, atol=1e-4)

    def gradient(flow: eqx.Module, x: jax.Array) -> eqx.Module:
        """Compute the gradient in the weights."""
        return eqx.filter_grad(lambda flow: (flow(x, GRID) ** 2).sum())(flow)

    job = {"forward": lambda flow, x: flow(x, GRID), "gradient": gradient}[kind]
    seconds = medians({n: ready(job, f, x) for n, f in flows.items()}, repeats, f"Euler {kind}")
    ratio = seconds["diffrax"] / seconds["recursion"]
    return {"job": f"Euler, {DEPTH} steps, {kind}", "seconds": seconds, "ratio": ratio}


def torch_weights(field: lim.TransformerField) -> peer_torch.Parameters:
    """Return the arrays of one field for the peer."""
    attention = field.attention
    network: Any = field.feed_forward
    arrays = {name: getattr(attention, name) for name in ("query", "key", "value", "output")}
    names = ("inner", "inner_bias", "outer", "outer_bias")
    arrays.update({name: getattr(network, name) for name in names})
    for index, norm in (("1", attention.norm), ("2", network.norm)):
        arrays.update({f"scale{index}": norm.scale, f"shift{index}": norm.shift})
    arrays = {name: np.asarray(value)[None] for name, value in arrays.items()}
    tensors = peer_torch.parameters(arrays | {"readout": np.zeros((WIDTH, 1), np.float32)})
    return {name: value[0] for name, value in tensors.items() if name != "readout"}


def adaptive_row(kind: str, repeats: int) -> dict:
    """Time Dormand and Prince's method at equal tolerances, ours and torchdiffeq's."""
    field = jax.tree.map(lambda leaf: leaf[0], layers(1))
    x = states()
    flow = lim.ContinuousFlow(
        lambda time: field,
        solver=diffrax.Dopri5(),
        stepsize_controller=diffrax.PIDController(TOLERANCE, TOLERANCE),
        max_steps=64,
    )
    weights = torch_weights(field)
    start = torch.from_numpy(np.array(x))

    def torch_field(time: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Compute PyTorch's vector field."""
        normed = F.layer_norm(state, (WIDTH,), weights["scale2"], weights["shift2"])
        hidden = F.gelu(normed @ weights["inner"].T + weights["inner_bias"], approximate="tanh")
        batch = state[None]
        attended = peer_torch.attention(weights, batch, batch, HEADS)[0]
        return attended + hidden @ weights["outer"].T + weights["outer_bias"]

    def torch_end(state: torch.Tensor) -> torch.Tensor:
        """Solve to depth time 1 by torchdiffeq."""
        times = torch.tensor([0.0, 1.0])
        return odeint(torch_field, state, times, rtol=TOLERANCE, atol=TOLERANCE, method="dopri5")[1]

    def torch_gradient() -> torch.Tensor:
        """Compute PyTorch's gradient in the weights."""
        state = start.clone().requires_grad_(True)
        return torch.autograd.grad((torch_end(state) ** 2).sum(), state)[0]

    def torch_forward() -> torch.Tensor:
        """Solve without keeping what a gradient needs."""
        with torch.no_grad():
            return torch_end(start)

    def gradient(x: jax.Array) -> jax.Array:
        """Compute our gradient in the weights."""
        return jax.grad(lambda x: (flow(x, GRID) ** 2).sum())(x)

    ours = {"forward": lambda x: flow(x, GRID), "gradient": gradient}[kind]
    theirs = {"forward": torch_forward, "gradient": torch_gradient}[kind]
    actual = np.asarray(jax.jit(ours)(x))
    expected = theirs().numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-3 * np.abs(expected).max())
    jobs = {"lim_jax": ready(ours, x), "torchdiffeq": theirs}
    seconds = medians(jobs, repeats, f"adaptive {kind}")
    ratio = seconds["torchdiffeq"] / seconds["lim_jax"]
    return {"job": f"Dormand-Prince, {kind}", "seconds": seconds, "ratio": ratio}


def main(repeats: int = 9) -> None:
    """Print and keep a table.

    Args:
        repeats: Alternated repeats.
    """
    torch.set_num_threads(1)
    for make in (euler_row, adaptive_row):
        for kind in ("forward", "gradient"):
            row = make(kind, repeats)
            times = ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in row["seconds"].items())
            print(f"{row['job']}: {times}, ratio {row['ratio']:.2f}", flush=True)
            record.keep(RESULTS, [row], ("job",), torch=torch.__version__)


if __name__ == "__main__":
    tyro.cli(main)
