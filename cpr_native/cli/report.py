"""`cpr-native report`: the page of a run that has ended, from its results.json."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument(
    "results", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="RESULTS.json"
)
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              show_default="report.html beside RESULTS.json", help="The page to write.")  # fmt: skip
def report(results: Path, output: Path | None) -> None:
    """Write report.html again from the results.json of `demo` or `emulate`."""
    from cpr_native.emulate.reading import read_results
    from cpr_native.emulate.report import require_demo_extra, write_report

    require_demo_extra()
    page = results.with_name("report.html") if output is None else output
    write_report(read_results(results), page)
    click.echo(f"Written: {page}")
