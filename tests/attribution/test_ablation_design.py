"""Which parts texts keep: orthogonal, balanced, with complements, and all sets of few parts."""

import numpy as np
import pytest

from lim_jax.attribution.ablation_design import balanced_design


@pytest.mark.parametrize(("parts", "order"), [(5, 8), (7, 8), (8, 16), (11, 16)])
def test_as_many_texts_as_the_order_keep_each_pair_of_parts_equally_often(parts, order):
    """Signs of kept and left out are orthogonal columns, each of sum zero."""
    signs = np.where(balanced_design(parts, order), 1, -1)
    np.testing.assert_array_equal(signs.T @ signs, order * np.eye(parts))
    np.testing.assert_array_equal(signs.sum(axis=0), 0)


def test_complements_follow_and_then_other_columns():
    rows = balanced_design(6, 27)
    assert rows.shape == (27, 6)
    np.testing.assert_array_equal(rows[8:16], ~rows[:8])
    np.testing.assert_array_equal(rows[24:], ~rows[16:19])
    assert not np.array_equal(rows[16:24], rows[:8])
    np.testing.assert_array_equal(balanced_design(6, 5), rows[:5])


def test_few_texts_tell_all_parts_apart():
    """No two parts of forty are in the same of sixteen texts, none in all of them or in none."""
    rows = balanced_design(40, 16)
    columns = {column.tobytes() for column in rows.T}
    assert len(columns) == 40
    assert 0 < rows.mean(axis=0).min() and rows.mean(axis=0).max() < 1


def test_of_few_parts_each_set_comes_once():
    rows = balanced_design(3, 16)
    assert sorted(map(tuple, rows.tolist())) == sorted(
        (a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)
    )
