"""`python -m scar_study`: run the study and write docs/results/scar.json, its page and plots."""

from __future__ import annotations

import os
from pathlib import Path

import click
from study_common.pages import machine
from study_common.records import Records

from scar_study.results import write_results
from scar_study.study import FULL, SMALL, run_units

ROOT = Path(__file__).resolve().parents[2]


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), default=None,
              help="A folder with the data sets; without it data are generated.")  # fmt: skip
@click.option("--small", is_flag=True, help="Few trials: shows that everything runs.")
@click.option("--records", "folder", type=click.Path(file_okay=False, path_type=Path), default=None,
              show_default="build/study/scar, small: build/study/scar-small",
              help="Finished units; a study that was stopped goes on from them.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=None,
              show_default="docs, small: build/study/docs",
              help="Where results, page and plots go.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), default=len(os.sched_getaffinity(0)),
              help="Units at a time.", show_default="the cores")  # fmt: skip
def main(data: Path | None, small: bool, folder: Path | None, out: Path | None, processes: int) -> None:
    """Run what has no record yet, then write the results."""
    build = ROOT / "build" / "study"
    records = Records(folder or build / ("scar-small" if small else "scar"))
    run_units(SMALL if small else FULL, records, data, processes)
    extra = {
        "machine": machine(),
        "data": {
            "source": "generated data" if data is None else "the data sets that the workloads are named after"
        },
        "command": "make scar-study" + ("" if data is None else " DATA=folder"),
    }
    write_results(records, out or (build / "docs" if small else ROOT / "docs"), extra)


if __name__ == "__main__":
    main()
