from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from cpr_native.store.manifest import decode, encode

DOC = Path(__file__).parents[2] / "docs" / "format.md"


def test_the_manifest_of_the_format_page_is_a_manifest() -> None:
    block = re.search(r"```json\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert block is not None
    data = block[1].encode()
    manifest, ref = decode(np.frombuffer(data, np.uint8), DOC)
    assert (manifest.kind, manifest.sequence, manifest.rows) == ("delta", 3, {"user": 1})
    assert encode(manifest) == (data, ref)


def test_every_field_of_a_manifest_is_explained() -> None:
    text = DOC.read_text()
    block = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert block is not None
    for field in re.findall(r'^ "(\w+)":', block[1], re.MULTILINE):
        assert re.search(rf"^\|.*`{field}`.*\|", text, re.MULTILINE), field
