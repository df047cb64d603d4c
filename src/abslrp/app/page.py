"""The page itself: Gradio's components, and which of them changes which. Whatever is computed or said is elsewhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from abslrp import registry
from abslrp.app import views
from abslrp.app.shelf import SUGGESTED
from abslrp.app.uploads import MOST_BYTES, Picked, pick_file, pick_sample
from abslrp.app.views import View
from abslrp.app.workshop import Chosen, Workshop
from abslrp.inputs.models import SAMPLES, resolve_target
from abslrp.reporting.tables import by_family
from abslrp.text import TEXT_DEFAULT, check_method
from abslrp.types import AbslrpError

# Gradio counts its users unless told not to before it is imported.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

TITLE = "abslrp: what did the network see?"
FIRST = ("abslrp", "abslrp-agree", "gradcam")
USUAL = (*FIRST, "lrp-epsilon", "lrp-gamma", "input-x-gradient", "integrated-gradients", "guided-backprop", "rollout")
_TEXT = "a charming and often affecting journey , but the plot was bad ."
_MOST_TEXT = 2000
_HOUR = 3600


@dataclass(frozen=True)
class Seen:
    """What one visitor has chosen; every visitor has one of these and nobody else's."""

    picked: Picked | None = None
    chosen: Chosen = field(default_factory=Chosen)
    classes: tuple[tuple[str, int], ...] = ()


def build(shop: Workshop, folder: Path) -> Any:
    """The page over a workshop; files to download are written below ``folder``."""
    import gradio as gr

    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(_HOUR, _HOUR)) as page:
        gr.Markdown(f"# {TITLE}\nChoose an image, a model, classes and methods. Images and texts stay on this machine.")
        with gr.Tab("Images"):
            _image_tab(gr, page, shop, folder)
        with gr.Tab("Text"):
            _text_tab(gr, shop, folder)
    return page


