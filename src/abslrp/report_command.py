"""The command ``report``: from a run's folder to one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable

    from abslrp.experiments.findings import Findings
    from abslrp.experiments.pictures import Pictures
    from abslrp.inputs.models import LoadedModel


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that abslrp evaluate wrote.")],
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; else RUN/report.html.")] = None,
    pictures: Annotated[bool, typer.Option(help="Load the model and draw maps, or show numbers only.")] = True,
    data: Annotated[str | None, typer.Option("--data", help="Where the images are now, if they were moved.")] = None,
    weights: Annotated[str | None, typer.Option("--weights", help="Where the weights are now.")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, mps …, for the pictures.")] = "cpu",
) -> None:
    """Write a run's report: which method to believe, the tables, charts and pictures, in one file."""
    notes = Console(stderr=True)
    with notes.status("reading the run") as status:
        path = write_run_report(
            run,
            out,
            pictures=pictures,
            data=data,
            weights=weights,
            device=device,
            told=lambda what: status.update(what),
            tell=lambda text: notes.print(text, markup=False, highlight=False, soft_wrap=True),
        )
    print(path.resolve())


def write_run_report(
    run: Path,
    out: Path | None = None,
    *,
    pictures: bool = True,
    data: str | None = None,
    weights: str | None = None,
    device: str = "cpu",
    loaded: LoadedModel | None = None,
    told: Callable[[str], None] = lambda what: None,
    tell: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write the report of a run and return its path; ``told`` hears what is being done, ``tell`` what went wrong.

    ``loaded`` is the model of a run that was given one of one's own. A model or images that cannot be loaded cost the
    pictures, and the report says why.
    """
    from abslrp.experiments.findings import read_findings
    from abslrp.experiments.store import Store
    from abslrp.inputs.plain import check_writable
    from abslrp.reporting.html import NAME, render, write_report
    from abslrp.types import AbslrpError

    with Store.open(run) as store:
        findings = read_findings(store)
    page_file = out or run / NAME
    if page_file.is_dir():
        raise AbslrpError(f"{page_file} is a folder: name a file with --out, such as {page_file / NAME}.")
    check_writable(page_file.parent)
    made, why = None, "They were not asked for."
    if pictures:
        made, why = _pictures(findings, data, weights, device, loaded, told)
        if why:
            tell(f"without pictures: {why}")
    told("writing")
    page = render(findings, made, run=str(run), why=why, command=_command(findings, run))
    return write_report(page, page_file)


def _pictures(
    findings: Findings,
    data: str | None,
    weights: str | None,
    device: str,
    loaded: LoadedModel | None,
    told: Callable[[str], None],
) -> tuple[Pictures | None, str]:
    """The pictures, or none and the reason."""
    from abslrp.experiments.pictures import make_pictures
    from abslrp.types import AbslrpError

    try:
        return make_pictures(findings, device=device, data=data, weights=weights, loaded=loaded, told=told), ""
    except AbslrpError as error:
        return None, " ".join(str(error).split())
    except Exception as error:  # Models fail in more ways than can be listed, and the numbers are worth having without.
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"


def _command(findings: Findings, run: Path) -> str | None:
    from abslrp.experiments.config import Config
    from abslrp.experiments.repeat import repeat_command

    plain, device = findings.facts.get("config"), str(findings.facts.get("device") or "cpu")
    try:
        return repeat_command(Config.from_dict(plain), str(run), device.split()[0]) if plain else None
    except (KeyError, TypeError):
        return None
