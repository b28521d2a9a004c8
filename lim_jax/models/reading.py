"""Networks read from published files, or left in them."""

from typing import Literal, get_args

from jax.sharding import Mesh

from lim_jax._checks import AnyPath, require, require_name
from lim_jax.checkpoints.checkpoint import json_object, open_checkpoint
from lim_jax.checkpoints.decoder import read_decoder
from lim_jax.checkpoints.families.family_table import recipe_of, refuse_unsupported
from lim_jax.checkpoints.gguf_file import open_gguf
from lim_jax.checkpoints.gguf_header import is_gguf
from lim_jax.checkpoints.hub import model_path, require_there
from lim_jax.checkpoints.multimodal import text_part
from lim_jax.checkpoints.options import refuse_other_architectures
from lim_jax.checkpoints.placement import (
    MIXED,
    WeightPlacement,
    host_memory,
    offloaded,
    on_device,
    published_precision,
)
from lim_jax.checkpoints.rope_config import trained_length
from lim_jax.checkpoints.sharding import shard
from lim_jax.checkpoints.tensor_reader import Source
from lim_jax.models.causal import CausalLM

HalfPrecision = Literal["as published", "float16", "bfloat16"]
STORAGE_DTYPES = get_args(HalfPrecision)


def load(
    path: AnyPath,
    dtype: str = "float32",
    storage_dtype: HalfPrecision | None = None,
    mesh: Mesh | None = None,
    *,
    compute: str | None = None,
    on_host: bool = False,
    download: bool = False,
) -> CausalLM:
    """Read a model from a folder of weights as its publisher left it, or from a GGUF file.

    On a CPU the process grows by 1.01 to 1.10 times the weights at most
    (``benchmarks/loading.py``).

    Parameters
    ----------
    path
        A folder with ``config.json`` and safetensors files, or a GGUF file, of one of
        `families.FAMILIES`; or the name of a model in the Hugging Face cache.
    dtype
        The precision in which the model computes, and of the weights that come back: "float32", the
        default, or "float64".
    storage_dtype
        A half precision in which matrices are kept, each layer widened to float32 as it is needed,
        or multiplied as it is where `compute` is "bfloat16"; None for arrays of `dtype`.
        ``"as published"`` loses nothing: full and half precision stay, and what is quantised or
        mixed is left in its files, as by `open`. Else "float16" or "bfloat16". It needs the `dtype`
        "float32".
    mesh
        Devices to shard the weights over, by heads and hidden features, along the axis of the mesh
        that is named ``model``, of type Auto. None for the default device.
    compute
        The precision of products, of `network.ResidualFlow`: "bfloat16" rounds their operands; None
        is for what `jax.default_matmul_precision` says.
    on_host
        Whether what has a `storage_dtype` stays in the host's memory, and a layer goes to the
        device as it is needed: for networks larger than the device. Derivatives in such weights
        raise NotImplementedError. It needs `storage_dtype`, and no `mesh`.
    download
        Whether to download the files of a public name that the cache lacks.

    Returns
    -------
    CausalLM
        The model, with its weights in memory.

    Raises
    ------
    ModuleNotFoundError
        Without the extra ``models``: ``python -m pip install "lim_jax[models]"``.
    ValueError
        If the folder or file is broken, the family or an option of it is not known, tensors are
        missing, surplus, of another shape, or not finite, or arguments exclude one another.
    """
    source = open_files(path, download=download)
    return load_network(source, dtype, storage_dtype, mesh, compute=compute, on_host=on_host)