def _image_tab(gr: Any, page: Any, shop: Workshop, folder: Path) -> None:
    seen = gr.State(Seen(), time_to_live=_HOUR)
    known = [one.name for one in by_family(registry.methods())]
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            file = gr.File(label=f"Your image, up to {MOST_BYTES // 2**20} MB", type="filepath", height=160)
            samples = [(name.partition("_")[0], name) for name in SAMPLES]
            sample = gr.Radio(samples, label="Or a sample", value=SAMPLES[0])
            models = [*SUGGESTED, *shop.shelf.image_models]
            hint = "Or write timm:NAME or torchvision:NAME."
            model = gr.Dropdown(models, value=models[0], label="Model", info=hint, allow_custom_value=True)
            stored = [("its own", ""), *((name, name) for name in shop.shelf.files)]
            weights = gr.Dropdown(stored, value="", label="Weights", visible=bool(shop.shelf.files))
            methods = gr.CheckboxGroup(list(USUAL), value=list(FIRST), label="Methods")
            further = [name for name in known if name not in USUAL]
            more = gr.Dropdown(further, value=[], multiselect=True, label="More methods")
        with gr.Column(scale=3, min_width=320):
            note = gr.HTML(views.message_html("Loading the network …"), elem_id="note")
            with gr.Row():
                with gr.Column(scale=1, min_width=160):
                    preview = gr.HTML()
                with gr.Column(scale=4, min_width=300):
                    classes = gr.CheckboxGroup([], label="Classes, the most probable first")
                    other = gr.Textbox(label="Another class", placeholder="name or number, then Enter", max_lines=1)
            shown = gr.HTML(elem_id="maps")
            with gr.Row():
                opacity = gr.Slider(0, 1, 0.95, step=0.05, label="Opacity of the colours")
                against = gr.Slider(0, 1, 1, step=0.05, label="What speaks against (0: positive only)")
            with gr.Row():
                one_scale = gr.Checkbox(True, label="One scale for all maps")
                compare = gr.Checkbox(False, label="Compare the first two classes")
            make = gr.Button("Make files of this view", variant="primary")
            files = _files(gr, "Picture, numbers, and a program that makes them again")
            with gr.Accordion("GAE of this image, with its parts and curves", open=False):
                ask_parts = gr.Button("Compute for the chosen methods (some seconds each)")
                parts = gr.HTML(elem_id="parts")
            with gr.Accordion("Coverage of the model", open=False):
                ask_coverage = gr.Button("Follow relevance through the model")
                coverage = gr.HTML(elem_id="coverage")

    settings = [seen, classes, methods, more, opacity, against, one_scale, compare]

    def view_of(values: tuple[Any, ...]) -> View:
        state, named, usual, further, alpha, blue, same, differ = values
        if state.picked is None:
            raise AbslrpError("no image is chosen: drop one, or take a sample.")
        by_label = dict(state.classes)
        aimed = tuple(by_label[label] for label in named or [] if label in by_label)
        chosen = tuple(dict.fromkeys([*(usual or []), *(further or [])]))
        return View(state.picked, state.chosen, aimed, chosen, float(alpha), float(blue), bool(same), bool(differ))

    def draw(*values: Any, progress: Any = gr.Progress()) -> tuple[str, str]:  # noqa: B008
        return _said(
            lambda: (
                views.maps_html(shop, view_of(values), lambda done, what: progress(done, what)),
                _ready(view_of(values)),
            )
        )

    def choose(state: Seen, picked: Callable[[], Picked] | None, name: str, stored: str) -> tuple[Any, ...]:
        """A new image or model: its classes, the first one ticked."""
        try:
            image = picked() if picked else state.picked
            if image is None:
                raise AbslrpError("no image is chosen: drop one, or take a sample.")
            chosen = Chosen(name or None, stored or None)
            top = shop.classes(chosen, image)
        except AbslrpError as error:
            return state, gr.skip(), gr.skip(), views.message_html(str(error), error=True)
        named = tuple((f"{one.called} {one.chance:.1%}", one.index) for one in top)
        boxes = gr.CheckboxGroup([label for label, _ in named], value=[named[0][0]])
        return Seen(image, chosen, named), boxes, views.preview_html(image), gr.skip()

    def from_file(state: Seen, path: str | None, name: str, stored: str) -> tuple[Any, ...]:
        return choose(state, (lambda: pick_file(path)) if path else None, name, stored)

    def from_sample(state: Seen, which: str | None, name: str, stored: str) -> tuple[Any, ...]:
        if which is None:
            return state, gr.skip(), gr.skip(), gr.skip()
        return choose(state, lambda: pick_sample(which), name, stored)

    def from_model(state: Seen, name: str, stored: str) -> tuple[Any, ...]:
        return choose(state, None, name, stored)

    def add_class(state: Seen, ticked: list[str], text: str) -> tuple[Any, ...]:
        try:
            if state.picked is None or not text.strip():
                raise AbslrpError("no class is named: write its name or its number.")
            names, count = shop.model(state.chosen).class_names, len(shop.outputs(state.chosen, state.picked))
            one = shop.chance(state.chosen, state.picked, resolve_target(text, names, count))
        except AbslrpError as error:
            return state, gr.skip(), gr.skip(), views.message_html(str(error), error=True)
        label = f"{one.called} {one.chance:.1%}"
        named = tuple(dict.fromkeys([*state.classes, (label, one.index)]))
        boxes = gr.CheckboxGroup([text for text, _ in named], value=list(dict.fromkeys([*ticked, label])))
        return Seen(state.picked, state.chosen, named), boxes, "", gr.skip()

    def files_of(*values: Any) -> tuple[Any, str]:
        target = Path(tempfile.mkdtemp(dir=folder))
        return _said(
            lambda: (
                gr.File(views.write_files(shop, view_of(values), target), visible=True),
                views.message_html("The files are ready below the maps."),
            ),
            gr.skip(),
        )

    def parts_of(*values: Any, progress: Any = gr.Progress()) -> tuple[str, str]:  # noqa: B008
        def work() -> tuple[str, str]:
            view, found = view_of(values), {}
            for number, method in enumerate(view.methods):
                progress(number / len(view.methods), method)
                found[method] = shop.parts(view.chosen, view.picked, method)
            if not found:
                raise AbslrpError("no method is chosen: tick at least one.")
            return views.parts_html(found), views.message_html("GAE is below the maps.")

        return _said(work, gr.skip())

    def coverage_of(*values: Any) -> tuple[str, str]:
        def work() -> tuple[str, str]:
            view = view_of(values)
            found = shop.coverage(view.chosen, view.picked)
            return views.coverage_html(found, view.chosen.model or SUGGESTED[0]), views.message_html(
                "Coverage is below the maps."
            )

        return _said(work, gr.skip())

    quiet = {"api_visibility": "private", "show_progress": "minimal"}
    changed = [seen, classes, preview, note]
    for trigger, how, given in (
        (page.load, from_sample, [seen, sample, model, weights]),
        (sample.change, from_sample, [seen, sample, model, weights]),
        (file.upload, from_file, [seen, file, model, weights]),
        (model.input, from_model, [seen, model, weights]),
        (weights.input, from_model, [seen, model, weights]),
    ):
        trigger(how, given, changed, **quiet)
    # So that the same sample can be chosen again.
    file.upload(lambda: None, None, sample, api_visibility="private")
    other.submit(add_class, [seen, classes, other], [seen, classes, other, note], **quiet)
    # One after the other for each visitor, and only the last of those that pile up.
    for component in (classes, methods, more, one_scale, compare, opacity, against):
        component.change(draw, settings, [shown, note], trigger_mode="always_last", **quiet)
    make.click(files_of, settings, [files, note], **quiet)
    ask_parts.click(parts_of, settings, [parts, note], **quiet)
    ask_coverage.click(coverage_of, settings, [coverage, note], **quiet)


