"""The gradient of a real network beside PyTorch's: SmolLM2-135M-Instruct, one long context.

``python benchmarks/real_peer.py`` (the extra ``parity`` brings torch and transformers) takes the
last-token loss of `real_model` in float32 and its gradient in the embedded context, here and by
transformers' Llama, which reads the same GGUF file by itself. Both are pinned to one core, then to
two. They take turns, after their numbers are compared; times are medians. MiB are those that a
process of its own needs for one call, beyond what it holds before: the weights.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import torch
import transformers
from real_model import asked_last, context, fetched
from record import RESULTS, keep, own_peak, seconds

import lim_jax as lim

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
SIDES = ("lim_jax", "torch")
Job = Callable[[], np.ndarray]


def ours(file: Path, length: int) -> Job:
    """Our gradient, compiled."""
    model = lim.models.load(file)
    ids = context(model, length)

    @eqx.filter_jit
    def gradient(model: lim.models.CausalLM, ids: jax.Array) -> jax.Array:
        return jax.grad(model.loss)(model.embed(ids), asked_last(ids))

    compiled = gradient.lower(model, ids).compile()
    return lambda: np.asarray(compiled(model, ids))


def theirs(file: Path, length: int) -> Job:
    """The same by transformers and torch, with as many threads as there are cores to run on."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    kind = transformers.AutoModelForCausalLM
    network = kind.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="sdpa"
    )
    network = network.eval().requires_grad_(False)
    words = network.get_input_embeddings()
    ids = torch.from_numpy(np.random.default_rng(0).integers(words.num_embeddings, size=length))

    def gradient() -> np.ndarray:
        x = words(ids[None]).requires_grad_(True)
        logits = network(inputs_embeds=x, logits_to_keep=1, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[0], ids[:1])
        return torch.autograd.grad(loss, x)[0][0].numpy()

    return gradient


def measured(file: Path, length: int, repeats: int) -> dict:
    """Both sides in this process, on the cores that it is pinned to."""
    jobs = {"lim_jax": ours(file, length), "torch": theirs(file, length)}
    found, expected = (job() for job in jobs.values())
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    assert difference < 1e-3, difference
    times = {side: [] for side in jobs}
    for _ in range(repeats):
        for side, job in jobs.items():
            times[side].append(seconds(job))
    return {
        "length": length,
        "threads": len(os.sched_getaffinity(0)),
        "repeats": repeats,
        "seconds": {side: float(np.median(values)) for side, values in times.items()},
        "ratio": float(np.median(np.divide(times["torch"], times["lim_jax"]))),
        "difference": difference,
    }


def alone(arguments: list[str], threads: int) -> dict:
    """What a process of its own prints, pinned to the first cores."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    environment = os.environ | {"TQDM_DISABLE": "1"}
    if threads == 1:
        environment["XLA_FLAGS"] = ONE_THREAD
    command = ["taskset", "-c", cores, sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print and keep a row for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="a GGUF file; fetched if left out")
    parser.add_argument("--length", type=int, default=512, help="tokens of the context")
    parser.add_argument("--repeats", type=int, default=7, help="alternated calls of both sides")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--results", type=Path, default=RESULTS / "real_peer.json")
    parser.add_argument("--here", choices=("both", *SIDES), help="time, or one side's memory")
    options = parser.parse_args()
    if options.here == "both":
        print(json.dumps(measured(options.file, options.length, options.repeats)))
    elif options.here:
        side = {"lim_jax": ours, "torch": theirs}[options.here]
        print(json.dumps(own_peak(side(options.file, options.length))))
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = options.file or fetched(Path(folder))
            given = ["--file", str(file), "--length", str(options.length)]
            given += ["--repeats", str(options.repeats)]
            for threads in options.threads:
                row = alone([*given, "--here", "both"], threads)
                row["MiB"] = {s: alone([*given, "--here", s], threads) for s in SIDES}
                print(row, flush=True)
                versions = {"torch": torch.__version__, "transformers": transformers.__version__}
                keep(options.results, [row], ("length", "threads"), **versions)


if __name__ == "__main__":
    main()
