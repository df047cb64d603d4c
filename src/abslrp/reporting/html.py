"""The report of a run: one HTML file that holds everything it shows and opens without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from abslrp.reporting import panels, thumbnails
from abslrp.reporting.answer import answer, counted, figure_text, listed, unbroken
from abslrp.reporting.heatmaps import write_whole

if TYPE_CHECKING:
    from abslrp.experiments.findings import Findings
    from abslrp.experiments.pictures import ClassPicture, ImpactPicture, MosaicPicture, Picture, Pictures

NAME = "report.html"
_MANY_METHODS = 24
_MOST_LISTED = 100
_GLIMPSE = 4
_MACHINE = {
    "device": "device",
    "engine": "engine",
    "started": "started",
    "finished": "finished",
    "hash": "hash of the configuration",
    "fingerprint": "hash of the weights",
}
_QUARTERS = ("top left", "top right", "bottom left", "bottom right")


def render(
    findings: Findings,
    pictures: Pictures | None = None,
    *,
    run: str = "RUN",
    why: str = "",
    command: str | None = None,
) -> str:
    """The page as text; ``why`` tells the reader why there are no pictures, ``command`` made the run in the folder ``run``."""
    from jinja2 import Environment, StrictUndefined

    files = resources.files("abslrp.reporting")
    text = {name: files.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js")}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(number=figure_text, listed=listed, file=_file, unbroken=unbroken)
    environment.globals.update(counted=counted)
    template = environment.from_string(files.joinpath("report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        style=Markup(text["report.css"]),
        script=Markup(text["report.js"]),
        script_hash=_hash(text["report.js"]),
        **_context(findings),
        **_shown(findings, pictures, why),
        **_appendix(findings, run, command),
    )


def write_report(page: str, path: str | Path) -> Path:
    """Write the page in one step, so that no half of it is ever seen."""
    return write_whole(path, lambda file: file.write(page.encode("utf-8")))


def _file(path: str) -> str:
    """The last part of a path, or all of it where there is no other."""
    return path.rstrip("/").rpartition("/")[2] or path


def _hash(script: str) -> str:
    """The one script that the page's policy lets run: whatever a name may hold, it stays text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _context(findings: Findings) -> dict[str, Any]:
    """Everything but the pictures and the appendix."""
    deciding, combined = findings.deciding, findings.standings.get("gae")
    first = deciding or next(iter(findings.standings.values()), None)
    titles = {name: one.title for name, one in findings.standings.items()}
    matrices = [(name, panels.pair_matrix(one)) for name, one in findings.standings.items()]
    curves = findings.curves
    return {
        "findings": findings,
        "answer": answer(findings),
        "leader": findings.leader,
        "leading": panels.leading_chart(findings, first) if first else None,
        "tiles": _tiles(findings),
        "heads": panels.table_heads(findings.comparison, first.info.name if first else None),
        "rows": panels.table_rows(findings.comparison),
        "has_paper": any(cell.published is not None for cell in findings.comparison.cells.values()),
        "has_ties": any(cell.tied for cell in findings.comparison.cells.values()),
        "has_flags": any(cell.flagged for cell in findings.comparison.cells.values()),
        "charts": panels.metric_charts(findings),
        # Beside a single bar chart there is less room than below several.
        "scatter": panels.scatter_chart(combined, (660, 430) if len(findings.standings) == 1 else (960, 520)),
        "agreement": panels.agreement_matrix(findings.agreement, titles),
        "pairs": [matrix for _, matrix in matrices if matrix is not None],
        "output": panels.output_chart(curves) if curves else None,
        "curves": panels.curve_panels(curves, combined) if curves and combined else [],
        "combined": combined,
    }