def open(
    path: AnyPath, dtype: str = "float32", *, compute: str | None = None, download: bool = False
) -> CausalLM:
    """Check a model's files as `load` does, and leave its weights in them.

    A layer is read as a program comes to it, while a thread reads the next one; of the embedding
    the rows of a context are read, of the head some thousand rows at a time. So measuring takes the
    memory of some two layers and the states (`profile_memory`), and influence reads every layer at
    most twice. Everything works that goes through `network.ResidualFlow.scan`; derivatives in the
    weights raise `NotImplementedError`. Numbers are those of `load`. The files must stay as they
    are.

    Parameters
    ----------
    path
        A folder with ``config.json`` and safetensors files, a GGUF file, or the name of a model in
        the Hugging Face cache.
    dtype
        The precision in which the model computes: "float32", the default, or "float64".
    compute
        The precision of products: "bfloat16" rounds their operands; None is for what
        `jax.default_matmul_precision` says.
    download
        Whether to download the files of a public name that the cache lacks.

    Returns
    -------
    CausalLM
        The model, with its layers, its embedding and its head in their files.

    Raises
    ------
    ModuleNotFoundError
        Without the extra ``models``.
    ValueError
        If the folder or file is broken, the family or an option of it is not known, or tensors are
        missing, surplus or of another shape; a layer's numbers that are not finite are noticed when
        it is read.
    """
    return open_network(open_files(path, download=download), dtype, compute)


def open_files(path: AnyPath, *, download: bool = False) -> Source:
    """Open a model's files as `load` takes them: read options and where tensors are, no weights."""
    path = model_path(path, download=download)
    if is_gguf(path):
        return open_gguf(path)
    require_there(path)
    config = path / "config.json"
    if config.is_file():  # what it is, before how it is stored
        refuse_unsupported(json_object(config))
    return text_part(open_checkpoint(path))


def load_network(
    source: Source,
    dtype: str = "float32",
    storage_dtype: HalfPrecision | None = None,
    mesh: Mesh | None = None,
    *,
    compute: str | None = None,
    on_host: bool = False,
) -> CausalLM:
    """Read a network from files opened by `open_files`; the arguments are those of `load`."""
    require(
        storage_dtype is None or (storage_dtype in STORAGE_DTYPES and dtype == "float32"),
        "storage_dtype",
        got=f"{storage_dtype!r} with dtype {dtype!r}",
        expected=f"None, or one of {STORAGE_DTYPES} with dtype 'float32'",
        cure=(
            "Take dtype='float32', to which half precision is converted, or leave `storage_dtype` "
            "out."
        ),
    )
    require(
        not on_host or (storage_dtype is not None and mesh is None),
        "on_host",
        got=f"storage_dtype={storage_dtype!r}, mesh={mesh}",
        expected="a storage_dtype, and no mesh",
        cure=(
            "Pass `storage_dtype` and no mesh: the host stores matrices in half precision, for one "
            "device."
        ),
    )
    precision = published_precision(source) if storage_dtype == STORAGE_DTYPES[0] else storage_dtype
    if mesh is not None:
        placement = shard(mesh, None if precision == MIXED else precision)
    elif precision == MIXED:
        placement = offloaded(source, dtype)
    elif on_host and precision is not None:
        placement = host_memory(source, precision)
    else:
        placement = on_device(precision)
    return _network(source, dtype, placement, compute)


def open_network(source: Source, dtype: str, compute: str | None = None) -> CausalLM:
    """Make a network of files opened by `open_files`, and leave the weights in them."""
    return _network(source, dtype, offloaded(source, dtype), compute)


def _network(
    source: Source, dtype: str, placement: WeightPlacement, compute: str | None
) -> CausalLM:
    """Read a network with a placement of weights; raise ValueError at tensors left over."""
    require_name(
        dtype,
        ("float32", "float64"),
        "dtype",
        (
            "Pass one of these: models compute in full precision. To store weights in half "
            "precision take `storage_dtype`."
        ),
    )
    recipe = recipe_of(source.config)
    refuse_other_architectures(source.config, source.config["model_type"])
    weights = read_decoder(source, dtype, recipe, placement, compute)
    surplus = sorted(set(source.files) - weights.read_names)
    require(
        not surplus,
        "tensors",
        got=f"{', '.join(surplus[:3])}, which the family does not have",
        expected="the tensors of the family",
        cure="Take the options of the weights' own family, or a checkpoint without these tensors.",
    )
    # A network with learned positions has no more of them than it was trained on.
    trained = trained_length(source.config) if weights.parts["positions"] is None else None
    return CausalLM(**weights.parts, trained=trained, longest=recipe.longest)
