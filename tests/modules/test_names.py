"""The package gives its public names on first use, and no others."""

from __future__ import annotations

import pytest

import cpr_native


@pytest.mark.parametrize("name", cpr_native.__all__)
def test_public_name(name: str) -> None:
    assert getattr(cpr_native, name).__name__.removeprefix("cpr_native.") == name  # one is a module
    assert name in dir(cpr_native)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="EmbedingBag"):
        cpr_native.EmbedingBag  # noqa: B018
