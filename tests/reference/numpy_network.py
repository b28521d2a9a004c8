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
    normalised = np.asarray(norm.scale) * centred / np.sqrt(variance + norm.norm_eps)
    return normalised + np.asarray(getattr(norm, "shift", 0.0))


def affine(matrix, bias, z):
    return z @ np.asarray(matrix).T + (0 if bias is None else np.asarray(bias))


def mask_of(layer):
    """What this layer sees: its kind of those that there are."""
    mask = layer.mask
    return mask.kinds[int(mask.kind)] if hasattr(mask, "kinds") else mask


def first_seen(mask, i):
    """The first position that row i sees."""
    if mask.window is not None:
        return max(0, i + 1 - mask.window)
    return 0 if mask.chunk is None else i - i % mask.chunk


def turned(rotary, vector, place):
    """Turn pair m, features m and m + r/2, by the angle of `place` tokens, and lengthen it."""
    if not hasattr(rotary, "frequencies"):
        return vector
    result = vector.copy()
    pairs = len(rotary.frequencies)
    for m, frequency in enumerate(rotary.frequencies):
        turn = rotary.amplitude * np.exp(1j * frequency * place)
        x = vector[..., m]
        y = vector[..., m + pairs]
        result[..., m] = turn.real * x - turn.imag * y
        result[..., m + pairs] = turn.imag * x + turn.real * y
    return result


def latent_vectors(layer, kind, z, place):
    """The same of latent attention: what turns is shared, or comes first of a query."""
    positions = mask_of(layer).positions
    if kind == "key":
        low = layer_norm(layer.down_norm, affine(layer.down, None, z))
        shared = turned(positions, affine(layer.rope_key, None, z), place)
        return [np.concatenate([shared, affine(matrix, None, low)], -1) for matrix in layer.key]
    low = layer_norm(layer.query_down_norm, affine(layer.query_down, None, z))
    return [turned(positions, affine(matrix, None, low), place) for matrix in layer.query]


def projected(layer, kind, z, place):
    """The queries or keys of one token in every head or group: bias, then norm, then turn."""
    if hasattr(layer, "down"):
        return latent_vectors(layer, kind, z, place)
    bias, norm, matrices = (getattr(layer, f"{kind}{part}") for part in ("_bias", "_norm", ""))
    vectors = [
        affine(matrix, None if bias is None else bias[h], z) for h, matrix in enumerate(matrices)
    ]
    if hasattr(norm, "norm"):  # of all heads together
        vectors = np.split(layer_norm(norm.norm, np.concatenate(vectors, -1)), len(vectors), -1)
    elif hasattr(norm, "norms"):  # of each head by itself
        norms = [jax.tree.map(lambda leaf, h=h: leaf[h], norm.norms) for h in range(len(vectors))]
        vectors = [
            layer_norm(norm_of_head, vector)
            for norm_of_head, vector in zip(norms, vectors, strict=True)
        ]
    elif norm is not None:
        vectors = [layer_norm(norm, vector) for vector in vectors]
    return [turned(mask_of(layer).positions, vector, place) for vector in vectors]


def unmasked(h, i, j):
    """What is added to a score: nothing."""
    return 0.0


def soft_mask(log_weights, parts):
    """The log weight of key j, (..., heads, length), in row i, unless both are of one part."""
    return lambda h, i, j: log_weights[..., h, j, None] * (parts[j] < 0 or parts[i] != parts[j])


def scores(layer, h, query, keys, distances):
    """Scaled, biased by distance, and capped, of one row."""
    scale = 1 / np.sqrt(layer.query.shape[1]) if layer.scale is None else layer.scale
    slopes = getattr(mask_of(layer).positions, "slopes", None)
    values = []
    for key, distance in zip(keys, distances, strict=True):
        score = scale * (query * key).sum(axis=-1, keepdims=True)
        score = score if slopes is None else score - slopes[h] * distance
        values.append(score if layer.cap is None else layer.cap * np.tanh(score / layer.cap))
    return values


def attention(layer, states, mask=unmasked, places=None):
    """`eq:masked-mha`, with all that is optional; states are (..., token, feature).

    Tokens are those at `places` of a context, by default all.
    """
    heads = len(layer.query)
    length = states.shape[-2]
    places = range(length) if places is None else places
    tokens = [layer_norm(layer.norm, states[..., i, :]) for i in range(length)]
    queries, keys = (
        [projected(layer, kind, z, i) for i, z in zip(places, tokens, strict=True)]
        for kind in ("query", "key")
    )
    result = np.zeros_like(states)
    if layer.output_bias is not None:
        result = result + np.asarray(layer.output_bias)
    for h in range(heads):
        g = h // (heads // len(layer.key))
        bias = None if layer.value_bias is None else layer.value_bias[g]
        low = (
            [layer_norm(layer.down_norm, affine(layer.down, None, z)) for z in tokens]
            if hasattr(layer, "down")
            else tokens
        )
        values = [affine(layer.value[g], bias, z) for z in low]
        group_keys = [k[g] for k in keys]
        for i in range(length):
            first = first_seen(mask_of(layer), places[i])
            visible = [j for j in range(i + 1) if places[j] >= first]
            sink = 0 if layer.sinks is None else np.exp(np.asarray(layer.sinks[h]))
            numerator = 0
            denominator = sink
            distances = [places[i] - places[j] for j in visible]
            near = [group_keys[j] for j in visible]
            row = scores(layer, h, queries[i][h], near, distances)
            for j, score in zip(visible, row, strict=True):
                mass = np.exp(score + mask(h, i, j))
                numerator = numerator + mass * values[j]
                denominator = denominator + mass
            output = numerator / denominator
            if layer.gate is not None:
                output = output / (1 + np.exp(-affine(layer.gate[h], None, tokens[i])))
            result[..., i, :] += affine(layer.output[h], None, output)
    return output_normed(layer, result)


