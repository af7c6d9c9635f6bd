"""The fuzz target for Atheris (libFuzzer): `python -m campaigns.fuzz_target [options] [corpora]`."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["cpr_native.store"]):
    from campaigns.fuzz_inputs import scratch, shown
from campaigns.fuzz_json import mutated


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Mutates the JSON of an input as JSON, or its bytes as libFuzzer does."""
    random = Random(seed)
    made = mutated(data, random) if random.random() < 0.5 else None
    return made[:max_size] if made is not None else bytes(atheris.Mutate(data, max_size))


def main() -> None:
    with scratch() as name:
        folder = Path(name)

        def one_input(data: bytes) -> None:
            shown(data, folder)

        atheris.Setup(sys.argv, one_input, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