def _text_tab(gr: Any, shop: Workshop, folder: Path) -> None:
    known = list(shop.shelf.text_models)
    note = gr.HTML(
        views.message_html("" if known else "Start the page with --models FOLDER to offer text models of yours."),
        elem_id="text-note",
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            model = gr.Dropdown(
                known,
                value=known[0] if known else None,
                label="Text model",
                info="Or write a name of the hub.",
                allow_custom_value=True,
            )
            text = gr.Textbox(_TEXT, label="Text", lines=4, max_length=_MOST_TEXT)
            aim = gr.Textbox("", label="Class", placeholder="name or number; empty: the predicted one", max_lines=1)
            methods = gr.CheckboxGroup(_text_methods(), value=[TEXT_DEFAULT], label="Methods for text")
            run = gr.Button("Explain the words", variant="primary")
        with gr.Column(scale=3, min_width=320):
            shown = gr.HTML(elem_id="words")
            make = gr.Button("Make files of these words")
            files = _files(gr, "A page, and a program that makes it again")

    def found_for(name: str, written: str, aimed: str, how: list[str]) -> tuple[Any, list[str]]:
        if not written.strip() or not how:
            raise AbslrpError("there is nothing to explain: write a text and tick a method.")
        names = shop.classifier(name).class_names
        target = resolve_target(aimed, names, len(names)) if aimed.strip() else None
        return shop.words(name, written, how, target), names

    def draw(*values: Any) -> tuple[str, str]:
        return _said(lambda: (views.words_html(*found_for(*values)), views.message_html("")))

    def files_of(*values: Any) -> tuple[Any, str]:
        target = Path(tempfile.mkdtemp(dir=folder))

        def work() -> tuple[Any, str]:
            found, names = found_for(*values)
            return gr.File(views.write_words(found, names, values[0], target), visible=True), views.message_html(
                "The files are ready below the words."
            )

        return _said(work, gr.skip())

    given, quiet = [model, text, aim, methods], {"api_visibility": "private", "show_progress": "minimal"}
    run.click(draw, given, [shown, note], **quiet)
    make.click(files_of, given, [files, note], **quiet)


def _files(gr: Any, label: str) -> Any:
    return gr.File(label=label, file_count="multiple", interactive=False, visible=False)


def _text_methods() -> list[str]:
    fitting = []
    for one in by_family(registry.methods()):
        try:
            check_method(one.name)
        except AbslrpError:
            continue
        fitting.append(one.name)
    return sorted(fitting, key=lambda name: name != TEXT_DEFAULT)


def _ready(view: View) -> str:
    count = len(view.classes) * len(view.methods)
    return views.message_html(f"{count} {'map' if count == 1 else 'maps'} of {view.picked.name}.")


def _said(work: Callable[[], tuple[Any, str]], nothing: Any = "") -> tuple[Any, str]:
    """What was asked for and a note, or nothing and a sentence that says why."""
    try:
        return work()
    except AbslrpError as error:
        return nothing, views.message_html(str(error), error=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        return nothing, views.message_html(f"That did not work ({type(error).__name__}: {reason}).", error=True)


def style() -> str:
    """The page's style sheet."""
    return resources.files("abslrp.app").joinpath("page.css").read_text(encoding="utf-8")
