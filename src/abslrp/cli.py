"""The command line: thin, over the same calls as the library. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from abslrp import app_command, commands, report_command, text_command

if TYPE_CHECKING:
    from abslrp.inputs.models import LoadedModel

FAILED = 2
INTERRUPTED = 130
_IMAGES_IN_FULL = 10
_SCORED = ("abslrp", "abslrp-agree", "gradcam", "input-x-gradient", "constant")
_ROUNDING = 1e-3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="Pictures of what a neural network saw.")

Model = Annotated[
    str | None,
    typer.Option("--model", help="timm:NAME, torchvision:NAME or hf:NAME_OR_FOLDER; else EfficientNet-Lite0."),
]
Weights = Annotated[Path | None, typer.Option("--weights", help="A .safetensors or torch file for the model.")]
MethodName = Annotated[str, typer.Option("--method", help="What explains; see: abslrp methods.")]
Settings = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of the method; may be repeated.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, mps …")]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="Do not load the model's pretrained weights.")]
Out = Annotated[Path, typer.Option("--out", help="The folder to write to.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 after an error, 130 after an interruption.

    >>> main(["explain"])
    2
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    # Taken out here, so that it may stand before or after the command.
    given = [word for word in given if word != "--debug"]
    try:
        code = typer.main.get_command(app).main(args=given, prog_name="abslrp", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED
    except Exception as error:
        if debug:
            Console(stderr=True).print_exception()
        print(f"error: {_sentence(error)}", file=sys.stderr)
        return FAILED


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if version:
        import abslrp

        print(f"abslrp {abslrp.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def explain(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE…", help="Files, folders or patterns.")],
    model: Model = None,
    weights: Weights = None,
    method: MethodName = "abslrp",
    option: Settings = None,
    target: Annotated[str | None, typer.Option("--target", help="The class to explain: index or name.")] = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="Explain the K most probable classes.")] = None,
    out: Out = Path("abslrp-out"),
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images at a time.")] = 8,
    device: Device = "cpu",
    random_weights: RandomWeights = False,
) -> None:
    """Explain images: an overlay and a plain map as PNG, the raw map as .npz, and the top classes on screen."""
    from rich.progress import Progress

    from abslrp.batches import Job, explain_files
    from abslrp.inputs.images import find_images
    from abslrp.inputs.models import load_model
    from abslrp.inputs.plain import check_writable
    from abslrp.registry import method as find_method
    from abslrp.reporting.tables import class_table
    from abslrp.types import AbslrpError

    if target is not None and top is not None:
        raise AbslrpError("--target and --top were both given: choose one.")
    settings = read_settings(option)
    find_method(method).settle(settings)
    paths = find_images(images)
    check_writable(out)
    loaded = load_model(model, weights, device=device, pretrained=not random_weights)
    job = Job(loaded, out, method, settings, _class_index(target, loaded, device), top or 1, device)
    console, notes, failures = Console(), Console(stderr=True), []

    def report(error: AbslrpError) -> None:
        failures.append(error)
        notes.print(f"skipped: {_one_line(str(error))}", markup=False, highlight=False, soft_wrap=True)

    # One bar at a time: the method's own, where that is asked for.
    quiet = len(paths) < 2 or not notes.is_terminal or bool(settings.get("progress"))
    with Progress(console=_for_bars(notes, not quiet), transient=True, disable=quiet) as progress:
        task = progress.add_task("explaining", total=len(paths))
        rows = explain_files(job, paths, batch, done=lambda count: progress.advance(task, count), skipped=report)
    if rows:
        console.print(class_table(rows, only_explained=len(paths) > _IMAGES_IN_FULL))
        written = 3 * sum(row.explained for row in rows)
        console.print(f"{written} files in {out}", markup=False, highlight=False, soft_wrap=True)
    if failures:
        rest = ", the others are done" if rows else ""
        raise AbslrpError(f"{len(failures)} of {len(paths)} images could not be read{rest}.")


@app.command()
def methods(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[METHOD]…", help="Show these with their options.")
    ] = None,
) -> None:
    """List the methods that can explain, or show some of them with their options."""
    from abslrp import registry
    from abslrp.propagation.api import OPTIONS
    from abslrp.reporting.tables import INSENSITIVE, method_details, method_table

    console = Console(highlight=False)
    if not names:
        console.print(method_table(registry.methods(), console.width))
        console.print("\nabslrp methods METHOD shows its options.", markup=False)
        console.print(f"†\u00a0{INSENSITIVE}: shuffling half of a network hardly changes the map.", markup=False)
        console.print("abslrp doctor --sanity measures it on a model.", markup=False)
    for number, name in enumerate(names or []):
        console.print(*([""] if number else []), method_details(registry.method(name), OPTIONS), sep="\n")


@app.command()
def doctor(
    model: Model = None,
    weights: Weights = None,
    image: Annotated[Path | None, typer.Option("--image", help="The image to try; else a sample.")] = None,
    method: MethodName = "abslrp",
    option: Settings = None,
    device: Device = "cpu",
    random_weights: RandomWeights = False,
    sanity: Annotated[
        bool, typer.Option("--sanity", help="Also shuffle the weights and tell whether the map changes.")
    ] = False,
) -> None:
    """Run one image through a model and show what had a rule and where relevance was gained or lost."""
    from abslrp.doctor import examine
    from abslrp.inputs.images import read_image
    from abslrp.inputs.models import load_model, sample_images
    from abslrp.propagation.api import settle
    from abslrp.reporting.tables import coverage_tables

    _check_propagates(method)
    settings = read_settings(option)
    settle(method, settings)
    photograph = read_image(image) if image is not None else sample_images()["chelsea"]
    loaded = load_model(model, weights, device=device, pretrained=not random_weights)
    x, console = loaded.transform(photograph)[None].to(device), Console()
    found = examine(loaded.model, x, method, **settings)

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    coverage = found.coverage
    if coverage is not None:
        console.print(coverage_tables(coverage))
    works = "works: the map is finite and not zero."
    tell(f"\n{loaded.name} {works if found.sound else f'has a problem: {found.problems[0]}'}")
    for note in (*found.problems[1:], *found.notes):
        tell(f"{note[:1].upper()}{note[1:]}" if note.startswith(("relevance", "the ")) else note)
    if coverage is None:
        return
    elsewhere = (
        f"; {max(coverage.lost_elsewhere, 0.0):.2%} stopped at class tokens, masks or cropped borders, or met relevance of the "
        "other sign"
        # Only where relevance keeps its sum is the rest a loss.
        if -_ROUNDING < coverage.lost_elsewhere < 1
        else ""
    )
    tell(f"{coverage.arrived:.2%} of the predicted class's relevance arrived at the input{elsewhere}.")
    if sanity:
        from abslrp.reporting.tables import sanity_table
        from abslrp.sanity import sanity as shuffled

        changed = shuffled(loaded.model, x, {method: settings})
        console.print("", sanity_table(changed), sep="\n")
        depends = "hardly depends" if changed.insensitive else "depends"
        tell(
            f"\nWith the upper half shuffled the rank correlation is {changed.upper_half[method]:.2f}: the map {depends} on the weights."
        )


@app.command()
def demo(out: Out = Path("abslrp-out")) -> None:
    """Explain scikit-image's photographs with the embedded network, score methods on them, and write sheets and a report."""
    from rich.progress import Progress

    from abslrp import registry
    from abslrp.batches import contact_sheet, method_sheet
    from abslrp.experiments.config import make_config
    from abslrp.experiments.store import FILE
    from abslrp.inputs.models import load_model, sample_images
    from abslrp.inputs.plain import check_writable
    from abslrp.reporting.heatmaps import save_png
    from abslrp.reporting.tables import by_family

    check_writable(out)
    loaded, photographs, notes = load_model(), sample_images(), Console(stderr=True)
    print(f"Explaining {len(photographs)} photographs with {loaded.name} …", flush=True)
    classes = save_png(contact_sheet(loaded, photographs, ["abslrp", "abslrp-agree"]), out / "demo.png")
    # The embedded network has no attention to look at.
    methods = [one for one in by_family(registry.methods()) if "attention" not in one.needs]
    print(f"Explaining one of them with {len(methods)} methods …", flush=True)
    photograph = photographs.get("coffee") or next(iter(photographs.values()))
    with Progress(
        console=_for_bars(notes, notes.is_terminal), transient=True, disable=not notes.is_terminal
    ) as progress:
        task = progress.add_task("", total=len(methods))
        sheet = method_sheet(
            loaded, photograph, methods, done=lambda name: progress.update(task, advance=1, description=name)
        )
    print(f"Scoring {len(_SCORED)} methods by GAE …", flush=True)
    run = out / "run"
    for old in run.glob(f"{FILE}*"):
        old.unlink()
    commands.evaluate_into(run, make_config({"methods": list(_SCORED), "metrics": "gae:T=4", "data": "samples"}))
    for path in (classes, save_png(sheet, out / "methods.png"), report_command.write_run_report(run)):
        print(path.resolve())


