"""Texts without whole documents first, and then without sentences of the documents that matter.

A trial, which the study of prices judges: where a prompt has more sentences than texts tell apart.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

from lim_jax.attribution.ablation_design import balanced_design
from lim_jax.attribution.shrunk_regression import shrunk_regression

Kept = Bool[np.ndarray, "texts parts"]
Values = Float[np.ndarray, " texts"]
Documents = Int[np.ndarray, " parts"]
Prior = Float[np.ndarray, " parts"]

ERRORS = 2  # from zero, beyond which a document matters


def documents_first(
    read: Callable[[Kept], Values], documents: Documents, prior: Prior, texts: int
) -> tuple[Kept, Values]:
    """Choose which parts `texts` texts keep, and read them.

    Half leave out whole documents, and the rest leave out single parts of the documents that
    matter, and others whole.

    Parameters
    ----------
    read
        Reads texts that keep these parts: a value for each, such as the answer's log odds.
    documents
        The number of the document that each part is of.
    prior
        The scores of the parts before.
    texts
        How many are read.
    """
    whole = grouped_design(documents, np.zeros(documents.max() + 1, bool), texts // 2)
    values = read(whole)
    apart = documents_that_matter(documents, whole, values, prior)
    single = grouped_design(documents, apart, texts - len(whole))
    return np.concatenate([whole, single]), np.concatenate([values, read(single)])


def grouped_design(
    groups: Int[np.ndarray, " parts"], apart: Bool[np.ndarray, " groups"], texts: int
) -> Kept:
    """Choose which parts each of `texts` texts keeps, where parts of a group stay or go together.

    Only the parts of the groups that are `apart` stay or go by themselves.
    """
    parts = np.arange(groups.size)
    units = np.unique(np.where(apart[groups], apart.size + parts, groups), return_inverse=True)[1]
    return balanced_design(int(units.max()) + 1, texts)[:, units]


def documents_that_matter(
    documents: Documents, kept: Kept, values: Values, prior: Prior
) -> Bool[np.ndarray, " documents"]:
    """Return which documents the answer hangs on, by texts that keep them whole or not at all.

    These are the ones whose score is beyond two errors of zero; all, where none is.
    """
    firsts = np.unique(documents, return_index=True)[1]
    fit = shrunk_regression(kept[:, firsts], values, np.bincount(documents, prior))
    matter = np.abs(fit.scores) > ERRORS * fit.errors
    return matter if matter.any() else ~matter
