"""A language model as a whole: a network, and what its publisher says of texts and answers."""

from typing import Any, NamedTuple

from lim_jax._checks import AnyPath, as_path
from lim_jax.checkpoints.gguf_checkpoint import GGUFCheckpoint
from lim_jax.checkpoints.hub import model_path, require_there
from lim_jax.checkpoints.tensor_reader import Source
from lim_jax.checkpoints.text import ChatTemplate, end_ids, find_chat_template, read_tokenizer
from lim_jax.models.causal import CausalLM
from lim_jax.models.reading import HalfPrecision, load_network, open_files, open_network


class LanguageModel(NamedTuple):
    """A network with its tokenizer, chat template and ends, all of one reading of its files.

    By itself a network reads bytes of UTF-8: ``LanguageModel(network)``.

    Attributes
    ----------
    network
        The `CausalLM`.
    tokenizer
        A `tokenizers.Tokenizer`; None where ids are bytes.
    chat_template
        How the publisher lays chats out; None for a model without chats.
    end_ids
        The ids that end an answer.
    name
        The last part of the path, or of the public name.
    source
        The files; None of a network of your own.

    Examples
    --------
    >>> import jax
    >>> from lim_jax.models import byte_model
    >>> model = LanguageModel(byte_model(16, width=4, depth=1, key=jax.random.key(0)))
    >>> model.tokenizer, model.end_ids
    (None, ())
    """

    network: CausalLM
    tokenizer: Any = None
    chat_template: ChatTemplate | None = None
    end_ids: tuple[int, ...] = ()
    name: str = ""
    source: Source | None = None

    def __repr__(self) -> str:
        """Say which model it is, and of what size."""
        network = self.network
        chats = "a" if self.chat_template is not None else "no"
        family = "a network of your own" if self.source is None else self.source.family
        words, width = network.embedding.shape
        return (
            f"LanguageModel({self.name!r}: {family}, {network.flow.depth} layers of width {width}, "
            f"{words:,} words, {network.embedding.dtype.name}, {chats} chat template)"
        )

    @classmethod
    def from_pretrained(
        cls,
        path: AnyPath,
        dtype: str = "float32",
        storage_dtype: HalfPrecision | None = None,
        *,
        compute: str | None = None,
        on_host: bool = False,
        download: bool = False,
    ) -> "LanguageModel":
        """Read a model from a folder, a GGUF file or the cache.

        Parameters
        ----------
        path
            A folder with ``config.json``, safetensors files and a tokenizer; a GGUF file, whose own
            vocabulary is read where no ``tokenizer.json`` lies beside it; or the name of a model in
            the Hugging Face cache.
        dtype
            The precision in which the model computes: "float32", the default, or "float64".
        storage_dtype
            A half precision in which matrices are kept: "float16", "bfloat16" or "as published";
            None for arrays of `dtype`. `models.load` says what each does.
        compute
            The precision of products: "bfloat16" rounds their operands; None is for what
            `jax.default_matmul_precision` says.
        on_host
            Whether what has a `storage_dtype` stays in the host's memory, and a layer goes to the
            device as it is needed.
        download
            Whether to download the files of a public name that the cache lacks.

        Returns
        -------
        LanguageModel
            The network with its weights in memory, and what its publisher says of texts.

        Raises
        ------
        ModuleNotFoundError
            Without the extra ``models``.
        ValueError
            If `models.load` refuses the files, or there is no tokenizer, or one of another kind.
        """
        parts = _look_through(path, download)
        network = load_network(
            parts["source"], dtype, storage_dtype, compute=compute, on_host=on_host
        )
        return cls(network, **parts)

    @classmethod
    def open(
        cls,
        path: AnyPath,
        dtype: str = "float32",
        *,
        compute: str | None = None,
        download: bool = False,
    ) -> "LanguageModel":
        """Read all but the weights, which are left in their files as by `models.open`.

        Parameters
        ----------
        path
            A folder, a GGUF file, or the name of a model in the Hugging Face cache.
        dtype
            The precision in which the model computes: "float32", the default, or "float64".
        compute
            The precision of products: "bfloat16" rounds their operands; None is for what
            `jax.default_matmul_precision` says.
        download
            Whether to download the files of a public name that the cache lacks.

        Returns
        -------
        LanguageModel
            The network with its weights in their files, and what its publisher says of texts.

        Raises
        ------
        ModuleNotFoundError
            Without the extra ``models``.
        ValueError
            If `models.open` refuses the files, or there is no tokenizer, or one of another kind.
        """
        parts = _look_through(path, download)
        return cls(open_network(parts["source"], dtype, compute), **parts)

    def loaded(self) -> "LanguageModel":
        """Return the same model with its weights read into memory from the opened files."""
        if self.source is None:
            return self
        dtype = self.network.embedding.dtype.name
        compute = self.network.flow.compute
        return self._replace(network=load_network(self.source, dtype, compute=compute))


def _look_through(path: AnyPath, download: bool) -> dict[str, Any]:
    """Read all but the network, so that what is missing is refused before weights are read."""
    name = as_path(path).absolute().name.removesuffix(".gguf")
    path = model_path(path, download=download)
    require_there(path)
    source = open_files(path)
    header = source.header if isinstance(source, GGUFCheckpoint) else {}
    return {
        "tokenizer": read_tokenizer(path, header),
        "source": source,
        "name": name,
        "chat_template": find_chat_template(path, header),
        "end_ids": end_ids(path, header),
    }
