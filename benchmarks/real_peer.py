"""First and second order of a real network beside PyTorch: SmolLM2-135M-Instruct, one context.

``python benchmarks/real_peer.py`` (the extra ``parity`` brings torch and transformers) takes the
last-token loss of `real_model` and its gradient in the embedded context, or with
``--job "algorithm 1"`` the gradient of the balanced objective in all weights; here, at first order
with products remade and kept, and by transformers' Llama, which reads the same GGUF file by itself
and attends by its fastest: fused kernels, which have no double backward, or plain products.
``--precision bfloat16`` is our products in bfloat16, and PyTorch's whole network. All are pinned to
one core, then to two. They take turns, after their numbers are compared; times are medians, on one
core of the process's own time, which others' work hardly lengthens. MiB are those that a process of
its own needs for one call, beyond what it holds before: the weights. On an AMD processor a second
row has PyTorch's MKL allowed AVX-512 (`speed`). ``report.py`` writes the rows beside docs/speed.md.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import torch
import transformers
from jobs import KEEPING, OURS, STRENGTH
from real_model import context, fetch_weights, last_token_target
from record import RESULTS, build_allowing_library, keep, peak_memory, processor
from torch.nn.attention import SDPBackend, sdpa_kernel

import lim_jax as lim
from lim_jax.training.density_objectives import Penalty, balanced_objective

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
SIDES = {"gradient": (OURS, KEEPING, "torch"), "algorithm 1": (OURS, "torch")}
BOUNDS = {"float32": 1e-3, "bfloat16": 1.0}  # of differences, of the largest entry
Job = Callable[[], np.ndarray]


def our_job(file: Path, length: int, name: str, precision: str, remat: str = "full") -> Job:
    """Compile our job: a gradient in the context, or of Algorithm 1 in the last norm's scale."""
    model = lim.models.load(file, compute=precision)
    flow = dataclasses.replace(model.flow, remat=remat)
    model, ids = dataclasses.replace(model, flow=flow), context(model, length)

    @eqx.filter_jit
    def gradient(model: lim.models.CausalLM, ids: jax.Array) -> jax.Array:
        """Compute the gradient in the embedded context."""
        return jax.grad(model.loss)(model.embed(ids), last_token_target(ids))

    @eqx.filter_jit
    def algorithm_1(model: lim.models.CausalLM, ids: jax.Array) -> lim.models.CausalLM:
        """Compute the balanced objective's gradient in all weights."""
        batch = jax.tree.map(lambda leaf: leaf[None], (model.embed(ids), last_token_target(ids)))
        objective = partial(balanced_objective, lim.models.CausalLM.loss)
        arguments = batch, lim.token_grid(length), Penalty(epsilon=0.0)
        return eqx.filter_grad(lambda model: objective(model, *arguments, strength=STRENGTH))(model)

    job = {"gradient": gradient, "algorithm 1": algorithm_1}[name]
    compiled = job.lower(model, ids).compile()

    def run() -> np.ndarray:
        """Run the job, and return what is compared."""
        result = jax.block_until_ready(compiled(model, ids))
        return np.asarray(result if name == "gradient" else result.norm.scale)

    return run


def their_job(file: Path, length: int, name: str, precision: str) -> Job:
    """Make the job by transformers and torch, for as many threads as there are cores."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    kind = transformers.AutoModelForCausalLM
    dtype = getattr(torch, precision)
    attends = {"attn_implementation": "sdpa"}
    network = kind.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype, **attends)
    network = network.eval().requires_grad_(name == "algorithm 1")
    words: Any = network.get_input_embeddings()
    ids = torch.from_numpy(np.random.default_rng(0).integers(words.num_embeddings, size=length))

    def risk() -> tuple[torch.Tensor, torch.Tensor]:
        """Return the embedded context and the loss of its last token."""
        x = words(ids[None]).detach().requires_grad_(True)
        logits = network(inputs_embeds=x, logits_to_keep=1, use_cache=False).logits
        return x, torch.nn.functional.cross_entropy(logits[0].float(), ids[:1])

    def gradient() -> np.ndarray:
        """Compute the gradient in the embedded context."""
        x, loss = risk()
        return torch.autograd.grad(loss, x)[0][0].float().numpy()

    def algorithm_1() -> np.ndarray:
        """Compute the balanced objective's gradient in all weights."""
        with sdpa_kernel(SDPBackend.MATH):
            x, loss = risk()
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            energy = ((length * slope[0].float()) ** 2).sum(dim=1)
            penalty = ((energy / energy.mean() - 1) ** 2).mean() / 2
            named = dict(network.named_parameters())
            slopes = torch.autograd.grad(loss + STRENGTH * penalty, list(named.values()))
        return dict(zip(named, slopes, strict=True))["model.norm.weight"].float().numpy()

    return {"gradient": gradient, "algorithm 1": algorithm_1}[name]


