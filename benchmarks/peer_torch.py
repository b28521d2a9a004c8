"""The same network and jobs in stock PyTorch, as one would write them there."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Parameters = dict[str, torch.Tensor]
OUTER = ("readout",)
FEATURES = 8  # that carry log weights: so many keep a head's size a multiple that kernels ask for


def parameters(arrays: dict[str, np.ndarray]) -> Parameters:
    """Stack the weights of all layers, with queries, keys and values in one matrix."""
    depth, heads, size, width = arrays["query"].shape

    def flat(name: str) -> np.ndarray:
        """Return a matrix for each layer, whose rows are the heads' features."""
        return arrays[name].reshape(depth, heads * size, width)

    qkv = np.concatenate([flat("query"), flat("key"), flat("value")], axis=1)
    output = arrays["output"].transpose(0, 2, 1, 3).reshape(depth, width, heads * size)
    names = ("scale1", "shift1", "scale2", "shift2", "inner", "inner_bias", "outer", "outer_bias")
    stacked = {"joined": qkv, "mixed": output}
    stacked.update({name: arrays[name] for name in (*names, "readout")})
    return {name: torch.from_numpy(np.array(value)) for name, value in stacked.items()}


def arrays_of_parameters(params: Parameters, heads: int) -> dict[str, np.ndarray]:
    """Invert `parameters`: return arrays under the names that these came by."""
    arrays = {name: value.cpu().numpy() for name, value in params.items()}
    qkv = arrays.pop("joined")
    output = arrays.pop("mixed")
    depth, width = output.shape[:2]
    for name, part in zip(("query", "key", "value"), np.split(qkv, 3, axis=1), strict=True):
        arrays[name] = part.reshape(depth, heads, -1, width)
    arrays["output"] = output.reshape(depth, width, heads, -1).transpose(0, 2, 1, 3)
    return arrays


