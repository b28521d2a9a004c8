"""Results as labelled arrays: xarray data sets, and pandas tables through them."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import lazy_loader
import numpy as np

from lim_jax._checks import require, require_extra, require_several, require_text
from lim_jax.grid.measure import Grid, require_grid
from lim_jax.results.archive import to_numpy
from lim_jax.results.descriptions import describe

xarray: Any = lazy_loader.load("xarray")  # of the extra; the rest does without
SCALING = "densities: Euclidean gradients over the weight of their position"


def to_xarray(
    result: Any,
    *,
    axes: str = "",
    grid: Grid | None = None,
    tokens: Sequence[str] | None = None,
    model: str = "",
    loss: str = "",
) -> Any:
    r"""Label a result: a data set of named axes, coordinates, units and attributes.

    Needs the extra ``xarray``. An axis of positions has the coordinates ``position`` (p), ``token``
    (from zero), ``weight`` (:math:`\Delta p`) and, where it is given, ``text``.

    Parameters
    ----------
    result
        An influence, a comparison, channels, an explanation, a training path, scores of parts;
        certificates, studies or rows of limits, one or a list; or a bare array, such as that of
        `adjoint.attention_hops`. Not traced.
    axes
        The names of a bare array's axes: ``"depth hop position component"``. Other results name
        their own, by default.
    grid
        The positions of channels and arrays, which hold none; by default those of the result.
    tokens
        The text at each position; by default there is no coordinate ``text``.
    model
        The name of the model, for the attributes; by default none.
    loss
        The name of the loss, for the attributes; by default none.

    Returns
    -------
    xarray.Dataset
        The data set; ``.to_netcdf(path)`` writes it.

    Raises
    ------
    ModuleNotFoundError
        Without the package xarray, of the extra ``xarray``.
    ValueError
        If the result is of another kind or traced, or axes, grid or tokens do not fit it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lim_jax.density import Influence
    >>> regions = lim.boundary_regions(lim.token_grid(4), 0.25)
    >>> influence = Influence.from_energies(jnp.array([[1.0, 2.0, 4.0, 1.0]]), regions)
    >>> data = to_xarray(influence, tokens=["a", "b", "c", "d"], loss="last token")
    >>> data.density.sel(position=0.75).item(), data.text[2].item(), data.loss
    (2.0, 'c', 'last token')
    """
    require_extra("xarray", "xarray")
    for text, name in ((axes, "axes"), (model, "model"), (loss, "loss")):
        require_text(text, name)
    if tokens is not None:
        require_several(tokens, str, "tokens", "Pass the text at each position.")
    description = describe(result, axes)
    arrays = {
        name: _label_array(name, *variable) for name, variable in description.variables.items()
    }
    dims: dict[str, int] = {}
    for axis_names, array, _ in arrays.values():
        dims.update(zip(axis_names, array.shape, strict=True))
    labels = {axis: (axis, np.asarray(values)) for axis, values in description.labels.items()}
    result_grid = description.grid
    if grid is not None:
        require_grid(grid)
        require(
            result_grid in (None, grid),
            "grid",
            got=f"{grid}",
            expected=f"{result_grid}, the result's own",
            cure="Leave it out.",
        )
    labels |= _positions(dims.get("position"), grid if result_grid is None else result_grid, tokens)
    names = {name: text for name, text in (("model", model), ("loss", loss)) if text}
    versions = {"scaling": SCALING, "lim_jax": version("lim_jax")}
    return xarray.Dataset(arrays, labels, {**names, **description.attributes, **versions})


def to_pandas(result: Any, by: str = "", **options: Any) -> Any:
    """Return a result's values along some axes as a table, a row for each point of these axes.

    Parameters
    ----------
    result
        An influence, a comparison, channels, an explanation, a training path, scores of parts;
        certificates, studies or rows of limits, one or a list; or a bare array. Not traced.
    by
        The names of the axes: ``"position"``, ``"region"``, ``"example position"``; by default
        those of what matters most.
    **options
        The keyword arguments of `to_xarray`: ``axes`` of a bare array, ``grid``, ``tokens``,
        ``model`` and ``loss``.

    Returns
    -------
    pandas.DataFrame
        A column for each array that has these axes and no others, and for each coordinate that is
        not in the index.

    Raises
    ------
    ModuleNotFoundError
        Without the package xarray, of the extra ``xarray``.
    ValueError
        If no array has these axes, or `to_xarray` refuses the result or an option.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lim_jax.density import Influence
    >>> regions = lim.boundary_regions(lim.token_grid(4), 0.25)
    >>> influence = Influence.from_energies(jnp.array([[1.0, 2.0, 4.0, 1.0]]), regions)
    >>> to_pandas(influence).density.tolist()
    [0.5, 1.0, 2.0, 0.5]
    >>> to_pandas(influence, "region").regional_average["middle"].item()
    1.5
    """
    require_text(by, "by")
    data = to_xarray(result, **options)
    axes = {name: array.dims for name, array in data.data_vars.items()}
    chosen = set(by.split() or next(iter(axes.values())))
    names = [name for name, dims in axes.items() if set(dims) == chosen != set()]
    require(
        bool(names),
        "by",
        got=repr(by),
        expected=" or ".join(sorted({repr(" ".join(dims)) for dims in axes.values() if dims})),
        cure="Take to_xarray: single numbers have no axis.",
    )
    return data[names].to_dataframe()


def _label_array(
    name: str, axes: str, values: Any, units: str
) -> tuple[list[str], np.ndarray, dict]:
    """Return an array with its axes and its unit; raise ValueError unless all axes are named."""
    array = to_numpy(values)
    names = axes.split()
    require(
        array.ndim == len(names),
        name,
        got=f"{array.ndim} axes",
        expected=f"{len(names)}: {', '.join(names)}",
        cure="Name all of an array's axes; of a result that vmap made, take one example's.",
    )
    return names, array, {"units": units} if units else {}


def _positions(
    size: int | None, grid: Grid | None, tokens: Sequence[str] | None
) -> dict[str, tuple[str, np.ndarray]]:
    """Return the coordinates of positions; raise ValueError unless grid and tokens fit them."""
    lengths = {
        "grid": size if grid is None else grid.size,
        "tokens": size if tokens is None else len(tokens),
    }
    for name, length in lengths.items():
        require(
            length == size,
            name,
            got=f"{length} of them",
            expected=f"{size}, one for each position" if size else "none: there are no positions",
            cure="Pass those of the context that was measured.",
        )
    if size is None:
        return {}
    columns = {"token": np.arange(size)}
    if grid is not None:
        columns |= {"position": to_numpy(grid.nodes), "weight": to_numpy(grid.weights)}
    if tokens is not None:
        columns["text"] = np.array(list(tokens), str)
    return {name: ("position", values) for name, values in columns.items()}
