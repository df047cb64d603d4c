"""The commands about metrics: ``evaluate`` scores methods and keeps the run, ``metrics`` lists what there is."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from abslrp.experiments.runner import Step
    from abslrp.experiments.store import Store
    from abslrp.metrics.text import TextMetric
    from abslrp.registry import Metric
    from abslrp.reporting.comparison import Comparison

INTERRUPTED, TERMINATED = 130, 143
_OUT = Path("runs/run")
_EVERY = 30.0
_WIDE = 120


class Terminated(KeyboardInterrupt):
    """The system asked the program to end."""


def evaluate(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="timm:NAME, torchvision:NAME or hf:NAME_OR_FOLDER; else EfficientNet-Lite0. For sentences a folder.",
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="A .safetensors or torch file for the model.")
    ] = None,
    num_classes: Annotated[int | None, typer.Option("--num-classes", min=1, help="Classes of the model.")] = None,
    random_weights: Annotated[
        bool | None, typer.Option("--random-weights", help="Do not load the model's pretrained weights.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="A folder (ImageNet, VOC, any images), hf:FOLDER, samples, or a .tsv or .csv of sentences."
        ),
    ] = None,
    labels: Annotated[str | None, typer.Option("--labels", help="A file of labels for a flat folder.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="The part of the data; else val.")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--methods", help="NAME,NAME:KEY=VALUE,LABEL=NAME:KEY=VALUE …; see: abslrp methods."),
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("--metrics", help="NAME,NAME:KEY=VALUE …; see: abslrp metrics.")
    ] = None,
    images: Annotated[int | None, typer.Option("--images", min=1, help="How many to draw; else all.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of all chance; else 0.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="paper, ablation or patches.")] = None,
    architecture: Annotated[
        str | None, typer.Option("--architecture", help="For the preset: vgg, resnet or vit.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A TOML file that says what the flags would; flags go first.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help=f"The run's folder; else {_OUT}.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, mps …; else cpu.")] = None,
    tf32: Annotated[
        bool | None, typer.Option("--tf32", help="Products rounded to TF32 on CUDA: faster, less exact.")
    ] = None,
    batch: Annotated[str | None, typer.Option("--batch", metavar="auto|N", help="Inputs at a time; else auto.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="local or ray; else local.")] = None,
    address: Annotated[str | None, typer.Option("--address", help="Of the Ray cluster: auto, local or HOST.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Workers of the cluster to use.")] = None,
    gpus: Annotated[float | None, typer.Option("--gpus", min=0, help="Share of a GPU for each worker.")] = None,
) -> None:
    """Score methods by metrics on a model and images; a run that was stopped goes on with the same command."""
    given = {key: value for key, value in locals().items() if key != "config" and value is not None}
    from abslrp.experiments.config import HOW, make_config, read_file
    from abslrp.experiments.presets import expand

    values = {**(read_file(config) if config is not None else {}), **given}
    how = {key: values.pop(key) for key in HOW if key in values}
    from abslrp.inputs.plain import check_writable, expanded
    from abslrp.inputs.sentences import is_table

    home = expanded(how.pop("out", _OUT))

    if is_table(str(values.get("data", ""))):
        from abslrp.text_command import evaluate_sentences

        evaluate_sentences({**values, **{k: how[k] for k in how if k not in ("device", "batch")}}, home, **_run_by(how))
        return
    runs = [(home / folder, make_config(one)) for folder, one in expand(values)]
    for folder, _ in runs:
        check_writable(folder, "opened as a run")
    for folder, one in runs:
        evaluate_into(folder, one, **how)


def _run_by(how: Mapping[str, Any]) -> dict[str, Any]:
    return {key: how[key] for key in ("device", "batch") if key in how}


def metrics(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[METRIC]…", help="Show these with their options.")
    ] = None,
) -> None:
    """List the metrics that score methods, or show some of them with their options."""
    from abslrp import registry
    from abslrp.metrics.text import TEXT_METRICS

    console = Console(highlight=False)
    known: dict[str, Metric | TextMetric] = {**registry.metrics(), **TEXT_METRICS}
    if not names:
        order = list(dict.fromkeys(one.family for one in known.values()))
        console.print(
            _metric_table(dict(sorted(known.items(), key=lambda one: order.index(one[1].family))), console.width)
        )
        console.print("\nabslrp metrics METRIC shows its options.", markup=False)
    for number, name in enumerate(names or []):
        one: Metric | TextMetric = TEXT_METRICS[name] if name in TEXT_METRICS else registry.metric(name)
        console.print(*([""] if number else []), _metric_details(one), sep="\n")


def evaluate_into(
    out: Path, config: Any, device: str = "cpu", batch: Any = "auto", engine: str = "local", **cluster: Any
) -> None:
    """Run or go on with a configuration in a folder, with progress, and print and write its tables."""
    from abslrp.experiments.engines import make_engine
    from abslrp.experiments.runner import run
    from abslrp.experiments.store import FILE
    from abslrp.memory import out_of_memory
    from abslrp.types import AbslrpError

    notes = Console(stderr=True)

    def tell(text: str) -> None:
        notes.print(" ".join(text.split()), markup=False, highlight=False, soft_wrap=True)

    chosen = make_engine(engine, **cluster)

    def kept() -> str:
        there = f"what was scored is kept in {out}, and the same command goes on from there"
        return there if (out / FILE).is_file() else "nothing was scored yet"

    with _terminable():
        try:
            with (
                _shown(notes) as step,
                run(config, out, device, read_batch(batch), chosen, step, tell=tell) as store,
            ):
                comparison = table_of(store)
                written = write_tables(comparison, out)
                count = sum(store.counts().values())
        except KeyboardInterrupt as error:
            tell(f"stopped: {kept()}.")
            raise typer.Exit(TERMINATED if isinstance(error, Terminated) else INTERRUPTED) from None
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise AbslrpError(f"memory ran out: {kept()}; free some first, or give a smaller --batch.") from error
    print_comparison(comparison)
    names = ", ".join(path.name for path in written)
    Console().print(f"{count} scores and {names} in {out}", markup=False, highlight=False, soft_wrap=True)


def table_of(store: Store) -> Comparison:
    """The comparison of a run with its notes, and beside it the paper's figures where the run is one of its presets."""
    from dataclasses import replace

    from abslrp.experiments.findings import dataset, read_findings
    from abslrp.experiments.presets import published

    found = read_findings(store, curves=False)
    config = found.facts["config"]
    preset, kind = config["preset"], config["architecture"]
    place = dataset(config["data"]) or "imagenet"
    order = [one["label"] for one in config["methods"] if one["label"] not in found.unfit]
    cells = {
        key: replace(cell, published=published(preset, kind, place, key[1], key[0], key[2]))
        for key, cell in found.comparison.cells.items()
    }
    return replace(
        found.comparison,
        title=f"{found.model} on {found.data}, {len(found.facts['ids'])} images, seed {config['seed']}",
        methods=tuple(label for label in order if label in found.comparison.methods),
        cells=cells,
        notes=(*found.notes, *found.facts.get("notes", ()), *_left_out(store)),
    )


