"""What XLA plans for one of several devices: the tables of docs/several_devices.md.

``python benchmarks/several_devices.py`` compiles for virtual devices and runs nothing; it takes
some two minutes of one core. First a network of attention and feed-forward layers whose context
lies over devices, gathered by the partitioner or passed round a ring. Then a random Llama that is
read onto a mesh, whose one axis shards weights and whose other shards the context.
"""

import os

# Before JAX starts.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jobs import VOCABULARY, Size, network, our_jobs
from real_model import last_token_target
from record import compile_job
from sizes import write_network

import lim_jax as lim
from lim_jax.network import RingAttention

SIZE = Size(length=8192, width=32, heads=2, depth=4, batch=1)
DEVICES = (1, 2, 4, 8)
JOBS = {"influence": "influence", "Algorithm 1": "algorithm 1"}
TOKENS = 32_768  # of the context that the Llama reads
MESHES = ((1, 1), (1, 2), (1, 8), (2, 4), (4, 1))  # devices for the weights, for the context


def mesh_of(sizes: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    """Return a mesh of the first devices."""
    devices = jax.devices()[: int(np.prod(sizes))]
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes), devices=devices)


def temporary(job: Callable, *arguments: Any) -> float:
    """Return the MiB of temporary memory that a device needs for a job."""
    compiled = compile_job(job, *arguments).compiled
    return compiled.memory_analysis().temp_size_in_bytes / 2**20


def with_ring(model: tuple, mesh: Mesh) -> tuple:
    """Return the network of `jobs` with keys and values that go round a ring."""
    attention = dataclasses.replace(
        model[0].layers.attention, attend=RingAttention(mesh, "context")
    )
    return eqx.tree_at(lambda model: model[0].layers.attention, model, attention)


def context_rows() -> list[list[str]]:
    """Return a row for each number of devices that share one context."""
    model, x, labels = network(SIZE)
    batch = x, jax.nn.one_hot(labels, VOCABULARY)
    rows = []
    for devices in DEVICES:
        mesh = mesh_of((devices,), ("context",))
        models = jax.device_put(
            (model, with_ring(model, mesh)), NamedSharding(mesh, PartitionSpec())
        )
        shared = jax.device_put(batch, NamedSharding(mesh, PartitionSpec(None, "context")))
        jobs = our_jobs(SIZE.length)
        sizes = [temporary(jobs[job], each, shared) for job in JOBS.values() for each in models]
        rows.append([str(devices), *(f"{size:.1f}" for size in sizes)])
    return rows


def energies(model: lim.models.CausalLM, ids: jax.Array) -> jax.Array:
    """Return the energy of each position under a last-token loss."""
    slope = jax.grad(model.loss)(model.embed(ids), last_token_target(ids))
    return jnp.sum(slope**2, axis=1)


def network_rows(folder: Path) -> list[list[str]]:
    """Return a row for each mesh that shares the Llama of a folder and its context."""
    rows = []
    for sizes in MESHES:
        mesh = mesh_of(sizes, ("model", "context"))
        model = lim.models.load(folder, mesh=mesh)
        ids = jax.device_put(
            np.zeros(TOKENS, np.int32), NamedSharding(mesh, PartitionSpec("context"))
        )
        arrays = jax.tree.leaves(eqx.filter(model, eqx.is_array))
        weights = sum(array.addressable_shards[0].data.nbytes for array in arrays) / 2**20
        memory = temporary(energies, model, ids)
        rows.append([" x ".join(map(str, sizes)), f"{weights:.2f}", f"{memory:.3g}"])
    return rows


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    for cells in (header, ["---"] * len(header), *rows):
        print("|", " | ".join(cells), "|", flush=True)


def main() -> None:
    """Print both tables."""
    names = [f"{job}, {how}" for job in JOBS for how in ("gathered", "ring")]
    print_table(["devices", *names], context_rows())
    print()
    with tempfile.TemporaryDirectory() as temporary_folder:
        folder = write_network(Path(temporary_folder) / "llama", "1m")
        print_table(["model x context", "weights", "temporary memory"], network_rows(folder))


if __name__ == "__main__":
    main()
