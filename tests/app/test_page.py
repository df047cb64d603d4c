"""The real page in Debian's Chromium: what a visitor does, sees and takes away."""

from __future__ import annotations

import base64
import io
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gradio", reason="no test of the page: pip install 'abslrp[app]'")

# One server is enough: all tests of this file in one process.
pytestmark = pytest.mark.xdist_group("page")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from abslrp.app.server import Server
    from abslrp.inputs.sentences import tiny_classifier

    folder = tmp_path_factory.mktemp("models")
    for part in tiny_classifier():
        part.save_pretrained(folder / "tiny")
    with Server([folder]) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="no test of the page: pip install playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no test of the page: Debian's chromium is not here")
    with api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(server: Any, browser: Any) -> Iterator[Any]:
    """A visitor whose browser must ask nobody else for anything."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    trouble: list[str] = []
    opened.on("pageerror", lambda error: trouble.append(str(error)))
    opened.on("request", lambda request: trouble.append(request.url) if foreign(request.url, server.url) else None)
    opened.goto(server.url)
    seen(opened, 3)
    yield opened
    opened.close()
    assert not trouble


def foreign(url: str, own: str) -> bool:
    return not url.startswith((own, own.replace("http", "ws"), "data:", "blob:"))


def seen(page: Any, count: int) -> None:
    page.wait_for_function(f"document.querySelectorAll('#maps figure img').length == {count}", timeout=WAIT)


def images(page: Any) -> list[np.ndarray]:
    sources = page.eval_on_selector_all("#maps figure img", "all => all.map(one => one.src)")
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one.partition(",")[2]))), dtype=float) for one in sources]


def test_two_classes_three_methods_sliders_and_files(page: Any, server: Any, tmp_path: Path) -> None:
    page.get_by_role("radio", name="coffee").check()
    page.wait_for_selector("#maps h3:has-text('espresso')", timeout=WAIT)
    page.get_by_label("cup (968)").check()
    seen(page, 6)
    drawn = images(page)
    assert all(one.std() > 5 for one in drawn)
    for k, one in enumerate(drawn):
        for other in drawn[:k]:
            assert np.abs(one - other).mean() > 0.5
    assert all(
        "Map of" in alt for alt in page.eval_on_selector_all("#maps figure img", "all => all.map(one => one.alt)")
    )
    computed = server.shop.maps.made
    before = page.get_attribute("#maps figure img >> nth=0", "src")
    slider = page.get_by_label("range slider for What speaks against")
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_function("old => document.querySelector('#maps figure img').src != old", arg=before, timeout=WAIT)
    page.wait_for_selector("#maps >> text=Only what speaks for the class is shown", timeout=WAIT)
    assert server.shop.maps.made == computed
    red, _, blue = images(page)[0].transpose(2, 0, 1)
    assert (blue - red).max() < 60 < (red - blue).max()
    page.get_by_label("Compare the first two classes").check()
    seen(page, 9)
    page.get_by_role("button", name="Make files of this view").click()
    for name in ("coffee.png", "coffee.npz", "coffee.py"):
        with page.expect_download(timeout=WAIT) as waiting:
            page.locator(f"a[download='{name}']").click()
        waiting.value.save_as(tmp_path / name)
    assert np.load(tmp_path / "coffee.npz")["maps"].shape[:2] == (2, 3)
    assert (
        Image.open(tmp_path / "coffee.png").width > 800
        and "sample_images()['coffee']" in (tmp_path / "coffee.py").read_text()
    )


def test_a_broken_file_is_told_and_a_good_one_is_shown(page: Any, tmp_path: Path) -> None:
    broken, good = tmp_path / "broken.png", tmp_path / "good.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing of the kind")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8)).save(good)
    page.set_input_files("input[type=file] >> nth=0", broken)
    page.wait_for_selector("#note [role=alert]", timeout=WAIT)
    said = page.text_content("#note [role=alert]")
    assert said.startswith("broken.png ") and "/" not in said
    assert len(images(page)) == 3
    page.get_by_role("button", name="Remove").or_(page.get_by_label("Clear")).first.click()
    page.set_input_files("input[type=file] >> nth=0", good)
    page.wait_for_selector("figcaption:has-text('good.png')", timeout=WAIT)
    page.wait_for_selector("#note [role=status]:has-text('3 maps of good.png')", timeout=WAIT)
    page.get_by_label("Another class").fill("282")
    page.keyboard.press("Enter")
    page.wait_for_selector("#maps h3:has-text('class 282')", timeout=WAIT)
    page.get_by_role("radio", name="chelsea").check()
    page.wait_for_selector("#maps h3:has-text('tiger cat')", timeout=WAIT)
    seen(page, 3)
    page.get_by_label("Another class").fill("no such thing at all")
    page.keyboard.press("Enter")
    page.wait_for_selector("#note [role=alert]:has-text('is no class of this model')", timeout=WAIT)


def test_words_in_colour(page: Any) -> None:
    page.get_by_role("tab", name="Text").click()
    page.get_by_label("Text", exact=True).fill("a really good <b>movie</b>")
    page.get_by_label("input-x-gradient").last.check()
    page.get_by_role("button", name="Explain the words").click()
    page.wait_for_function("document.querySelectorAll('#words .words').length == 2", timeout=WAIT)
    words = page.eval_on_selector_all(
        "#words .words >> nth=0 >> span", "all => all.map(one => [one.textContent, one.style.background])"
    )
    assert [word for word, _ in words][1:3] == ["really", "good"] and len({colour for _, colour in words}) > 3
    assert page.locator("#words .words b").count() == 0
    page.get_by_label("Class", exact=True).fill("nobody")
    page.get_by_role("button", name="Explain the words").click()
    page.wait_for_selector("#text-note [role=alert]", timeout=WAIT)


def test_parts_and_coverage_on_request_and_no_sideways_scrolling(page: Any) -> None:
    for name in ("abslrp", "abslrp-agree"):
        page.get_by_label(name, exact=True).first.uncheck()
    seen(page, 1)
    page.get_by_role("button", name="GAE of this image, with its parts and curves").click()
    page.get_by_role("button", name="Compute for the chosen methods").click()
    page.wait_for_selector("#parts svg", timeout=WAIT)
    assert page.locator("#parts polyline").count() == 4
    page.get_by_role("button", name="Coverage of the model").click()
    page.get_by_role("button", name="Follow relevance through the model").click()
    page.wait_for_selector("#coverage table", timeout=WAIT)
    for width in (1280, 768, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, width


def test_everything_has_a_name_and_can_be_reached_by_keys(page: Any) -> None:
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('input, button, textarea, img')]
        .filter(one => one.offsetParent && one.type != 'file')
        .filter(one => !(one.labels?.length || one.ariaLabel || one.title || one.alt || one.textContent.trim() || one.getAttribute('aria-labelledby')))
        .map(one => one.outerHTML.slice(0, 200))"""
    )
    assert unnamed == []
    page.get_by_role("radio", name="chelsea").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.wait_for_selector("figcaption:has-text('coffee')", timeout=WAIT)
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    assert page.locator("html[lang]").count() == 1 and page.locator("h1").count() == 1