for _command in (commands.evaluate, commands.metrics, report_command.report, app_command.app):
    app.command()(_command)
app.command("explain-text")(text_command.explain_text)


def read_settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    """Options as typed, KEY=VALUE, with numbers, several of them, and truth values understood.

    >>> read_settings(["conserve=joint", "eps=1e-6", "progress=true", "window=28,14", "layer=features.29"])
    {'conserve': 'joint', 'eps': 1e-06, 'progress': True, 'window': (28, 14), 'layer': 'features.29'}
    """
    from abslrp.experiments.config import read_value
    from abslrp.types import AbslrpError

    settings = {}
    for pair in pairs or []:
        key, sign, value = (part.strip() for part in pair.partition("="))
        if not sign or not key:
            raise AbslrpError(f"--option {pair!r} is not understood: write --option KEY=VALUE.")
        key = key.replace("-", "_")
        # The name of a layer may look like a number.
        settings[key] = value if key == "layer" else read_value(value)
    return settings


def _for_bars(notes: Console, shown: bool) -> Console:
    # Older versions of rich end a bar with an empty line, also one that is not shown.
    return notes if shown else Console(quiet=True)


def _check_propagates(name: str) -> None:
    from abslrp import registry
    from abslrp.propagation.rulesets import RULESETS
    from abslrp.types import AbslrpError

    known = [one.name for one in registry.methods().values() if one.family == "relevance propagation"]
    if registry.method(name).name not in known or name not in RULESETS:
        choices = ", ".join(one for one in known if one in RULESETS)
        raise AbslrpError(
            f"doctor follows relevance through the model, which it cannot do for {name}: choose one of {choices}."
        )


def _class_index(target: str | None, loaded: LoadedModel, device: str) -> int | None:
    if target is None:
        return None
    import torch

    from abslrp.batches import class_scores
    from abslrp.inputs.models import resolve_target

    names = loaded.class_names
    blank = torch.zeros(1, 3, *loaded.transform.size, device=device)
    count = len(names) if names is not None else class_scores(loaded, blank).shape[1]
    return resolve_target(target, names, count)


def _sentence(error: Exception) -> str:
    usage = getattr(error, "format_message", None)
    if usage is not None:
        context = getattr(error, "ctx", None)
        return f"{_one_line(usage())} See: {context.command_path if context else 'abslrp'} --help"
    from abslrp.types import AbslrpError

    if isinstance(error, AbslrpError):
        return _one_line(str(error))
    from abslrp.memory import out_of_memory

    if out_of_memory(error):
        return "memory ran out: give a smaller --batch, a smaller model or another --device, or free some first."
    return f"{type(error).__name__}: {_one_line(str(error)).rstrip('.')}; run again with --debug to see where."


def _one_line(text: str) -> str:
    """A message on one line; names of files may hold what would move the cursor or colour the terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))


if __name__ == "__main__":
    sys.exit(main())
