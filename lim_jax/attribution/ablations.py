"""Parts of a context left out, and its loss without them: what is left closes up."""

from collections.abc import Sequence
from typing import Any

import lazy_loader
import numpy as np
from jaxtyping import Bool, Float, Int

from lim_jax._checks import require, require_extra
from lim_jax.attribution.parts import windows_and_asked
from lim_jax.density.adjoints import Loss
from lim_jax.models.causal import CausalLM
from lim_jax.models.ids import losses_of_ids
from lim_jax.prompts.contexts import Context

sklearn: Any = lazy_loader.load("sklearn")  # of the extra; the rest does without
Places = Sequence[Int[np.ndarray, " _"]]
ABLATIONS = 64  # on which a sparse regression is fitted
Kept = Bool[np.ndarray, "ablations parts"]


def without_parts(context: Context, places: Places, kept: Bool[np.ndarray, " parts"]) -> Context:
    """A context without the parts that are not kept, closed up; one of no names."""
    first = int(np.flatnonzero(context.weights)[0])
    stays = np.ones(context.length, bool)
    for number in np.flatnonzero(~kept).tolist():
        stays[places[number]] = False
    stays[first:] = True
    window, asked = context.window[np.append(stays, True)], context.contrast
    if asked is not None:
        asked = asked._replace(length=np.array(stays.sum(), np.int32))
    tokens = tuple(token for token, stay in zip(context.tokens, stays, strict=True) if stay)
    return context._replace(
        window=window, weights=context.weights[stays], tokens=tokens, spans=(), contrast=asked
    )


def losses_without(
    model: CausalLM, context: Context, places: Places, kept: Kept, loss: Loss
) -> Float[np.ndarray, " ablations"]:
    """The loss of a context without some of its parts, once for each row of `kept`."""
    require(int(np.flatnonzero(context.weights)[0]) > 0, "loss", got="one that asks at every place",
            expected="one of an answer",
            cure="What is left out may not be asked: take the loss answer or margin.")  # fmt: skip
    windows, asked = windows_and_asked([without_parts(context, places, row) for row in kept])
    return losses_of_ids(model, windows, ask=asked, loss=loss)


def leave_one_out(
    model: CausalLM, context: Context, places: Places, loss: Loss
) -> Float[np.ndarray, " parts"]:
    """By how much the loss rises without each part."""
    kept = np.concatenate([np.ones((1, len(places)), bool), ~np.eye(len(places), dtype=bool)])
    losses = losses_without(model, context, places, kept, loss)
    return losses[1:] - losses[0]


def ablations(
    model: CausalLM, context: Context, places: Places, loss: Loss
) -> Float[np.ndarray, " parts"]:
    """Coefficients of a sparse regression of minus the loss on parts kept, each by a coin."""
    rng = np.random.default_rng(0)
    kept = rng.integers(2, size=(ABLATIONS, len(places))).astype(bool)
    return sparse_regression(kept, -losses_without(model, context, places, kept, loss))


def sparse_regression(
    kept: Kept, values: Float[np.ndarray, " ablations"], strength: float = 0.01
) -> Float[np.ndarray, " parts"]:
    """A Lasso from which parts are kept to a value, such as the answer's log odds.

    On features of mean zero and variance one, with the `strength` of Cohen-Wang, Shah, Georgiev and
    Madry, "ContextCite: attributing model generation to context" (2024); in the value's units.
    """
    require_extra("sklearn", "faithfulness")
    features = np.asarray(kept, float)
    scale = features.std(axis=0)
    scale = np.where(scale > 0, scale, 1)
    fitted = sklearn.linear_model.Lasso(alpha=strength)
    fitted.fit((features - features.mean(axis=0)) / scale, np.asarray(values, float))
    return fitted.coef_ / scale