def _tiles(findings: Findings) -> list[tuple[str, str, str]]:
    """The run in a few numbers: a name, a number and a word on it."""
    flagged = sum(sum(by_method.values()) for by_method in findings.flagged.values())
    scored = sum(len(one.items) * len(one.scores) for one in findings.standings.values())
    first = findings.deciding
    planned = findings.planned.get(first.info.name, 0) if first else max(findings.planned.values(), default=0)
    share = "all of them" if planned == findings.images else f"of {planned:,} planned" if planned else ""
    unfit = f"{len(findings.unfit)} do not run on this model" if findings.unfit else "all run on this model"
    return [
        ("images scored", f"{findings.images:,}", share),
        ("images skipped", f"{len(findings.skipped):,}", "see the end" if findings.skipped else "none"),
        ("methods", f"{len(findings.comparison.methods)}", unfit),
        ("scores flagged", f"{flagged:,}", f"of {scored:,}" if scored else ""),
    ]


def _shown(findings: Findings, pictures: Pictures | None, why: str) -> dict[str, Any]:
    """The pictures as the template wants them, with data URIs in place of arrays."""
    made = pictures
    leader = findings.leader or ""
    if made is None:
        empty: dict[str, Any] = {"best": [], "worst": [], "grid": None, "mosaics": [], "impact": [], "classes": []}
        return {"pictures": empty, "glimpse": [], "picture_notes": [], "why": why or "They were not asked for."}
    return {
        "pictures": {
            "best": [_extreme(one, leader) for one in made.best],
            "worst": [_extreme(one, leader) for one in made.worst],
            "grid": _grid(findings, made),
            "mosaics": [_mosaic(one) for one in made.mosaics],
            "impact": _impact(made.impact) if made.impact else [],
            "classes": [_classes(one) for one in made.classes],
        },
        "glimpse": _glimpse(made, leader),
        "picture_notes": list(made.notes),
        "why": "",
    }


def _thumb(uri: str, alt: str) -> dict[str, str]:
    return {"uri": uri, "alt": alt}


def _extreme(one: Picture, leader: str) -> dict[str, Any]:
    photo = _thumb(thumbnails.photograph(one.image, 176), f"Photograph {one.id}, seen as {one.label}")
    maps = [
        _thumb(thumbnails.laid_over(made, one.image, 176), f"Map of {leader} for {one.label} in {one.id}")
        for made in one.maps.values()
    ]
    # The deciding score is the last of the parts, and is said first.
    *parts, main = one.scores.items()
    scores = [f"{name} {figure_text(value)}" for name, value in (main, *parts)]
    return {"id": one.id, "label": one.label, "photo": photo, "maps": maps, "scores": scores}


def _glimpse(made: Pictures, leader: str) -> list[dict[str, str]]:
    """A few of the leader's maps for the first screen, good ones and bad ones."""
    shown = [one for one in made.grid if leader in one.maps]
    count = min(_GLIMPSE, len(shown))
    return [
        {
            **_thumb(thumbnails.laid_over(one.maps[leader], one.image), f"Map of {leader} for {one.label} in {one.id}"),
            "label": one.label,
        }
        for one in (shown[round(place * (len(shown) - 1) / max(1, count - 1))] for place in range(count))
    ]


def _grid(findings: Findings, made: Pictures) -> dict[str, Any] | None:
    if not made.grid:
        return None
    size = 128 if len(findings.comparison.methods) > _MANY_METHODS else 160
    methods = [name for name in findings.comparison.methods if any(name in one.maps for one in made.grid)]
    return {
        "images": [
            {
                "id": one.id,
                "label": one.label,
                "photo": _thumb(thumbnails.photograph(one.image, size), f"Photograph {one.id}, seen as {one.label}"),
            }
            for one in made.grid
        ],
        "rows": [
            {
                "method": method,
                "maps": [
                    _thumb(
                        thumbnails.laid_over(one.maps[method], one.image, size), f"{method}: {one.label} in {one.id}"
                    )
                    if method in one.maps
                    else None
                    for one in made.grid
                ],
            }
            for method in methods
        ],
    }


