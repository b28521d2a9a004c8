"""The paper's network written apart, in plain NumPy loops over layers, tokens, heads and pairs.

Arrays may be complex, and may have leading axes of perturbations: a complex step differentiates
the network to rounding. For a function that is real on real input, f(x + ih e) has imaginary part
h f'(x) + O(h^3), without cancellation.
"""

import jax
import numpy as np

STEP = 1e-30


def layer_norm(norm, z):
    """`eq:smooth-layernorm` of one token; without its mean where the norm has no shift."""
    centred = z - z.mean(axis=-1, keepdims=True) if hasattr(norm, "shift") else z
    variance = (centred**2).mean(axis=-1, keepdims=True)
    normalised = np.asarray(norm.scale) * centred / np.sqrt(variance + norm.eta)
    return normalised + np.asarray(getattr(norm, "shift", 0.0))


def affine(matrix, bias, z):
    return z @ np.asarray(matrix).T + (0 if bias is None else np.asarray(bias))


def turned(rotary, vector, place):
    """Turn pair m, features m and m + r/2, by the angle of `place` tokens."""
    if rotary is None:
        return vector
    result, pairs = vector.copy(), len(rotary.frequencies)
    for m, frequency in enumerate(rotary.frequencies):
        turn = np.exp(1j * frequency * place)
        x, y = vector[..., m], vector[..., m + pairs]
        result[..., m] = turn.real * x - turn.imag * y
        result[..., m + pairs] = turn.imag * x + turn.real * y
    return result


def projected(layer, kind, h, z, place):
    """The query or key of head or group h: bias, then its norm, then its turn."""
    bias, norm = getattr(layer, f"{kind}_bias"), getattr(layer, f"{kind}_norm")
    vector = affine(getattr(layer, kind)[h], None if bias is None else bias[h], z)
    return turned(layer.rotary, vector if norm is None else layer_norm(norm, vector), place)


def attention(layer, states):
    """`eq:masked-mha`, with all that is optional; states are (..., token, feature)."""
    heads, size, _ = layer.query.shape
    group_size, bias = heads // len(layer.key), layer.value_bias
    tokens = [layer_norm(layer.norm, states[..., i, :]) for i in range(states.shape[-2])]
    result = np.zeros_like(states)
    if layer.output_bias is not None:
        result = result + np.asarray(layer.output_bias)
    for h in range(heads):
        g = h // group_size
        queries = [projected(layer, "query", h, z, i) for i, z in enumerate(tokens)]
        keys = [projected(layer, "key", g, z, i) for i, z in enumerate(tokens)]
        values = [affine(layer.value[g], None if bias is None else bias[g], z) for z in tokens]
        for i in range(len(tokens)):
            numerator, denominator = 0, 0
            seen = i + 1 if layer.window is None else min(i + 1, layer.window)
            for j in range(i + 1 - seen, i + 1):
                score = (queries[i] * keys[j]).sum(axis=-1, keepdims=True) / np.sqrt(size)
                numerator = numerator + np.exp(score) * values[j]
                denominator = denominator + np.exp(score)
            result[..., i, :] += affine(layer.output[h], None, numerator / denominator)
    return result


def attention_matrix(layer, states):
    """The heads' mean of the softmax's weights; real states of one context."""
    heads, size, _ = layer.query.shape
    tokens = [layer_norm(layer.norm, z) for z in states]
    result = np.zeros((len(states), len(states)))
    for h in range(heads):
        g = h // (heads // len(layer.key))
        keys = [projected(layer, "key", g, z, j) for j, z in enumerate(tokens)]
        for i, z in enumerate(tokens):
            query = projected(layer, "query", h, z, i)
            first = 0 if layer.window is None else max(0, i + 1 - layer.window)
            mass = np.zeros(len(states))
            for j in range(first, i + 1):
                mass[j] = np.exp(query @ keys[j] / np.sqrt(size))
            result[i] += mass / mass.sum() / heads
    return result


def rollout(layers, states, horizon, scheme, profile):
    """The product of the layers' (A + I)/2, the last layer's leftmost."""
    result = np.eye(len(states))
    for k, layer in enumerate(layers):
        time, step = k * horizon / len(layers), horizon / len(layers)
        mixed = attention_matrix(layer.attention, states) + np.eye(len(states))
        result = mixed / 2 @ result
        states = flow([layer], states, step, scheme, lambda _, time=time: profile(time))
    return result


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def feed_forward(layer, states):
    """`eq:mlp-block`."""
    result = np.zeros_like(states)
    for i in range(states.shape[-2]):
        normed = layer_norm(layer.norm, states[..., i, :])
        if hasattr(layer, "gate"):
            bend = silu if layer.activation is jax.nn.silu else gelu
            gate = bend(affine(layer.gate, layer.gate_bias, normed))
            hidden = gate * affine(layer.up, layer.up_bias, normed)
            result[..., i, :] = affine(layer.down, layer.down_bias, hidden)
        else:
            hidden = gelu(affine(layer.inner, layer.inner_bias, normed))
            result[..., i, :] = affine(layer.outer, layer.outer_bias, hidden)
    return result


def flow(layers, states, horizon, scheme, profile):
    """eq:discrete-residual for "euler", eq:complete-transformer-layer for "split"."""
    for k, layer in enumerate(layers):
        step = horizon / len(layers) * profile(k * horizon / len(layers))
        if scheme == "euler":
            states = states + step * (
                attention(layer.attention, states) + feed_forward(layer.feed_forward, states)
            )
        else:
            states = states + step * attention(layer.attention, states)
            states = states + step * feed_forward(layer.feed_forward, states)
    return states


def cross_entropy(logits, labels, weights):
    total = np.zeros(logits.shape[:-2])
    for i, weight in enumerate(weights):
        z = logits[..., i, :]
        log_partition = np.log(np.exp(z).sum(axis=-1, keepdims=True))
        total = total - weight * (labels[i] * (z - log_partition)).sum(axis=-1)
    return total


def hat(distance):
    return max(1 - abs(distance), 0)


def band_average(states, bandwidth, edges):
    """Average a window of tokens around each: dropped, renormalised or reflected at the ends."""
    length = states.shape[-2]
    result = np.zeros_like(states)
    for i in range(length):
        total, mass = 0, 0
        for j in range(length):
            images = [j, -1 - j, 2 * length - 1 - j] if edges == "reflecting" else [j]
            for image in images:
                weight = hat((i - image) / length / bandwidth) / bandwidth / length
                total, mass = total + weight * states[..., j, :], mass + weight
        result[..., i, :] = total if edges == "zero" else total / mass
    return result


def perturbed(x):
    """One complex step in each entry of x, along a leading axis."""
    return x + 1j * STEP * np.eye(x.size).reshape(x.size, *x.shape)


def derivative(values):
    """The derivatives that complex-step values carry."""
    return values.imag / STEP
