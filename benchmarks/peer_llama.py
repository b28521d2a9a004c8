"""The jobs of `language_jobs` by transformers, which attends by PyTorch's fused kernels."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from language_jobs import ANSWER, LEAST, NODES, in_document
from peer_torch import with_log_weights
from sides import Job
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from lim_jax.adjoint.masking import path_rule

ATTENTION = "fused, with log weights"


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float,
    log_weights: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute transformers' fused attention, with log weights of keys where there are some."""
    size = value.shape[-1]
    of_heads = query, key, value
    if log_weights is not None:
        of_heads = with_log_weights(*of_heads, log_weights, scaling)
    read, _ = sdpa_attention_forward(module, *of_heads, mask, scaling=scaling, **options)
    return read[..., :size], None


AttentionInterface.register(ATTENTION, attend)


def load(path: Path, precision: str, device: str = "cpu") -> Any:
    """Read the network, whose weights are constants, for as many threads as there are cores."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    kind: Any = AutoModelForCausalLM
    network = kind.from_pretrained(
        path, dtype=getattr(torch, precision), attn_implementation=ATTENTION
    )
    return network.to(device).eval().requires_grad_(False)


def energies(network: Any, window: np.ndarray) -> np.ndarray:
    """Compute the energies of a context's last-token loss."""
    ids = torch.tensor(window[None], device=network.device)
    x = network.get_input_embeddings()(ids[:, :-1]).requires_grad_()
    (slope,) = torch.autograd.grad(last_token(network, ids, inputs_embeds=x), x)
    tokens = len(window) - 1
    return ((slope[0].float() ** 2).sum(1) * tokens**2).cpu().numpy()


def last_token(network: Any, ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
    """Compute the loss of the id after a context."""
    logits = network(**inputs, logits_to_keep=1, use_cache=False).logits[0, -1].float()
    return F.cross_entropy(logits[None], ids[:, -1])


def jobs(path: Path, window: np.ndarray, device: str, compiled: bool = False) -> dict[str, Job]:
    """Return each job of a network that is read once, all of it in bfloat16."""
    network = load(path, "bfloat16", device)
    forward = torch.compile(network) if compiled else network
    ids = torch.tensor(window[None], device=device)
    chosen = torch.tensor(in_document(len(window) - 1), device=device)

    def loss(log_weights: torch.Tensor) -> torch.Tensor:
        """Compute the loss with log weights added to the scores of keys."""
        return last_token(forward, ids, input_ids=ids[:, :-1], log_weights=log_weights)

    def document_at(log_weight: float) -> torch.Tensor:
        """Return the log weights by which the document alone has this one."""
        return torch.where(chosen, log_weight, 0.0)

    def gradient_at(log_weights: torch.Tensor) -> torch.Tensor:
        """Compute the loss's gradient in log weights."""
        log_weights.requires_grad_()
        return torch.autograd.grad(loss(log_weights), log_weights)[0]

    def mask_gradient() -> dict[str, np.ndarray]:
        """Compute the gradient where everything has full weight."""
        return {"": gradient_at(document_at(0.0)).cpu().numpy()}

    def mask_path() -> dict[str, np.ndarray]:
        """Add up gradients as the document comes in, and compute the loss at both ends."""
        shares = [
            share * gradient_at(document_at(log_weight))
            for log_weight, share in path_rule(NODES, LEAST).T.tolist()
        ]
        path = torch.where(chosen, torch.stack(shares).sum(dim=0), 0.0)
        with torch.no_grad():
            ends = torch.stack([loss(document_at(end)) for end in (0.0, math.log(LEAST))])
        return {"path": path.cpu().numpy(), "ends": ends.cpu().numpy()}

    def greedy() -> dict[str, np.ndarray]:
        """Let the network go on with the context."""
        context = ids[:, :-1]
        with torch.no_grad():
            answered = network.generate(
                context,
                attention_mask=torch.ones_like(context),
                max_new_tokens=ANSWER,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        return {"": answered[0, context.shape[1] :].cpu().numpy()}

    return {
        "influence": lambda: {"": energies(forward, window)},
        "mask gradient": mask_gradient,
        "mask path": mask_path,
        "ten greedy tokens": greedy,
    }
