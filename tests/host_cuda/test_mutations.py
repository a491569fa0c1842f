"""The list of the mutation check (mutations.py) fits the sources as they are."""

from __future__ import annotations

import pytest

from .mutations import MUTATIONS, Mutation, misfit


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.breaks)
def test_a_mutation_has_one_place(mutation: Mutation) -> None:
    assert not misfit(mutation)
    assert mutation.wrong != mutation.right


def test_a_mutation_without_a_place_is_found() -> None:
    some = MUTATIONS[0]
    assert "0 times" in misfit(some._replace(right="no such line"))
    assert "0 times" in misfit(some._replace(file="no/such.file"))
    assert "0 times" not in misfit(some._replace(right="{")) != ""
