"""What is said of a run before it begins, written down by hand."""

from lim_jax.cli.run_in_words import describe_contexts, duration


def test_describe_contexts():
    assert (describe_contexts([12]), describe_contexts([30, 28])) == (
        "1 context of 12 tokens",
        "2 contexts of 28 to 30 tokens",
    )


def test_duration():
    assert (duration(0.3), duration(42.0), duration(400.0), duration(9000.0)) == (
        "1 second",
        "40 seconds",
        "7 minutes",
        "2.5 hours",
    )
