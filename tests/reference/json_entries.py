"""The entries of a JSON file by where they stand, held to the tables of names."""

from lim_jax.results.tables import FILES, KEYS

REGIONS = dict.fromkeys(("left", "middle", "right"), "REGION")
CHANNELS = dict.fromkeys(("residual", "cone", "local"), "CHANNEL")
HOPS = dict.fromkeys(("0 hops", "1 hop", "2 hops", "3 or more hops"), "HOPS")
SIDES = dict.fromkeys(("first", "second"), "SIDE")
ROWS = dict.fromkeys(("baseline", "algorithm1", "algorithm2", "algorithm3"), "ROW")
COUNTS = dict.fromkeys(("1", "2", "4", "8", "16", "32"), "COUNT")
WHEN = dict.fromkeys(("before", "after"), "WHEN")
WORDS = REGIONS | CHANNELS | HOPS | SIDES | ROWS | COUNTS | WHEN


def entries(document):
    """The paths of what a document holds: of a list what its first entry holds."""
    if isinstance(document, list) and document:
        return entries(document[0])
    if not isinstance(document, dict):
        return {""}
    return {
        f"{WORDS.get(name, name)}.{path}".removesuffix(".")
        for name, value in document.items()
        for path in entries(value)
    }


TWINS = ("influence_without_queries.", "without_queries.", "certificates.measured.")


def require_entries(document, file, columns="", *, absent=()):
    """The entries of a file are those of its table, but for those that begin with `absent`."""
    document = dict(document)
    for parts in ("parts", "records"):
        for row in document.pop(parts, []):
            assert tuple(row) == FILES[columns]
    rows = set(KEYS[file])
    written = entries(document)

    def above(path, paths):
        """Whether a path leads to others, as that of an empty list would."""
        return any(other.startswith(f"{path}.") for other in paths)

    others = written - rows
    assert [path for path in others if not path.startswith(TWINS) and not above(path, rows)] == []
    missing = [row for row in rows - written if not above(row, written)]
    assert [row for row in missing if not row.startswith(tuple(absent) or "-")] == []