def _mosaic(one: MosaicPicture) -> dict[str, Any]:
    where = _QUARTERS[one.place]
    photo = thumbnails.photograph(thumbnails.outlined(one.image, one.place), 224)
    return {
        "title": f"{'Best' if one.good else 'Worst'} contrast of {one.method}",
        "label": one.label,
        "where": where,
        "photo": _thumb(photo, f"Mosaic of four photographs, {one.label} at the {where}"),
        "maps": [
            {
                "method": method,
                "score": figure_text(one.scores[method]),
                **_thumb(
                    thumbnails.laid_over(made, one.image, 224, positive=True),
                    f"Positive part of {method}'s map of {one.label} in the mosaic",
                ),
            }
            for method, made in one.maps.items()
        ],
    }


def _impact(one: ImpactPicture) -> list[dict[str, str]]:
    """The five pictures of the paper's figure, and the map that is held against them."""
    shown = [
        (thumbnails.photograph(one.image, 200), f"The image, seen as {one.label}"),
        (thumbnails.alone(one.lerf, 200, positive=True), "Impact, least relevant masked first (LeRF)"),
        (thumbnails.alone(one.morf, 200, positive=True), "Impact, most relevant masked first (MoRF)"),
        (thumbnails.alone(one.difference, 200), "Combined impact, LeRF less MoRF"),
        (thumbnails.alone(one.sign, 200, full=1.6), "Its sign: red counts for a map, blue against"),
        (thumbnails.alone(one.map, 200), f"The map of {one.method}"),
    ]
    return [{**_thumb(uri, f"{told}: {one.id}"), "told": told} for uri, told in shown]


def _classes(one: ClassPicture) -> dict[str, Any]:
    return {
        "id": one.id,
        "photo": _thumb(thumbnails.photograph(one.image, 160), f"Photograph {one.id}"),
        "methods": list(one.maps),
        "rows": [
            {
                "label": label,
                "chance": f"{chance:.0%}",
                "maps": [
                    _thumb(thumbnails.laid_over(maps[rank], one.image, 160), f"{method}: {label} in {one.id}")
                    for method, maps in one.maps.items()
                ],
            }
            for rank, (label, chance) in enumerate(one.classes)
        ],
    }


def _appendix(findings: Findings, run: str, command: str | None) -> dict[str, Any]:
    facts = findings.facts
    config = facts.get("config")
    versions = facts.get("versions")
    skipped = list(findings.skipped.items())
    return {
        "config": _pairs(config if isinstance(config, Mapping) else {}),
        "versions": _pairs(versions if isinstance(versions, Mapping) else {}),
        "machine": _pairs({told: facts.get(name) for name, told in _MACHINE.items()}),
        "command": _by_flags(command) if command else None,
        "again": f"abslrp report {shlex.quote(run)}",
        "skipped": skipped[:_MOST_LISTED],
        "skipped_more": max(0, len(skipped) - _MOST_LISTED),
    }


def _by_flags(command: str) -> str:
    """A command with each of its flags on a line of its own.

    >>> print(_by_flags("abslrp evaluate --images 8 --out 'a run'"))
    abslrp evaluate \\
      --images 8 \\
      --out 'a run'
    """
    lines: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(map(shlex.join, lines))


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is known, as text; what is not set is left out."""
    return [(str(key), _plain(value)) for key, value in values.items() if value is not None and value != []]


def _plain(value: Any) -> str:
    """A value for the reader.

    >>> _plain(["a", "b"]), _plain([{"label": "c", "name": "gae", "options": {"T": 4}}]), _plain(0)
    ('a, b', 'c = gae (T 4)', '0')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(_variant(one) if isinstance(one, Mapping) and "name" in one else _plain(one) for one in value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _variant(one: Mapping[str, Any]) -> str:
    """A method or metric with its options."""
    name, label = str(one["name"]), str(one.get("label", one["name"]))
    options = one.get("options") or {}
    told = ", ".join(f"{key} {_plain(value)}" for key, value in options.items() if value is not None)
    return (name if label == name else f"{label} = {name}") + (f" ({told})" if told else "")