def with_log_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_weights: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values by which attention adds log weights to the scores of keys.

    They are more features of keys, and ones of queries: a mask that is differentiated would have
    no fused kernel. Values get zeros, since kernels want all heads of one size.
    """
    of_key = (log_weights / (FEATURES * scale)).to(key.dtype)[:, None]
    features = of_key.expand(*key.shape[:-1], FEATURES)
    more = (0, FEATURES)
    return F.pad(query, more, value=1.0), torch.cat([key, features], dim=-1), F.pad(value, more)


def attention(
    p: Parameters,
    x: torch.Tensor,
    context: torch.Tensor,
    heads: int,
    log_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply pre-normed attention; `context` is `x` but where its slot is differentiated."""
    batch, length, width = x.shape

    def split(part: torch.Tensor) -> torch.Tensor:
        """Return a projection's features head by head."""
        return part.reshape(batch, length, heads, width // heads).transpose(1, 2)

    normed = F.layer_norm(x, (width,), p["scale1"], p["shift1"])
    if context is x:
        query, key, value = (normed @ p["joined"].T).chunk(3, dim=-1)
    else:
        source = F.layer_norm(context, (width,), p["scale1"], p["shift1"])
        query = normed @ p["joined"][:width].T
        key, value = (source @ p["joined"][width:].T).chunk(2, dim=-1)
    of_heads = split(query), split(key), split(value)
    size = width // heads
    if log_weights is not None:
        of_heads = with_log_weights(*of_heads, log_weights, size**-0.5)
    heads_output = F.scaled_dot_product_attention(*of_heads, is_causal=True, scale=size**-0.5)
    joined = heads_output[..., :size].transpose(1, 2).reshape(batch, length, width)
    return joined @ p["mixed"].T


def trajectory(
    params: Parameters, x: torch.Tensor, heads: int, log_weights: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Compute the states of all layers, the input first."""
    width = x.shape[-1]
    states = [x]
    for k in range(params["joined"].shape[0]):
        p = {name: value[k] for name, value in params.items() if name not in OUTER}
        x = x + attention(p, x, x, heads, log_weights)
        normed = F.layer_norm(x, (width,), p["scale2"], p["shift2"])
        hidden = F.gelu(normed @ p["inner"].T + p["inner_bias"], approximate="tanh")
        x = x + hidden @ p["outer"].T + p["outer_bias"]
        states.append(x)
    return states


def losses(
    params: Parameters,
    x: torch.Tensor,
    y: torch.Tensor,
    heads: int,
    log_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the mean cross-entropy of every example."""
    logits = trajectory(params, x, heads, log_weights)[-1] @ params["readout"]
    return F.cross_entropy(logits.transpose(1, 2), y, reduction="none").mean(dim=1)


def cone_mass(params: Parameters, x: torch.Tensor, heads: int) -> np.ndarray:
    """Compute the cone masses of the first layer's attention, at the first example."""
    first = {name: value[0] for name, value in params.items() if name not in OUTER}
    example = x[:1]
    length = x.shape[1]

    def attend(context: torch.Tensor) -> torch.Tensor:
        """Compute the attention's output of a context's states."""
        return attention(first, example, context[None], heads)[0]

    with sdpa_kernel(SDPBackend.MATH):
        # In chunks: all cotangents at once need 17 GiB of attention matrices at size (a).
        jacobian = torch.func.jacrev(attend, chunk_size=512)(x[0])
    rows, columns = torch.tril_indices(length, length, device=x.device)
    blocks = jacobian.transpose(1, 2)[rows, columns]
    squares = torch.linalg.matrix_norm(blocks, ord=2) ** 2
    sums = squares.new_zeros(length).index_add(0, columns, squares)
    return (length * sums).cpu().numpy()


def gramians(params: Parameters, x: torch.Tensor, heads: int) -> np.ndarray:
    """Compute the Gramian of each position at the last token, of the first example."""

    def last_states(x: torch.Tensor) -> torch.Tensor:
        """Compute the last token's state before every layer."""
        return torch.stack([state[0, -1] for state in trajectory(params, x[None], heads)[:-1]])

    with sdpa_kernel(SDPBackend.MATH):
        jacobian = torch.func.jacrev(last_states)(x[0])
    return torch.einsum("koia,koib->iab", jacobian, jacobian).cpu().numpy()


class TorchJobs:
    """Each job as a method that returns numbers to compare, by name.

    First order goes by `torch.compile` where that is asked for: it has no double backward and no
    forward mode.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        x: np.ndarray,
        labels: np.ndarray,
        heads: int,
        strength: float,
        compiled: bool = False,
        device: str = "cpu",
    ):
        self.params = {name: value.to(device) for name, value in parameters(arrays).items()}
        self.x = torch.from_numpy(x.copy()).to(device)
        self.y = torch.from_numpy(labels).to(device)
        self.length = x.shape[1]
        self.heads = heads
        self.strength = strength
        self.first_order_losses = torch.compile(losses) if compiled else losses

    def jobs(self) -> dict[str, Callable[[], dict[str, np.ndarray]]]:
        """Return the jobs by their names in `jobs`."""
        return {
            "influence": self.influence,
            "gradient": self.gradient,
            "algorithm 1": self.algorithm_1,
            "mdot": self.mdot,
            "mask gradient": self.mask_gradient,
            "cone mass": self.cone_mass,
            "gramians": self.gramians,
        }

    def influence(self) -> dict[str, np.ndarray]:
        """Compute the energy of each position."""
        x = self.tracked_x()
        each = self.first_order_losses(self.params, x, self.y, self.heads)
        (slope,) = torch.autograd.grad(each.sum(), x)
        return {"": self.energy_of(slope).cpu().numpy()}

    def gradient(self) -> dict[str, np.ndarray]:
        """Compute the risk's gradient in all weights."""
        at = self.tracked_params()
        each = self.first_order_losses(at, self.x, self.y, self.heads)
        return self.by_name(torch.autograd.grad(each.mean(), list(at.values())))

    def algorithm_1(self) -> dict[str, np.ndarray]:
        """Compute the balanced objective's gradient in all weights."""
        at = self.tracked_params()
        x = self.tracked_x()
        with sdpa_kernel(SDPBackend.MATH):  # the fused ones have no double backward
            each = losses(at, x, self.y, self.heads)
            (slope,) = torch.autograd.grad(each.sum(), x, create_graph=True)
            energy = self.energy_of(slope)
            penalty = ((energy / energy.mean() - 1) ** 2).mean() / 2
            objective = each.mean() + self.strength * penalty
            return self.by_name(torch.autograd.grad(objective, list(at.values())))

    def mdot(self) -> dict[str, np.ndarray]:
        """Compute the density's rate along the risk's gradient flow."""

        def energy(params: Parameters) -> torch.Tensor:
            """Compute the energy of each position, as a function of the weights."""
            slope = torch.func.grad(lambda x: losses(params, x, self.y, self.heads).sum())
            return self.energy_of(slope(self.x))

        def negative_risk(params: Parameters) -> torch.Tensor:
            """Compute minus the risk, whose gradient is the flow's direction."""
            return -losses(params, self.x, self.y, self.heads).mean()

        jvp: Any = torch.func.jvp  # whose type has a third result too, that of has_aux
        with sdpa_kernel(SDPBackend.MATH):
            down = torch.func.grad(negative_risk)(self.params)
            value, rate = jvp(energy, (self.params,), (down,))
            total = value.mean()
            return {"": ((rate - value / total * rate.mean()) / total).cpu().numpy()}

    def mask_gradient(self) -> dict[str, np.ndarray]:
        """Compute the risk's gradient in the log weight of each position as a key."""
        log_weights = self.x.new_zeros(self.length, requires_grad=True)
        each = self.first_order_losses(self.params, self.x, self.y, self.heads, log_weights)
        return {"": torch.autograd.grad(each.mean(), log_weights)[0].cpu().numpy()}

    def cone_mass(self) -> dict[str, np.ndarray]:
        """Compute the first layer's cone masses."""
        return {"": cone_mass(self.params, self.x, self.heads)}

    def gramians(self) -> dict[str, np.ndarray]:
        """Compute the Gramians of the last token."""
        return {"": gramians(self.params, self.x, self.heads)}

    def energy_of(self, slope: torch.Tensor) -> torch.Tensor:
        """Return the energy of each position, of the gradient of summed losses in the inputs."""
        return ((slope * self.length) ** 2).sum(dim=2).mean(dim=0)

    def tracked_x(self) -> torch.Tensor:
        """Return a copy of the inputs that is differentiated."""
        return self.x.clone().requires_grad_(True)

    def tracked_params(self) -> Parameters:
        """Return a copy of the weights that is differentiated."""
        return {name: value.clone().requires_grad_(True) for name, value in self.params.items()}

    def by_name(self, slopes: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray]:
        """Return gradients in the weights under the names of the network's arrays."""
        return arrays_of_parameters(dict(zip(self.params, slopes, strict=True)), self.heads)
