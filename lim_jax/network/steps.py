r"""Steps of a residual recursion: how one layer moves the state.

A step is a function ``step(field, x, grid, increment)``, which `flow.ResidualFlow` calls for layer
k with the increment :math:`\varepsilon\,\zeta(t_k)`.
"""

from typing import Any

from lim_jax._checks import require, require_callable, require_scalar
from lim_jax.grid.measure import Grid, Scalar, require_on_grid
from lim_jax.network.slots import Field, State


def euler(field: Field, x: State, grid: Grid, increment: Scalar | float) -> State:
    r"""Take one residual step :math:`x + \varepsilon\zeta\,\mathscr F(x)` (`eq:discrete-residual`).

    Parameters
    ----------
    field
        A layer ``field(x, context, grid)``, which is given x in both slots.
    x
        The state, of shape ``(length, width)``.
    grid
        The positions.
    increment
        The scalar :math:`\varepsilon\zeta(t_k)`.

    Returns
    -------
    State
        The next state, of the shape of x.

    Raises
    ------
    ValueError
        If the state does not fit the grid, the field is no function, or the increment no scalar.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> euler(lambda x, context, grid: -context, jnp.ones((2, 1)), lim.token_grid(2), 0.5).tolist()
    [[0.5], [0.5]]
    """
    _require_step(field, x, grid, increment)
    return x + increment * field(x, x, grid)


def split(field: Any, x: State, grid: Grid, increment: Scalar | float) -> State:
    r"""Take one pre-norm layer: the steps of the field's sublayers, one after the other.

    :math:`\tilde x = x + \varepsilon\zeta\,\mathrm{Attn}(x)`, then
    :math:`\tilde x + \varepsilon\zeta\,\mathrm{FNN}(\tilde x)` (`eq:complete-transformer-layer`).
    It differs from `euler` by :math:`O(\varepsilon^2)` in each step.

    Parameters
    ----------
    field
        A layer with `sublayers`, such as a `TransformerField`: fields
        ``sublayer(x, context, grid)``.
    x
        The state, of shape ``(length, width)``.
    grid
        The positions.
    increment
        The scalar :math:`\varepsilon\zeta(t_k)` of every sublayer.

    Returns
    -------
    State
        The next state, of the shape of x.

    Raises
    ------
    ValueError
        If the field has no `sublayers`, the state does not fit the grid, or the increment is no
        scalar.
    """
    _require_sublayers(field)
    for sublayer in field.sublayers:
        x = euler(sublayer, x, grid, increment)
    return x


def heun(field: Field, x: State, grid: Grid, increment: Scalar | float) -> State:
    r"""Take Heun's step, of order 2 in depth for a field that does not change within the layer.

    By the mean of the field at x and at its `euler` step. To follow a control to order 2, sample it
    in the middle of each layer.

    Parameters
    ----------
    field
        A layer ``field(x, context, grid)``, which is given the same state in both slots.
    x
        The state, of shape ``(length, width)``.
    grid
        The positions.
    increment
        The scalar :math:`\varepsilon\zeta(t_k)`.

    Returns
    -------
    State
        The next state, of the shape of x.

    Raises
    ------
    ValueError
        If the state does not fit the grid, the field is no function, or the increment no scalar.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> heun(lambda x, context, grid: -context, jnp.ones((2, 1)), lim.token_grid(2), 0.5).tolist()
    [[0.625], [0.625]]
    """
    _require_step(field, x, grid, increment)
    slope = field(x, x, grid)
    ahead = x + increment * slope
    return x + increment * (slope + field(ahead, ahead, grid)) / 2


def strang(field: Any, x: State, grid: Grid, increment: Scalar | float) -> State:
    r"""Take a symmetric layer: the sublayers for half a step, then in reverse for the other half.

    Each by `heun`, so the step is of order 2 where `split` is of order 1.

    Parameters
    ----------
    field
        A layer with `sublayers`, such as a `TransformerField`: fields
        ``sublayer(x, context, grid)``.
    x
        The state, of shape ``(length, width)``.
    grid
        The positions.
    increment
        The scalar :math:`\varepsilon\zeta(t_k)`, of which every sublayer takes two halves.

    Returns
    -------
    State
        The next state, of the shape of x.

    Raises
    ------
    ValueError
        If the field has no `sublayers`, the state does not fit the grid, or the increment is no
        scalar.
    """
    _require_sublayers(field)
    require_scalar(increment, "increment")
    for sublayer in (*field.sublayers, *reversed(field.sublayers)):
        x = heun(sublayer, x, grid, increment / 2)
    return x


def rk4(field: Field, x: State, grid: Grid, increment: Scalar | float) -> State:
    r"""Take the classical Runge--Kutta step, of order 4 for a field that is constant in the layer.

    Parameters
    ----------
    field
        A layer ``field(x, context, grid)``, which is given the same state in both slots.
    x
        The state, of shape ``(length, width)``.
    grid
        The positions.
    increment
        The scalar :math:`\varepsilon\zeta(t_k)`.

    Returns
    -------
    State
        The next state, of the shape of x.

    Raises
    ------
    ValueError
        If the state does not fit the grid, the field is no function, or the increment no scalar.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> state = rk4(lambda x, context, grid: -context, jnp.ones((1, 1)), lim.token_grid(1), 0.5)
    >>> round(float(state[0, 0]), 6)  # 1 - h + h^2/2 - h^3/6 + h^4/24
    0.606771
    """
    _require_step(field, x, grid, increment)

    def slope(state: State) -> State:
        """Evaluate the field at a state."""
        return field(state, state, grid)

    first = slope(x)
    second = slope(x + increment / 2 * first)
    third = slope(x + increment / 2 * second)
    fourth = slope(x + increment * third)
    return x + increment / 6 * (first + 2 * second + 2 * third + fourth)


def _require_sublayers(field: Any) -> None:
    """Raise ValueError unless a field has sublayers."""
    require(
        hasattr(field, "sublayers"),
        "field",
        got=f"{type(field).__name__} without sublayers",
        expected="a field such as TransformerField",
        cure="Give the field its sublayers, or take the step euler.",
    )


def _require_step(field: Any, x: State, grid: Grid, increment: Scalar | float) -> None:
    """Raise ValueError unless the arguments of a step fit."""
    require_callable(field, "field", "field(x, context, grid)")
    require_on_grid(x, grid, "x", "length width")
    require_scalar(increment, "increment")
