from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_native.store import naming


@given(st.integers(1, naming.MAX_SEQUENCE), st.integers(0, 999_999))
def test_names_come_back(sequence: int, index: int) -> None:
    assert naming.parse(naming.manifest_name(sequence)) == naming.ParsedName("manifest", sequence)
    assert naming.parse(naming.temporary_name(sequence)) == naming.ParsedName("temporary", sequence)
    assert naming.parse(naming.segment_name(sequence, index)) == naming.ParsedName("segment", sequence, index)


@given(st.text(alphabet="0123456789-.jsontmpafer/\n", max_size=30))
def test_no_two_names_mean_the_same(name: str) -> None:
    parsed = naming.parse(name)
    if parsed is not None:
        makers = {"manifest": naming.manifest_name, "temporary": naming.temporary_name}
        again = (
            naming.segment_name(parsed.sequence, parsed.index)
            if parsed.what == "segment"
            else makers[parsed.what](parsed.sequence)
        )
        assert again == name


def test_foreign_names_are_none() -> None:
    for name in (
        "000000000000.json",
        "00000000001.json",
        "000000000001.json\n",
        "000000000001.json.tmp2",
        "../000000001.json",
        "000000000001-0000.safetensors",
        "000000000001-01.safetensors",
        "\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661.json",
        "LOCK",
        "",
    ):
        assert naming.parse(name) is None, name


def test_chains() -> None:
    assert naming.shard_of("global") is None
    assert naming.shard_of(naming.shard_chain(12)) == 12
    assert naming.chain_path(Path("x"), "shards/3") == Path("x/shards/3")
    for chain in ("shards/01", "shards/-1", "shards/", "shards/1/2", "shards/..", "../x", "", "Global"):
        with pytest.raises(ValueError, match="chain"):
            naming.chain_path(Path("x"), chain)
    for number in (0, naming.MAX_SEQUENCE + 1):
        with pytest.raises(ValueError, match="sequence"):
            naming.manifest_name(number)
    with pytest.raises(ValueError, match="shard"):
        naming.shard_chain(-1)
    with pytest.raises(ValueError, match="index"):
        naming.segment_name(1, 10**6)
