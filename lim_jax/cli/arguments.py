"""Arguments that several commands take."""

from typing import Annotated

import tyro

from lim_jax._checks import AnyPath
from lim_jax.attribution.methods import METHODS, MethodName
from lim_jax.models.losses import LOSSES, LossName

# On the command line either is a path.
Named = Annotated[AnyPath, tyro.conf.arg(metavar="PATH")]
Unnamed = Annotated[AnyPath | None, tyro.conf.arg(metavar="{None}|PATH")]
KINDS = "; ".join(f"{name}, {kind.words}" for name, kind in LOSSES.items())
HELP = (
    f"What is asked: {KINDS}. The influence on log odds does not fade where the model is sure. "
    "Where a loss asks for an answer, and a line has none, the model's own is asked."
)
Asked = Annotated[LossName, tyro.conf.arg(help=HELP)]
WORDS = "; ".join(f"{name}, {method.words}" for name, method in METHODS.items())
Method = Annotated[MethodName, tyro.conf.arg(help=f"How parts are scored: {WORDS}.")]