def _left_out(store: Store) -> list[str]:
    skipped, unfit = store.skipped(), store.unfit()
    many = f"{len(skipped)} images" if len(skipped) > 1 else "1 image"
    said = [f"{many} could not be read, such as {name}." for name in list(skipped)[:1]]
    return said + [f"{method} is left out: {reason}" for method, reason in unfit.items()]


def write_tables(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``table.md``, ``table.csv`` and ``table.tex`` into a folder, each whole or not at all."""
    from abslrp.reporting.comparison import csv_text, latex, markdown
    from abslrp.reporting.heatmaps import write_whole

    texts = {"table.md": markdown(comparison), "table.csv": csv_text(comparison), "table.tex": latex(comparison)}
    return [
        write_whole(folder / name, lambda file, text=text: file.write(text.encode())) for name, text in texts.items()
    ]


def print_comparison(comparison: Comparison) -> None:
    """The table on screen, without its intervals where these would be cut off."""
    from abslrp.reporting.comparison import terminal

    console, table = Console(), terminal(comparison)
    fits = console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width
    console.print(table if fits else terminal(comparison, intervals=False))


def read_batch(given: Any) -> int | None:
    """The number of inputs at a time, or None for as many as fit."""
    from abslrp.types import AbslrpError

    if given in (None, "auto"):
        return None
    if not re.fullmatch(r"[0-9]{1,18}", str(given)) or int(given) < 1:
        raise AbslrpError(f"--batch {str(given)[:80]} is not understood: give auto, or a whole number of at least 1.")
    return int(given)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let the system's request to end be met like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        # Asked again, it would end in the middle of ending.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _shown(notes: Console) -> Iterator[Any]:
    """Progress on the terminal as bars, elsewhere as a line now and then."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    if not notes.is_terminal:
        yield _Lines(notes)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rate]}"))
    # Methods differ in speed: only the mean over a long time tells what is left.
    with Progress(
        *columns, TimeRemainingColumn(), console=notes, transient=True, speed_estimate_period=24 * 3600
    ) as bars:
        task = bars.add_task("loading", total=None, rate="")
        clock = _Clock()

        def step(one: Step) -> None:
            title = f"{one.metric} of {one.method}" if one.method else one.stage
            bars.update(task, description=title, completed=one.done, total=one.total, rate=clock.rate(one))

        yield step


