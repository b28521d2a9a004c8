"""Arguments that several commands take."""

from collections.abc import Iterable
from typing import Annotated, Literal, get_args

import tyro

from lim_jax._checks import AnyPath
from lim_jax.attribution.methods.method_table import METHODS, MethodName
from lim_jax.cli.argument_check import Bounds
from lim_jax.models.loss_kinds import LOSSES, LossName, OnePassLoss

# On the command line either is a path.
Documents = Annotated[AnyPath, tyro.conf.arg(metavar="DOCUMENTS")]
Data = Annotated[AnyPath, tyro.conf.arg(metavar="FILE")]
FirstFolder = Annotated[AnyPath, tyro.conf.arg(metavar="A")]
SecondFolder = Annotated[AnyPath, tyro.conf.arg(metavar="B")]
QuestionText = Annotated[str, tyro.conf.arg(metavar="QUESTION")]
# A text whatever its word: tyro reads "None" as no text where a text may be left out.
AnswerText = Annotated[
    str | None,
    tyro.conf.arg(metavar="STR", constructor=str, help_behavior_hint="(default: none)"),
]
FoilText = Annotated[str, tyro.conf.arg(metavar="STR", help_behavior_hint="(default: none)")]
Count = Annotated[int, Bounds(1)]
Counts = Annotated[tuple[int, ...], Bounds(1)]
CountOrNone = Annotated[int | None, Bounds(1)]
CountOrZero = Annotated[int, Bounds(0)]
Seed = Annotated[int, Bounds(0, 2**32 - 1)]
Unnamed = Annotated[AnyPath | None, tyro.conf.arg(metavar="{None}|PATH")]
MODEL_HELP = (
    "A folder of weights as published, a GGUF file, or a public name such as "
    "HuggingFaceTB/SmolLM2-135M-Instruct; with its tokenizer."
)
Model = Annotated[AnyPath, tyro.conf.arg(metavar="MODEL", help=MODEL_HELP)]


def loss_help(names: Iterable[str]) -> str:
    """Say what each of these losses asks."""
    kinds = "; ".join(f"{name}, {LOSSES[name].words}" for name in names)
    return (
        f"What is asked: {kinds}. The influence on log odds does not fade where the model is sure. "
        "Where a loss asks for an answer, and a line has none, the model's own is asked."
    )


Loss = Annotated[LossName, tyro.conf.arg(help=loss_help(LOSSES))]
ExplainedLoss = Annotated[OnePassLoss, tyro.conf.arg(help=loss_help(get_args(OnePassLoss)))]
METHODS_IN_WORDS = "; ".join(f"{name}, {method.words}" for name, method in METHODS.items())
METHOD_HELP = (
    "How parts are scored, by default by mask-path where that takes seconds, else by "
    f"mask-gradient: {METHODS_IN_WORDS}."
)
Method = Annotated[MethodName | None, tyro.conf.arg(help=METHOD_HELP)]
PARTS_METHOD_HELP = f"Score named parts in place of measuring densities: {METHODS_IN_WORDS}."
PartsMethod = Annotated[MethodName | None, tyro.conf.arg(help=PARTS_METHOD_HELP)]
DOWNLOAD_HELP = (
    "Download the model where a public name is not in the cache. Without, a terminal is asked, "
    "and anything else refused."
)
Download = Annotated[bool, tyro.conf.arg(help=DOWNLOAD_HELP)]
MEMORY_HELP = (
    "How many GiB may be used, by default all that is free. A network that needs more is left in "
    "its files and read a layer at a time."
)
Memory = Annotated[float | None, Bounds(0, beyond=True), tyro.conf.arg(help=MEMORY_HELP)]
COMPUTE_HELP = (
    "The precision of products, whose sums stay in float32. Without, JAX's own: on a processor "
    "float32, with which bfloat16 differs by some per cent; it takes some two thirds of the time "
    "on one that multiplies bfloat16 (AVX512-BF16, AMX), and maybe longer on another."
)
Compute = Annotated[
    Literal["bfloat16", "tensorfloat32", "float32"] | None, tyro.conf.arg(help=COMPUTE_HELP)
]
Out = Annotated[AnyPath, tyro.conf.arg(metavar="PATH", help="The folder to write to.")]
OVERWRITE_HELP = "Write over what is in the folder. Without, it must be empty, or of this run."
Overwrite = Annotated[bool, tyro.conf.arg(help=OVERWRITE_HELP)]
