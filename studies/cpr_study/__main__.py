"""`python -m cpr_study`: run the study and write docs/results/cpr.json, the page and its plots."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cpr_study.records import Records
from cpr_study.study import FULL, SMALL, run_cells

ROOT = Path(__file__).resolve().parents[2]


@click.command()
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="A file in the raw Criteo format; without it samples are generated.")  # fmt: skip
@click.option("--small", is_flag=True, help="Few seeds and samples: shows that everything runs.")
@click.option("--records", "folder", type=click.Path(file_okay=False, path_type=Path),
              default=None, show_default="build/study/cpr, small: build/study/cpr-small",
              help="Finished units; a study that was stopped goes on from them.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), default=len(os.sched_getaffinity(0)),
              help="Units at a time.", show_default="the cores")  # fmt: skip
@click.option("--only", multiple=True, help="Run these experiments only.")
def main(data: Path | None, small: bool, folder: Path | None, processes: int, only: tuple[str, ...]) -> None:
    """Run what has no record yet."""
    size = SMALL if small else FULL
    cells = [cell for cell in size.cells() if not only or cell.experiment in only]
    folder = folder or ROOT / "build" / "study" / ("cpr-small" if small else "cpr")
    run_cells(cells, size, Records(folder), data, processes)


if __name__ == "__main__":
    main()