class _Clock:
    """Images per second since scoring began, an image being done when all methods and metrics are through with it."""

    def __init__(self) -> None:
        self._start: float | None = None

    def rate(self, step: Step) -> str:
        """The rate in words, empty while nothing is known."""
        if step.stage != "scoring":
            return ""
        now = time.monotonic()
        self._start = self._start or now
        images = (step.done - step.began) / max(step.total, 1) * step.images
        return f"{images / (now - self._start):.2f} images/s" if images and now > self._start else ""

    def left(self, step: Step) -> float | None:
        """Seconds that the rest will take."""
        made = step.done - step.began
        if self._start is None or not made:
            return None
        return (time.monotonic() - self._start) / made * (step.total - step.done)


class _Lines:
    """Progress for logs."""

    def __init__(self, notes: Console) -> None:
        self._notes, self._clock, self._last = notes, _Clock(), time.monotonic()

    def __call__(self, step: Step) -> None:
        rate = self._clock.rate(step)
        if time.monotonic() - self._last < _EVERY:
            return
        self._last = time.monotonic()
        left = self._clock.left(step)
        ahead = "" if left is None else f", {rate}, {timedelta(seconds=round(left))} left"
        title = f"{step.metric} of {step.method}" if step.method else step.stage
        line = f"{step.done / max(step.total, 1):.1%} ({step.done} of {step.total}), {title}{ahead}"
        self._notes.print(line, markup=False, highlight=False, soft_wrap=True)


def _metric_table(known: Mapping[str, Metric | TextMetric], width: int) -> Table:
    """The metrics by family: direction, needs, what each measures and whose it is; narrow terminals get two columns."""
    from rich.markup import escape
    from rich.table import Table

    wide = width >= _WIDE
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    heads = ("metric", "better", "needs", "what it measures", "citation") if wide else ("metric", "what it measures")
    for head in heads:
        table.add_column(head, overflow="fold", no_wrap=head == "metric")
    family = None
    for metric in known.values():
        if metric.family != family:
            if family is not None:
                table.add_row()
            table.add_row(f"[bold]{escape(metric.family)}[/bold]")
            family = metric.family
        better, needs = _better(metric), ", ".join(metric.needs)
        cells = [better, needs, escape(metric.description), escape(metric.citation)]
        if not wide:
            facts = f"{better} is better" + (f"; needs {needs}" if needs else "")
            cells = [f"{cells[2]}\n[dim]{cells[3]}\n{facts}[/dim]"]
        table.add_row(f"  {escape(metric.name)}", *cells)
    return table


def _metric_details(metric: Metric | TextMetric) -> Group:
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    facts = Table.grid(padding=(0, 2, 0, 0))
    for name, value in (
        ("family", metric.family),
        ("better", _better(metric)),
        ("needs", ", ".join(metric.needs) or "nothing"),
        ("parts", ", ".join(metric.parts) or "none"),
        ("citation", metric.citation),
    ):
        facts.add_row(name, escape(value))
    options = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    options.add_column("option")
    options.add_column("default")
    for name, default in metric.options.items():
        options.add_row(escape(name), escape("found by itself" if default is None else str(default)))
    head = f"[bold]{escape(metric.name)}[/bold]: {escape(metric.description)}"
    return Group(head, facts, *(("", options) if metric.options else ()))


def _better(metric: Metric | TextMetric) -> str:
    return "higher" if metric.higher_is_better else "lower"