def test_two_visitors_do_not_meet(page: Any, server: Any, browser: Any) -> None:
    other = browser.new_page()
    other.goto(server.url)
    seen(other, 3)
    page.get_by_role("radio", name="rocket").check()
    page.wait_for_selector("#maps h3:has-text('missile')", timeout=WAIT)
    assert "tiger cat" in other.text_content("#maps h3")
    other.get_by_label("Egyptian cat (285)").check()
    seen(other, 6)
    assert len(images(page)) == 3
    other.close()


@pytest.mark.parametrize("path", ["/etc/hostname", "README.md", "pyproject.toml", "src/abslrp/cli.py"])
def test_no_other_file_is_handed_out(server: Any, path: str) -> None:
    for route in ("gradio_api/file=", "file="):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{server.url}{route}{path}", timeout=10)
        assert caught.value.code in (403, 404)


def test_it_listens_here_only_and_forbids_the_rest(server: Any) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(server.url, timeout=10) as answer:
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]


def test_too_much_is_not_taken(server: Any) -> None:
    from abslrp.app.uploads import MOST_BYTES

    body = (
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
        + bytes(MOST_BYTES + 1)
        + b"\r\n--b--\r\n"
    )
    request = urllib.request.Request(
        f"{server.url}gradio_api/upload", body, {"Content-Type": "multipart/form-data; boundary=b"}
    )
    with pytest.raises((urllib.error.HTTPError, urllib.error.URLError)) as caught:
        urllib.request.urlopen(request, timeout=30)
    assert getattr(caught.value, "code", 413) == 413


def test_a_taken_port_is_told_in_one_sentence(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from abslrp.cli import main

    port = server.url.rstrip("/").rpartition(":")[2]
    assert main(["app", "--no-browser", "--port", port]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: the page cannot listen on 127.0.0.1:{port}") and said.count("\n") == 1
