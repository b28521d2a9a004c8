"""Results in a file: every number comes back, other tools open it, and the rest is refused."""

import json
import zipfile
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.made_results import (
    CERTIFICATES,
    GRID,
    KINDS,
    STUDY,
    channels,
    explanation,
    influence,
    numbers,
    of_kind,
)

import lim_jax as lim
from lim_jax.adjoint import RegionalChannels
from lim_jax.limits.network_studies import Rates
from lim_jax.limits.rows import Row
from lim_jax.results import load, save, to_pandas, to_xarray


def assert_same(copy, expected):
    """The same pytree, to the last bit and in the same precision; NaN is NaN."""
    assert jax.tree.structure(copy) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(copy), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert type(ours) is type(theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_result_comes_back(kind, tmp_path):
    save(of_kind(kind), tmp_path / "found.npz")
    assert_same(load(tmp_path / "found.npz"), of_kind(kind))


OF_REGIONS = {
    "graded, some left out": (lambda dtype: lim.graded_grid(7, dtype), "1/3", "overlap", [0, 2]),
    "points of tokens": (lambda dtype: lim.token_grid(11, dtype), "3/10", "points", []),
    "panels": (lambda dtype: lim.gauss_grid(5, panels=3, dtype=dtype), "1/7", "overlap", [1]),
    "a window": (lambda dtype: lim.token_grid(8, dtype).windowed(3), 0.25, "overlap", [7]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_REGIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_influence_comes_back_ready_to_be_merged(name, dtype, tmp_path):
    make, delta, convention, left_out = OF_REGIONS[name]
    regions = lim.boundary_regions(make(dtype), delta, convention).without(left_out)
    expected = influence(regions, dtype=dtype)
    save(expected, tmp_path / "found.npz")
    copy = load(tmp_path / "found.npz")
    assert_same(copy, expected)
    assert copy.regions == regions and copy.energy.dtype == dtype
    assert copy.regions.delta == Fraction(str(delta))  # exactly
    both = copy.merge(expected)
    assert float(both.count) == 10 and both.example_energies.shape == (10, regions.grid.size)
    np.testing.assert_allclose(both.energy, expected.energy, rtol=1e-6)


def test_rates_come_back_as_rates_and_are_laid_out_as_their_rows(tmp_path):
    rows = [Row("one, left", STUDY, 1.0), Row("two", STUDY, None, "no bound")]
    rates = Rates(rows)
    save({"rates": rates}, tmp_path / "found.npz")
    copy = load(str(tmp_path / "found.npz"))["rates"]
    assert type(copy) is Rates and copy == rates and copy.agree == rates.agree
    assert to_xarray(rates).identical(to_xarray(rows))
    assert to_pandas(rates, "study").equals(to_pandas(rows, "study"))


def test_what_numpy_has_no_precision_for_comes_back_too(tmp_path):
    expected = RegionalChannels(numbers(0, 2, 3, 3, 3).astype(jnp.bfloat16))
    save(expected, tmp_path / "found.npz")
    assert_same(load(tmp_path / "found.npz"), expected)
    assert np.load(tmp_path / "found.npz")["products"].dtype == np.float32  # which all tools know


def test_numpy_and_json_open_the_file(tmp_path):
    expected = influence()
    save(expected, tmp_path / "found.npz")
    with np.load(tmp_path / "found.npz", allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["energy"], expected.energy)
        np.testing.assert_array_equal(archive["example_energies"], expected.example_energies)
        header = json.loads(archive["header"].item())
    assert (header["format"], header["version"]) == ("lim_jax result", 1)
    parts = header["result"]["parts"]["regions"]["parts"]
    assert parts["delta"] == {"fraction": "1/3"} and parts["left_out"] == {"tuple": [0, 2]}


def rewritten(path, **changes):
    """The file with another header, or other arrays."""
    entries = dict(np.load(path))
    header = json.loads(entries.pop("header").item()) | changes
    np.savez(path, header=np.array(json.dumps(header)), **entries)


def with_another_kind(path):
    rewritten(path, result={"kind": "training.ObservedTokens", "parts": {}})


def without_an_array(path):
    entries = {name: array for name, array in np.load(path).items() if name != "energy"}
    np.savez(path, **entries)


def with_one_bit_flipped(path):
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("energy.npy").header_offset + 200
    content[place] ^= 1
    path.write_bytes(content)


def of_one_array(path):
    np.save(path.with_suffix(".npy"), np.ones(3))
    path.with_suffix(".npy").replace(path)


def with_an_unknown_compression(path):
    content = path.read_bytes()
    place = content.index(b"PK\x01\x02") + 10  # of the first entry in the table of contents
    path.write_bytes(content[:place] + b"\x63\x00" + content[place + 2 :])


def of_text(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header", "no array")


def of_objects(path):
    np.savez(path, header=np.array({"format": "lim_jax result"}, object))


DAMAGED = {
    "another version": (lambda path: rewritten(path, version=2), "version 2 of the format"),
    "another kind": (with_another_kind, "'training.ObservedTokens', expected one of adjoint"),
    "another program's": (lambda path: rewritten(path, format="theirs"), "without our header"),
    "no header": (lambda path: np.savez(path, energy=np.ones(3)), "without our header"),
    "a header that is a number": (
        lambda path: np.savez(path, header=np.ones(3)), "without our header",
    ),
    "text": (lambda path: path.write_text("p,density\n", encoding="utf-8"), "another format"),
    "nothing": (lambda path: path.write_bytes(b""), "another format"),
    "a bare array": (of_one_array, "another format"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-300]), "damaged archive"),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:200]), "damaged archive"),
    "a flipped bit": (with_one_bit_flipped, "damaged archive"),
    "objects": (of_objects, "damaged archive"),
    "a compression of later": (with_an_unknown_compression, "damaged archive"),
    "text in an archive": (of_text, "without our header"),
    "a header of nothing": (lambda path: rewritten(path, result={}), "does not fit its arrays"),
    "a fraction of nothing": (
        lambda path: rewritten(path, result={"fraction": "1/0"}), "does not fit its arrays",
    ),
    "a word for a number": (
        lambda path: rewritten(path, result={"float": "one"}), "does not fit its arrays",
    ),
    "an array lost": (without_an_array, "does not fit its arrays"),
    "missing": (lambda path: path.unlink(), "expected a file"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_no_result_is_refused_by_name(damage, tmp_path):
    path = tmp_path / "found.npz"
    save(influence(), path)
    break_it, message = DAMAGED[damage]
    break_it(path)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_numbers_finer_than_jax_is_set_to_are_refused_not_rounded(tmp_path):
    save(influence(), tmp_path / "found.npz")
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="numbers of float64, .*enable_x64"),
    ):
        load(tmp_path / "found.npz")
    coarse = influence(
        lim.boundary_regions(lim.graded_grid(7, jnp.float32), "1/3"), dtype=np.float32
    )
    save(coarse, tmp_path / "found.npz")
    with jax.enable_x64(False):
        assert load(tmp_path / "found.npz").energy.dtype == np.float32