def job_of_side(which: str, file: Path, length: int, name: str, precision: str) -> Job:
    """Return the job of one of `SIDES`."""
    if which == "torch":
        return their_job(file, length, name, precision)
    remat = "save_matmuls" if which == KEEPING else "full"
    return our_job(file, length, name, precision, remat)


def time_call(job: Job) -> float:
    """Time one call: on one core, by the process's own time."""
    clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    start = clock()
    job()
    return clock() - start


def measure(file: Path, length: int, name: str, precision: str, repeats: int) -> dict:
    """Measure all sides in this process, on the cores that it is pinned to."""
    jobs = {which: job_of_side(which, file, length, name, precision) for which in SIDES[name]}
    results = {which: job() for which, job in jobs.items()}
    expected = results.pop("torch")
    difference = max(float(np.abs(result - expected).max()) for result in results.values())
    assert difference < BOUNDS[precision] * np.abs(expected).max(), difference
    times = {which: [] for which in jobs}
    for _ in range(repeats):
        for which, job in jobs.items():
            times[which].append(time_call(job))
    return {
        "job": name,
        "precision": precision,
        "length": length,
        "threads": len(os.sched_getaffinity(0)),
        "repeats": repeats,
        "seconds": {which: float(np.median(values)) for which, values in times.items()},
        "range": {which: [min(values), max(values)] for which, values in times.items()},
        "ratio": {
            which: float(np.median(np.divide(times["torch"], values)))
            for which, values in times.items()
            if which != "torch"
        },
        "difference": difference / float(np.abs(expected).max()),
    }


def run_alone(arguments: list[str], threads: int, kernels: str) -> dict:
    """Return what a process of its own prints, pinned to the first cores."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    environment = os.environ | {"TQDM_DISABLE": "1"}
    if threads == 1:
        environment["XLA_FLAGS"] = ONE_THREAD
    if kernels == "AVX-512":
        environment["LD_PRELOAD"] = str(build_allowing_library())
    command = ["taskset", "-c", cores, sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print and keep a row for each number of threads and choice of PyTorch's kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="a GGUF file; fetched if left out")
    parser.add_argument("--job", choices=tuple(SIDES), default="gradient")
    parser.add_argument("--precision", choices=tuple(BOUNDS), default="float32")
    parser.add_argument("--length", type=int, default=512, help="tokens of the context")
    parser.add_argument("--repeats", type=int, default=7, help="alternated calls of all sides")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--results", type=Path, default=RESULTS / "real_peer.json")
    parser.add_argument("--here", help="time, by 'both', or one side's memory, by its name")
    options = parser.parse_args()
    job = options.file, options.length, options.job, options.precision
    if options.here == "both":
        print(json.dumps(measure(*job, options.repeats)))
    elif options.here:
        print(json.dumps(peak_memory(job_of_side(options.here, *job))))
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = options.file or fetch_weights(Path(folder))
            arguments = ["--file", str(file), "--length", str(options.length), "--job", options.job]
            arguments += ["--repeats", str(options.repeats), "--precision", options.precision]
            for threads in options.threads:
                for kernels in ("stock", "AVX-512") if "AMD" in processor() else ("stock",):
                    row = run_alone([*arguments, "--here", "both"], threads, kernels)
                    row["kernels"] = kernels
                    row["MiB"] = {
                        which: run_alone([*arguments, "--here", which], threads, kernels)
                        for which in SIDES[options.job]
                    }
                    print(row, flush=True)
                    key = ("job", "precision", "length", "threads", "kernels")
                    versions = {m.__name__: m.__version__ for m in (torch, transformers)}
                    keep(options.results, [row], key, **versions)


if __name__ == "__main__":
    main()
