"""Texts without whole documents, then without parts of those that matter, of made effects."""

import numpy as np
import pytest

from benchmarks.validation.documents_first import (
    documents_first,
    documents_that_matter,
    grouped_design,
)
from lim_jax.attribution.ablation_design import balanced_design
from lim_jax.attribution.shrunk_regression import shrunk_regression

DOCUMENTS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3])
EFFECTS = np.array([3, -1, 0.5, 0, 0, 0.2, -1.2, -1, 0, 0, 0])
PRIOR = np.array([1, -0.5, 0, 0.1, 0, 0.3, -0.5, -1, 0, 0, 0.2])


class Read:
    """Reads texts by effects of the parts they keep, and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, kept):
        self.asked.append(kept)
        noise = np.random.default_rng(len(self.asked)).normal(size=len(kept))
        return kept @ EFFECTS + 0.05 * noise


def test_half_of_the_texts_leave_out_documents_and_the_rest_parts_of_those_that_matter():
    """The first and the third matter, which with the two others whole are nine units."""
    read = Read()
    kept, values = documents_first(read, DOCUMENTS, PRIOR, 21)
    whole, single = read.asked
    np.testing.assert_array_equal(whole, balanced_design(4, 10)[:, DOCUMENTS])
    units = np.array([2, 3, 4, 0, 0, 5, 6, 7, 8, 1, 1])
    np.testing.assert_array_equal(single, balanced_design(9, 11)[:, units])
    np.testing.assert_array_equal(kept, np.concatenate([whole, single]))
    again = Read()
    np.testing.assert_array_equal(values, np.concatenate([again(whole), again(single)]))


def test_sets_of_two_documents_leave_the_other_texts_to_parts():
    """Two documents have four sets, so that nine of thirteen texts are of the parts."""
    read = Read()
    kept, values = documents_first(read, DOCUMENTS // 2, PRIOR, 13)
    assert [len(asked) for asked in read.asked] == [4, 9]
    assert kept.shape == (13, 11) and values.shape == (13,)


@pytest.mark.parametrize("seed", [1, 2, 3, 11])
def test_documents_matter_whose_score_is_beyond_two_errors(seed):
    """The regression on documents alone, with the sums of their parts' scores before."""
    whole = balanced_design(4, 8)
    noise = np.random.default_rng(seed).normal(size=8)
    values = whole @ np.array([0.6, 0.0, -0.7, 0.2]) + 0.3 * noise
    sums = [sum(PRIOR[part] for part in np.flatnonzero(DOCUMENTS == n)) for n in range(4)]
    fit = shrunk_regression(whole, values, np.array(sums))
    expected = (fit.scores < -2 * fit.errors) | (fit.scores > 2 * fit.errors)
    assert 0 < expected.sum() < 4
    matter = documents_that_matter(DOCUMENTS, whole[:, DOCUMENTS], values, PRIOR)
    np.testing.assert_array_equal(matter, expected)


def test_where_no_document_matters_all_are_cut_into_parts():
    noise = np.random.default_rng(1).normal(size=8)
    whole = balanced_design(4, 8)[:, DOCUMENTS]
    assert documents_that_matter(DOCUMENTS, whole, noise, 0 * PRIOR).all()


def test_parts_of_groups_that_are_apart_stay_or_go_by_themselves():
    """Two parts of the second group; the third of one: orthogonal columns of four units."""
    groups = np.array([0, 1, 0, 1, 2])
    rows = grouped_design(groups, np.array([False, True, False]), 8)
    np.testing.assert_array_equal(rows[:, 0], rows[:, 2])
    signs = np.where(rows[:, [0, 1, 3, 4]], 1, -1)
    np.testing.assert_array_equal(signs.T @ signs, 8 * np.eye(4))
    apart = grouped_design(groups, np.ones(3, bool), 16)
    np.testing.assert_array_equal(apart, balanced_design(5, 16))
