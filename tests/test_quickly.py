"""Tests compile quickly beside any flags of a user's, and users' programs get these alone."""

import pytest
from reference import quickly
from reference.as_users import run_python

AVX2 = "--xla_cpu_max_isa=AVX2"


@pytest.fixture
def flags(monkeypatch):
    """What XLA_FLAGS holds after a run of tests began with these."""

    def flags(given):
        monkeypatch.delenv("XLA_FLAGS", raising=False)
        if given is not None:
            monkeypatch.setenv("XLA_FLAGS", given)
        quickly.compile_quickly()
        return quickly.os.environ.get("XLA_FLAGS")

    return flags


@pytest.mark.parametrize(
    "given, expected",
    [
        pytest.param(None, quickly.QUICK, id="none"),
        pytest.param(AVX2, f"{quickly.QUICK} {AVX2}", id="a processor's"),
        pytest.param("", "", id="empty, to compile as users do"),
        pytest.param(f"{quickly.QUICK} {AVX2}", f"{quickly.QUICK} {AVX2}", id="a worker's"),
    ],
)
def test_the_quick_flags_stand_before_those_that_are_given(flags, given, expected):
    assert flags(given) == expected


def test_a_users_program_keeps_the_flags_that_were_given_and_no_quick_ones(flags, tmp_path):
    flags(AVX2)
    done = run_python("-c", "import os; print(os.environ['XLA_FLAGS'])", folder=tmp_path)
    assert done.stdout.strip() == AVX2
