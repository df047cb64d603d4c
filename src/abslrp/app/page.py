"""The page itself: Gradio's components, and which of them changes which. Whatever is computed or said is elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from abslrp import registry
from abslrp.app import views
from abslrp.app.actions import MOST_TEXT, ImageActions, Seen, TextActions
from abslrp.app.shelf import SUGGESTED
from abslrp.app.uploads import MOST_BYTES, pick_file, pick_sample
from abslrp.app.workshop import Workshop
from abslrp.inputs.models import SAMPLES
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
_WAITING = 32
_HOUR = 3600
_QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}


def build(shop: Workshop, folder: Path) -> Any:
    """The page over a workshop; files to download are written below ``folder``."""
    import gradio as gr

    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(_HOUR, _HOUR)) as page:
        gr.Markdown(f"# {TITLE}\nChoose an image, a model, classes and methods. Images and texts stay on this machine.")
        with gr.Tab("Images"):
            _image_tab(gr, page, shop, folder)
        with gr.Tab("Text"):
            _text_tab(gr, shop, folder)
    # Beyond these a visitor is told to come back; nothing is computed past the queue.
    page.queue(max_size=_WAITING, api_open=False)
    return page


def _image_tab(gr: Any, page: Any, shop: Workshop, folder: Path) -> None:
    its = SimpleNamespace(seen=gr.State(Seen(), time_to_live=_HOUR))
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            _choices(gr, its, shop)
        with gr.Column(scale=3, min_width=320):
            _results(gr, its)
    _wire(gr, page, its, ImageActions(shop, folder))


def _choices(gr: Any, its: SimpleNamespace, shop: Workshop) -> None:
    """What to explain, and how."""
    its.file = gr.File(label=f"Your image, up to {MOST_BYTES // 2**20} MB", type="filepath", height=160)
    samples = [(name.partition("_")[0], name) for name in SAMPLES]
    its.sample = gr.Radio(samples, label="Or a sample", value=SAMPLES[0])
    models, hint = [*SUGGESTED, *shop.shelf.image_models], "Or write timm:NAME or torchvision:NAME."
    its.model = gr.Dropdown(models, value=models[0], label="Model", info=hint, allow_custom_value=True)
    stored = [("its own", ""), *((name, name) for name in shop.shelf.files)]
    its.weights = gr.Dropdown(stored, value="", label="Weights", visible=bool(shop.shelf.files))
    its.methods = gr.CheckboxGroup(list(USUAL), value=list(FIRST), label="Methods")
    further = [one.name for one in by_family(registry.methods()) if one.name not in USUAL]
    its.more = gr.Dropdown(further, value=[], multiselect=True, label="More methods")


def _results(gr: Any, its: SimpleNamespace) -> None:
    """Classes, maps, how they are drawn, and what can be asked of them."""
    its.note = gr.HTML(views.message_html("Loading the network …"), elem_id="note")
    with gr.Row():
        with gr.Column(scale=1, min_width=160):
            its.preview = gr.HTML()
        with gr.Column(scale=4, min_width=300):
            its.classes = gr.CheckboxGroup([], label="Classes, the most probable first")
            its.other = gr.Textbox(label="Another class", placeholder="name or number, then Enter", max_lines=1)
    its.maps = gr.HTML(elem_id="maps")
    with gr.Row():
        its.opacity = gr.Slider(0, 1, 0.95, step=0.05, label="Opacity of the colours")
        its.against = gr.Slider(0, 1, 1, step=0.05, label="What speaks against (0: positive only)")
    with gr.Row():
        its.one_scale = gr.Checkbox(True, label="One scale for all maps")
        its.compare = gr.Checkbox(False, label="Compare the first two classes")
    its.make = gr.Button("Make files of this view", variant="primary")
    its.files = _files(gr, "Picture, numbers, and a program that makes them again")
    with gr.Accordion("GAE of this image, with its parts and curves", open=False):
        its.ask_parts = gr.Button("Compute for the chosen methods (some seconds each)")
        its.parts = gr.HTML(elem_id="parts")
    with gr.Accordion("Coverage of the model", open=False):
        its.ask_coverage = gr.Button("Follow relevance through the model")
        its.coverage = gr.HTML(elem_id="coverage")


def _wire(gr: Any, page: Any, its: SimpleNamespace, act: ImageActions) -> None:
    """Which component changes which."""
    drawn = [its.opacity, its.against, its.one_scale, its.compare]
    settings = [its.seen, its.classes, its.methods, its.more, *drawn]

    def draw(*values: Any, progress: Any = gr.Progress()) -> tuple[str, str]:  # noqa: B008
        return act.draw(values, progress)

    def draw_chosen(*values: Any, progress: Any = gr.Progress()) -> tuple[Any, Any]:  # noqa: B008
        # After a refusal the maps and the sentence that says why stay.
        return (gr.skip(), gr.skip()) if values[0].failed else act.draw(values, progress)

    def parts(*values: Any, progress: Any = gr.Progress()) -> tuple[Any, str]:  # noqa: B008
        return _kept(gr, act.parts(values, progress))

    def files(*values: Any) -> tuple[Any, str]:
        return _handed(gr, act.files(values))

    def coverage(*values: Any) -> tuple[Any, str]:
        return _kept(gr, act.coverage(values))

    _wire_choices(gr, page, its, act, lambda event: event.then(draw_chosen, settings, [its.maps, its.note], **_QUIET))
    for component in (its.classes, its.methods, its.more):
        component.input(draw, settings, [its.maps, its.note], trigger_mode="always_last", **_QUIET)
    for component in drawn:
        component.change(draw, settings, [its.maps, its.note], trigger_mode="always_last", **_QUIET)
    its.make.click(files, settings, [its.files, its.note], **_QUIET)
    its.ask_parts.click(parts, settings, [its.parts, its.note], **_QUIET)
    its.ask_coverage.click(coverage, settings, [its.coverage, its.note], **_QUIET)


def _wire_choices(gr: Any, page: Any, its: SimpleNamespace, act: ImageActions, then: Callable[[Any], Any]) -> None:
    """A new image, model or class, and then its maps."""

    def shown(seen: Seen, note: str) -> tuple[Any, ...]:
        if seen.failed or seen.picked is None:
            return seen, gr.skip(), gr.skip(), note
        boxes = gr.CheckboxGroup(seen.offered, value=seen.offered[:1])
        working = views.message_html(f"Explaining {seen.picked.name} …")
        return seen, boxes, views.preview_html(seen.picked), working

    def from_sample(seen: Seen, name: str | None, model: str, weights: str) -> tuple[Any, ...]:
        if name is None:
            return replace(seen, failed=True), gr.skip(), gr.skip(), gr.skip()
        return shown(*act.choose(seen, lambda: pick_sample(name), model, weights))

    def from_file(seen: Seen, path: str | None, model: str, weights: str) -> tuple[Any, ...]:
        return shown(*act.choose(seen, (lambda: pick_file(path)) if path else None, model, weights))

    def from_model(seen: Seen, model: str, weights: str) -> tuple[Any, ...]:
        return shown(*act.choose(seen, None, model, weights))

    def add_class(seen: Seen, ticked: list[str], text: str) -> tuple[Any, ...]:
        found, note = act.add_class(seen, text)
        if note:
            return replace(seen, failed=True), gr.skip(), gr.skip(), note
        last = found.offered[-1]
        return found, gr.CheckboxGroup(found.offered, value=list(dict.fromkeys([*ticked, last]))), "", gr.skip()

    changed, which = [its.seen, its.classes, its.preview, its.note], [its.model, its.weights]
    then(page.load(from_sample, [its.seen, its.sample, *which], changed, **_QUIET))
    # By a click, since a file that is brought takes the sample's mark away, so that it can be chosen again.
    then(its.sample.input(from_sample, [its.seen, its.sample, *which], changed, **_QUIET))
    then(its.file.upload(from_file, [its.seen, its.file, *which], changed, **_QUIET))
    its.file.upload(lambda: None, None, its.sample, api_visibility="private")
    for component in which:
        then(component.input(from_model, [its.seen, *which], changed, **_QUIET))
    asked = [its.seen, its.classes, its.other]
    then(its.other.submit(add_class, asked, [*asked, its.note], **_QUIET))


def _text_tab(gr: Any, shop: Workshop, folder: Path) -> None:
    known, act = list(shop.shelf.text_models), TextActions(shop, folder)
    hint = "" if known else "Start the page with --models FOLDER to offer text models of yours."
    note = gr.HTML(views.message_html(hint), elem_id="text-note")
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            first, info = known[0] if known else None, "Or write a name of the hub."
            model = gr.Dropdown(known, value=first, label="Text model", info=info, allow_custom_value=True)
            text = gr.Textbox(_TEXT, label="Text", lines=4, max_length=MOST_TEXT)
            aim = gr.Textbox("", label="Class", placeholder="name or number; empty: the predicted one", max_lines=1)
            run = gr.Button("Explain the words", variant="primary")
            methods = gr.CheckboxGroup(_text_methods(), value=[TEXT_DEFAULT], label="Methods for text")
        with gr.Column(scale=3, min_width=320):
            shown = gr.HTML(elem_id="words")
            make = gr.Button("Make files of these words")
            files = _files(gr, "A page, and a program that makes it again")
    given = [model, text, aim, methods]
    run.click(act.draw, given, [shown, note], **_QUIET)
    make.click(lambda *values: _handed(gr, act.files(*values)), given, [files, note], **_QUIET)


def _kept(gr: Any, answer: tuple[Any, str]) -> tuple[Any, str]:
    """What was shown before stays where there is nothing new."""
    found, note = answer
    return gr.skip() if found is None else found, note


def _handed(gr: Any, answer: tuple[list[str] | None, str]) -> tuple[Any, str]:
    found, note = answer
    return gr.skip() if found is None else gr.File(found, visible=True), note


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


def style() -> str:
    """The page's style sheet."""
    return resources.files("abslrp.app").joinpath("page.css").read_text(encoding="utf-8")