def test_what_cannot_be_written_is_refused_and_nothing_is_lost(tmp_path, monkeypatch):
    path = tmp_path / "found.npz"
    save(STUDY, path)
    for wrong, message in (
        (GRID.nodes.tolist, "result: got"),
        ({"a": object()}, "a: got object"),
        *(({name: np.ones(2)}, "an array named") for name in ("header", "file", "allow_pickle")),
    ):
        with pytest.raises(ValueError, match=message):
            save(wrong, path)
    for place, message in ((tmp_path, "which is a folder"), (path / "a", "inside of the file")):
        with pytest.raises(ValueError, match=f"path: got .*{message}.*a file, there or to be made"):
            save(STUDY, place)
    with pytest.raises(ValueError, match="got traced arrays"):
        jax.jit(lambda x: save({"a": x}, path))(1.0)

    def interrupted(file, **entries):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(influence(), path)
    monkeypatch.undo()
    assert load(path) == STUDY


def test_names_that_are_no_texts_are_refused(tmp_path):
    """A file knows texts alone: one and “1” would be one entry."""
    with pytest.raises(ValueError, match="a: got an entry named 1, expected names that are texts"):
        save({"a": {1: 2.0, "1": 3.0}}, tmp_path / "result.npz")


def test_a_folder_that_is_missing_is_made(tmp_path):
    path = tmp_path / "new" / "folder" / "found.npz"
    lim.results.save([1.5, None], path)
    assert lim.results.load(path) == [1.5, None]
    assert [file.name for file in path.parent.iterdir()] == ["found.npz"]


def test_results_print_as_text_that_says_what_they_are(capsys):
    print(channels(), CERTIFICATES[0], explanation(), sep="\n")
    shown = capsys.readouterr().out
    assert shown.startswith("channels of 4 layers, 7 positions and 2 components\n")
    assert shown.count("one of them (eq:one): vacuous: never here") == 2  # alone, and explained
    assert "at depth 1" in shown and "influence density, error" in shown
    jax.vmap(lambda x: print(channels()._replace(loss=x)) or x)(np.ones(3))
    assert capsys.readouterr().out.startswith("channels of 4 layers")
