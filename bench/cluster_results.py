"""Put the figures of `bench_cluster.py` into docs/results/cluster.json, beside those of failures.

`python bench/cluster_results.py build/bench`: they become part of its entry "training", carrier by carrier.
The large shapes want much memory, so their benchmarks are run one by one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cluster_failures import RESULTS


def merge(measured: Path, results: Path) -> None:
    """Put the figures in `measured` in place of those of the same names in `results`."""
    found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    training = found.setdefault("training", {})
    for name, figures in json.loads(measured.read_text(encoding="utf-8")).items():
        training[name] = {**training.get(name, {}), **figures}
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the benchmarks wrote cluster.json")
    merge(parser.parse_args().folder / "cluster.json", RESULTS)


if __name__ == "__main__":
    main()