def output_normed(layer, states):
    if layer.output_norm is None:
        return states
    rows = [layer_norm(layer.output_norm, states[..., i, :]) for i in range(states.shape[-2])]
    return np.stack(rows, axis=-2)


def attention_matrix(layer, states):
    """The heads' mean of the softmax's weights; real states of one context."""
    heads = len(layer.query)
    tokens = [layer_norm(layer.norm, z) for z in states]
    queries, keys = (
        [projected(layer, kind, z, i) for i, z in enumerate(tokens)] for kind in ("query", "key")
    )
    result = np.zeros((len(states), len(states)))
    for h in range(heads):
        group_keys = [k[h // (heads // len(layer.key))] for k in keys]
        for i in range(len(states)):
            visible = range(first_seen(mask_of(layer), i), i + 1)
            sink = 0 if layer.sinks is None else np.exp(np.asarray(layer.sinks[h]))
            distances = [i - j for j in visible]
            near = [group_keys[j] for j in visible]
            mass = np.exp(np.ravel(scores(layer, h, queries[i][h], near, distances)))
            result[i, visible] += mass / (mass.sum() + sink) / heads
    return result


def rollout(layers, states, horizon, scheme, profile):
    """The product of the layers' (A + I)/2, the last layer's leftmost."""
    result = np.eye(len(states))
    for k, layer in enumerate(layers):
        time = k * horizon / len(layers)
        step = horizon / len(layers)
        mixed = attention_matrix(layer.attention, states) + np.eye(len(states))
        result = mixed / 2 @ result
        states = flow([layer], states, step, scheme, lambda _, time=time: profile(time))
    return result


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def mixture(layer, z):
    """Experts one after another, for every token that has leading axes by itself."""
    if z.ndim > 1:
        return np.stack([mixture(layer, token) for token in z])
    logits = affine(layer.router, layer.router_bias, z)
    routing = layer.routing
    scores = np.exp(logits) / np.exp(logits).sum()
    if routing.scores == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    preferred = scores.real + (0 if layer.preference is None else np.asarray(layer.preference))
    groups = np.split(np.arange(len(preferred)), routing.groups)
    merits = [np.sort(preferred[group])[-routing.best :].sum() for group in groups]
    open_experts = np.concatenate([groups[g] for g in np.argsort(merits)[-routing.topk_group :]])
    top = open_experts[np.argsort(preferred[open_experts])[-routing.top :]]
    total = scores[top].sum() if routing.normalised else 1
    result = np.zeros_like(z)
    for e in top:
        weight = routing.factor * scores[e] / total
        expert_input = weight * z if layer.weighs_input else z
        result += (1 if layer.weighs_input else weight) * expert(layer.experts, e, expert_input)
    if layer.shared is None:
        return result
    gate = silu(affine(layer.shared.gate, layer.shared.gate_bias, z))
    up = affine(layer.shared.up, layer.shared.up_bias, z)
    return result + affine(layer.shared.down, layer.shared.down_bias, gate * up)


def expert(experts, e, z):
    gate, up = (
        affine(matrix[e], None if bias is None else bias[e], z)
        for matrix, bias in ((experts.gate, experts.gate_bias), (experts.up, experts.up_bias))
    )
    if hasattr(experts.combine, "limit"):
        alpha, limit = experts.combine
        gate = np.where(gate.real > limit, limit, gate)
        up = np.where(abs(up.real) > limit, limit * np.sign(up.real), up)
        hidden = gate / (1 + np.exp(-alpha * gate)) * (up + 1)
    else:
        hidden = silu(gate) * up
    return affine(
        experts.down[e], None if experts.down_bias is None else experts.down_bias[e], hidden
    )


def feed_forward(layer, states):
    """`eq:mlp-block`."""
    result = np.zeros_like(states)
    for i in range(states.shape[-2]):
        normed = layer_norm(layer.norm, states[..., i, :])
        if hasattr(layer, "router"):
            result[..., i, :] = mixture(layer, normed)
        elif hasattr(layer, "gate"):
            bend = silu if layer.activation is jax.nn.silu else gelu
            gate = bend(affine(layer.gate, layer.gate_bias, normed))
            hidden = gate * affine(layer.up, layer.up_bias, normed)
            result[..., i, :] = affine(layer.down, layer.down_bias, hidden)
        else:
            hidden = gelu(affine(layer.inner, layer.inner_bias, normed))
            result[..., i, :] = affine(layer.outer, layer.outer_bias, hidden)
    return output_normed(layer, result)


def flow(layers, states, horizon, scheme, profile, masks=None, places=None):
    """eq:discrete-residual for "euler", eq:complete-transformer-layer for "split".

    There may be a mask for each layer.
    """
    for k, layer in enumerate(layers):
        step = horizon / len(layers) * profile(k * horizon / len(layers))
        output = attention(layer.attention, states, masks[k] if masks else unmasked, places)
        if scheme == "euler":
            states = states + step * (output + feed_forward(layer.feed_forward, states))
        else:
            states = states + step * output
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
        total = 0
        mass = 0
        for j in range(length):
            images = [j, -1 - j, 2 * length - 1 - j] if edges == "reflecting" else [j]
            for image in images:
                weight = hat((i - image) / length / bandwidth) / bandwidth / length
                total = total + weight * states[..., j, :]
                mass = mass + weight
        result[..., i, :] = total if edges == "zero" else total / mass
    return result


def perturbed(x):
    """One complex step in each entry of x, along a leading axis."""
    return x + 1j * STEP * np.eye(x.size).reshape(x.size, *x.shape)


def derivative(values):
    """The derivatives that complex-step values carry."""
    return values.imag / STEP
