"""The page is attacked: from other sites, by forged requests, by hostile names, by too much of everything."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gradio", reason="no test of the page: pip install 'abslrp[app]'")

# With the other tests of the page in one process, one server after the other.
pytestmark = pytest.mark.xdist_group("page")

SCRIPT = "<img src=x onerror='window.taken=1'>"
NAMES = [
    SCRIPT,
    "${window.taken=1}",
    "{{window.taken=1}}",
    '"><script>window.taken=1</script>',
    "<svg onload=window.taken=1>",
]
WAIT = 20_000
Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page whose folder holds models with hostile names of classes."""
    from abslrp.app.server import Server
    from abslrp.inputs.sentences import tiny_classifier

    folder = tmp_path_factory.mktemp("models")
    for part in tiny_classifier():
        part.save_pretrained(folder / "tiny")
    config = folder / "tiny" / "config.json"
    told = json.loads(config.read_text())
    told["id2label"] = {key: f"{SCRIPT}{key}" for key in told["id2label"]}
    told["label2id"] = {label: int(key) for key, label in told["id2label"].items()}
    config.write_text(json.dumps(told))
    image_model(folder / "seer")
    (folder / "other.pth").write_bytes(b"these are no weights")
    with Server([folder]) as running:
        yield running


def image_model(folder: Path) -> None:
    """A small network of transformers whose classes are called what an attacker likes."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    named = {"id2label": dict(enumerate(NAMES)), "label2id": {name: k for k, name in enumerate(NAMES)}}
    ViTForImageClassification(ViTConfig(**small, image_size=32, patch_size=8, **named)).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)


def place(server: Any) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").rstrip("/").partition(":")
    return host, int(port)


def ask(
    server: Any, path: str, method: str = "GET", body: bytes | None = None, host: str | None = None, **headers: str
) -> Answer:
    """One request, just as it is written here; a server that hangs up early is heard out."""
    line = http.client.HTTPConnection(*place(server), timeout=20)
    try:
        line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        line.putheader("Host", host or "{}:{}".format(*place(server)))
        for name, value in headers.items():
            line.putheader(name.replace("_", "-"), value)
        if body is not None and "Content_Length" not in headers:
            line.putheader("Content-Length", str(len(body)))
        line.endheaders()
        if body:
            line.send(body)
        answer = line.getresponse()
        kind = answer.headers.get("Content-Type", "")
        # A stream of events has no end.
        said = answer.read(200) if "event-stream" in kind else answer.read()
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, said
    finally:
        line.close()


def functions(server: Any) -> dict[str, tuple[int, list[Any]]]:
    """The page's functions by name: their numbers, and what a visitor who has just come would send."""
    config = json.loads(ask(server, "/config")[2])
    values = {one["id"]: one["props"].get("value") for one in config["components"]}
    return {
        one["api_name"]: (one["id"], [values.get(number) for number in one["inputs"]]) for one in config["dependencies"]
    }


def question(number: int, data: list[Any], session: str = "attacker") -> bytes:
    return json.dumps({"fn_index": number, "data": data, "session_hash": session}).encode()


def join(server: Any, body: bytes, **headers: str) -> Answer:
    return ask(server, "/gradio_api/queue/join", "POST", body, **{"Content_Type": "application/json", **headers})


def outcome(server: Any, number: int, data: list[Any], session: str) -> dict[str, Any]:
    """What the page answers to a question, as it stands in the stream of events."""
    for _ in range(300):
        status, _, said = join(server, question(number, data, session))
        if status != 503:
            break
        time.sleep(0.1)
    assert status == 200, said
    line = http.client.HTTPConnection(*place(server), timeout=60)
    try:
        line.request("GET", f"/gradio_api/queue/data?session_hash={session}")
        stream = line.getresponse()
        for raw in stream:
            event = json.loads(raw.removeprefix(b"data: ")) if raw.startswith(b"data: ") else {}
            if event.get("msg") == "process_completed":
                return event
    finally:
        line.close()
    raise AssertionError("the stream ended without an answer")


def uploaded(server: Any, name: str, data: bytes, **headers: str) -> Answer:
    head = f'--b\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
    kind = {"Content_Type": "multipart/form-data; boundary=b", **headers}
    return ask(server, "/gradio_api/upload", "POST", head + data + b"\r\n--b--\r\n", **kind)


def picture(size: tuple[int, int] = (40, 30)) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


# Other sites, and names that point here


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1:80@evil.example",
     "192.168.0.7", "[::2]", "", " ", "localhost:7860, evil.example"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/queue/data?session_hash=abcdef", "/assets/index.js"])
def test_a_foreign_name_that_points_here_is_refused(server: Any, host: str, path: str) -> None:
    status, headers, said = ask(server, path, host=host or " ")
    assert status == 421 and b"not known by that name" in said
    assert "access-control-allow-origin" not in headers


def test_its_own_names_are_answered(server: Any) -> None:
    port = place(server)[1]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", "[::1]:9000"):
        assert ask(server, "/", host=host)[0] == 200, host


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:1", "http://127.0.0.1", "https://127.0.0.1:1", "file://", "x"],
)
@pytest.mark.parametrize("path", ["/config", "/gradio_api/queue/join", "/gradio_api/upload"])
def test_another_origin_gets_nothing(server: Any, origin: str, path: str) -> None:
    method = "GET" if path == "/config" else "POST"
    kind = "multipart/form-data; boundary=b" if path.endswith("upload") else "application/json"
    status, _, said = ask(server, path, method, b"{}" if method == "POST" else None, Origin=origin, Content_Type=kind)
    assert status == 403 and b"another site" in said


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_load_or_frame_it_but_may_link_to_it(server: Any, site: str) -> None:
    for mode, dest in (
        ("no-cors", "script"),
        ("no-cors", "image"),
        ("navigate", "iframe"),
        ("navigate", "embed"),
        ("cors", "empty"),
    ):
        told = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": dest}
        assert ask(server, "/", **told)[0] == 403, (mode, dest)
    link = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert ask(server, "/", **link)[0] == 200
    assert ask(server, "/gradio_api/startup-events", **link)[0] == 403


def test_every_answer_forbids_frames_and_foreign_things(server: Any) -> None:
    for path in ("/", "/config", "/gradio_api/file=/etc/passwd", "/nothing"):
        headers = ask(server, path)[1]
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert headers["x-frame-options"] == "DENY" and headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == headers["cross-origin-opener-policy"] == "same-origin"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", ""]
)
def test_a_form_of_another_site_is_no_question(server: Any, kind: str) -> None:
    number, data = functions(server)["from_sample"]
    assert join(server, question(number, data), Content_Type=kind)[0] == 415


def test_a_websocket_is_not_opened(server: Any) -> None:
    told = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec_WebSocket_Version": "13",
    }
    assert ask(server, "/gradio_api/queue/join", Origin="http://evil.example", **told)[0] in (400, 403, 404)


# Files and addresses


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/proxy=http://example.com/", "/gradio_api/info", "/gradio_api/openapi.json", "/gradio_api/deep_link?session_hash=a",
     "/gradio_api/run-history/buckets", "/gradio_api/run-history/records", "/gradio_api/runs", "/gradio_api/user", "/gradio_api/token",
     "/gradio_api/dev/reload", "/gradio_api/custom_component/a/b/c/d.js", "/gradio_api/stream/a/b/1/playlist-file", "/monitoring",
     "/gradio_api/vibe-code", "/gradio_api/file/etc/passwd", "/file=/etc/passwd", "/docs", "/gradio_api/mcp/", "/gradio_api/app_id",
     "/gradio_api/queue/status", "/login", "//etc/passwd", "/gradio_api/call/draw/abc"],
)  # fmt: skip
def test_what_the_page_does_not_need_is_not_there(server: Any, path: str) -> None:
    assert ask(server, path)[0] == 404
    assert ask(server, path, "POST", b"{}", Content_Type="application/json")[0] == 404


@pytest.mark.parametrize(
    "path",
    ["run/draw", "api/draw", "call/draw", "call/v2/draw", "component_server", "component_server/", "process_recording", "stream/abc",
     "reset", "cancel", "run-history/connect", "vibe-edit", "undo-vibe-edit", "profiling/clear", "queue/join/"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_else_can_be_done(server: Any, path: str, method: str) -> None:
    assert ask(server, f"/gradio_api/{path}", method, b"{}", Content_Type="application/json")[0] == 404


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "/proc/self/environ", "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "README.md",
     "http://example.com/", "https:%2f%2fexample.com", "HTTP://127.0.0.1:1/", "file:///etc/passwd", "data:text/html,x", "~/.bashrc",
     "/etc/passwd%00.png", "", "."],
)  # fmt: skip
def test_no_other_file_or_address_is_handed_out(server: Any, name: str) -> None:
    assert ask(server, f"/gradio_api/file={name}")[0] in (403, 404)


def test_only_what_was_brought_is_handed_out_and_nothing_beside_it(server: Any) -> None:
    status, _, said = uploaded(server, "a.png", picture())
    [path] = json.loads(said)
    assert status == 200 and ask(server, f"/gradio_api/file={path}")[2] == picture()
    made = Path(path).parents[2] / "files" / "secret.txt"
    made.write_text("not for you")
    assert ask(server, f"/gradio_api/file={made}")[0] == 403
    assert ask(server, f"/gradio_api/file={Path(path).parent}/../../files/secret.txt")[0] == 403
    link = Path(path).with_name("link.png")
    link.symlink_to("/etc/passwd")
    assert ask(server, f"/gradio_api/file={link}")[0] == 403
    assert ask(server, f"/gradio_api/file={Path(path).parent}")[0] == 403
    link.unlink()


@pytest.mark.parametrize("kind, name", [("html", "a.html"), ("html", "a.svg"), ("html", "a.xml"), ("script", "a.js")])
def test_what_was_brought_is_never_opened_as_a_page(server: Any, kind: str, name: str) -> None:
    text = b"<svg xmlns='http://www.w3.org/2000/svg'><script>window.taken=1</script></svg>"
    [path] = json.loads(uploaded(server, name, text)[2])
    _, headers, _ = ask(server, f"/gradio_api/file={path}")
    assert headers["content-disposition"].startswith("attachment"), headers
    assert headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    "name",
    [
        "../../../evil.png",
        "..",
        "/etc/cron.d/evil",
        "a\\..\\..\\evil.png",
        "%2e%2e%2fevil.png",
        "a" * 3000 + ".png",
        "\u202egnp.png",
    ],
)
def test_an_upload_lands_in_its_folder_whatever_it_is_called(server: Any, name: str) -> None:
    home = Path(os.environ["GRADIO_TEMP_DIR"]).resolve()
    status, _, said = uploaded(server, name, picture())
    assert status in (200, 400), said
    for path in json.loads(said) if status == 200 else []:
        assert Path(path).resolve().is_relative_to(home)
    assert not list(home.parent.glob("evil*")) and not list(home.parent.parent.glob("evil*"))


@pytest.mark.parametrize(
    "path", ["http://127.0.0.1:1/a.png", "https://example.com/a.png", "ftp://example.com/a", "file:///etc/passwd"]
)
def test_a_forged_file_that_is_an_address_is_fetched_by_nobody(server: Any, path: str) -> None:
    number, data = functions(server)["from_file"]
    forged = {"path": path, "url": path, "orig_name": "a.png", "meta": {"_type": "gradio.FileData"}}
    for wrapped in (forged, [forged], {"deep": [forged]}):
        status, _, said = join(server, question(number, [None, wrapped, *data[2:]]))
        assert status == 403 and b"fetches none" in said


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../../etc/passwd", "pyproject.toml", "/proc/self/environ", "data:image/png;base64,AAAA"]
)
def test_a_forged_file_that_is_a_path_is_not_read(server: Any, path: str) -> None:
    number, data = functions(server)["from_file"]
    forged = {"path": path, "url": None, "orig_name": "a.png", "meta": {"_type": "gradio.FileData"}}
    event = outcome(server, number, [None, forged, *data[2:]], "forger")
    assert event["success"] is False
    assert "root:" not in json.dumps(event) and "PATH=" not in json.dumps(event)


@pytest.mark.parametrize(
    "spec", ["hf:/etc", "hf:../..", "/etc/passwd", "hf:.", "timm:../../x", "file:///etc", "other.pth"]
)
def test_models_outside_the_folders_are_not_opened(server: Any, spec: str) -> None:
    number, _ = functions(server)["from_sample"]
    event = outcome(server, number, [None, "chelsea", spec, ""], "modeler")
    assert "not offered here" in json.dumps(event["output"])


def test_weights_are_named_and_their_folder_is_not_told(server: Any) -> None:
    number, _ = functions(server)["from_sample"]
    told = json.dumps(outcome(server, number, [None, "chelsea", "", "other.pth"], "weigher")["output"])
    [kept] = server.shop.shelf.files.values()
    assert "message error" in told and "other.pth" in told and str(kept.parent) not in told


# Too much


@pytest.mark.parametrize(
    "body, status",
    [(b"", 400), (b"nothing", 400), (b"[]", 400), (b"{}", 400), (b'{"fn_index": "0", "session_hash": "abcdef"}', 400),
     (b'{"fn_index": 0, "session_hash": "../../a"}', 400), (b'{"fn_index": 0, "session_hash": 7}', 400), (b"[" * 100_000, 400),
     (b'{"fn_index": 0, "session_hash": "%s"}' % (b"a" * 65), 400), (b" " * (256 * 2**10 + 1), 413), (b"\xff\xfe\x00", 400),
     (b'{"a":' * 40 + b"1" + b"}" * 40, 400), (b'{"fn_index": 1' + b"0" * 5000 + b"}", 400)],
)  # fmt: skip
def test_questions_that_are_none(server: Any, body: bytes, status: int) -> None:
    assert join(server, body)[0] == status


@pytest.mark.parametrize(
    "length, status", [("", 411), ("-1", 411), ("1e9", 411), (str(10**11), 413), (str(21 * 2**20), 413)]
)
def test_a_body_says_how_long_it_is_and_is_not_too_long(server: Any, length: str, status: int) -> None:
    kind = "multipart/form-data; boundary=b"
    told = {"Content_Length": length} if length else {"Transfer_Encoding": "chunked"}
    # A server may refuse what is no number before it asks anybody.
    assert ask(server, "/gradio_api/upload", "POST", b"", Content_Type=kind, **told)[0] in (status, 400)


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_unpacked(server: Any) -> None:
    buffer = io.BytesIO()
    Image.new("1", (7000, 7000)).save(buffer, "PNG")
    [path] = json.loads(uploaded(server, "huge.png", buffer.getvalue())[2])
    number, data = functions(server)["from_file"]
    brought = {"path": path, "orig_name": "huge.png", "meta": {"_type": "gradio.FileData"}}
    event = outcome(server, number, [None, brought, *data[2:]], "painter")
    assert "7000 by 7000 pixels" in json.dumps(event["output"])


def test_a_text_too_long_is_told_by_the_page_too(server: Any) -> None:
    functions_ = [one for one in functions(server).items() if len(one[1][1]) == 4 and isinstance(one[1][1][3], list)]
    number = functions_[0][1][0]
    event = outcome(server, number, ["tiny", "good " * 1000, "", ["abslrp-transformer"]], "writer")
    assert "5,000 letters" in json.dumps(event["output"])


def test_too_many_maps_and_classes_are_refused_before_any_is_made() -> None:
    from abslrp.app.actions import MOST_CLASSES, ImageActions, Seen
    from abslrp.app.uploads import pick_sample
    from abslrp.app.workshop import Chosen, Workshop

    shop = Workshop()
    act = ImageActions(shop, Path())
    classes = tuple((f"class {k} ({k})", k) for k in range(MOST_CLASSES))
    seen = Seen(pick_sample("coffee"), Chosen(), classes)
    ticked = [label for label, _ in classes]
    _, note = act.draw(
        [seen, ticked, ["abslrp", "gradcam", "saliency", "lrp-epsilon"], [], 1, 1, True, False], lambda *_: None
    )
    assert "160 maps" in note and shop.maps.made == 0
    assert "offered already" in act.add_class(seen, "7")[1]
    for bad in (float("nan"), float("inf"), -1, 2):
        assert (
            "move the sliders" in act.draw([seen, ticked[:1], ["abslrp"], [], bad, 1, True, False], lambda *_: None)[1]
        )
    assert shop.maps.made == 0


def test_work_that_takes_too_long_ends_between_two_maps_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from abslrp.app import actions
    from abslrp.app.uploads import pick_sample
    from abslrp.app.workshop import Chosen, Workshop

    shop = Workshop()
    act = actions.ImageActions(shop, Path())
    seen, _ = act.choose(actions.Seen(), lambda: pick_sample("coffee"), None, None)
    values = [seen, seen.offered[:1], ["constant", "random", "saliency"], [], 1, 1, True, False]
    clock = iter([0.0, 1.0, 1000.0])
    monkeypatch.setattr(actions, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    shown, note = act.draw(values, lambda *_: None)
    assert shown == "" and "33% is done" in note and shop.maps.made == 1
    monkeypatch.undo()
    assert chosen_maps(act.draw(values, lambda *_: None)[0]) == 3 and shop.maps.made == 3
    assert seen.chosen == Chosen()


def chosen_maps(text: str) -> int:
    return text.count("<figure>")


def test_what_visitors_leave_on_the_disk_is_bounded(tmp_path: Path) -> None:
    from abslrp.app.uploads import make_room

    for second in range(30):
        path = tmp_path / f"{second:02d}" / "a.png"
        path.parent.mkdir()
        path.write_bytes(bytes(100))
        os.utime(path, (second, second))
    make_room(tmp_path, 1000)
    assert sorted(one.parent.name for one in tmp_path.rglob("*.png")) == [f"{second}" for second in range(20, 30)]
    assert len(list(tmp_path.iterdir())) == 10
    make_room(tmp_path, 1000, 3)
    assert len(list(tmp_path.rglob("*.png"))) == 3


class Inner:
    """What stands behind the gate in its own tests."""

    def __init__(self, wait: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.wait, self.go = wait, asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", scope["method"] == "POST"
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
            if message["type"] == "http.disconnect":
                body = b"gone"
        self.bodies.append(body)
        if self.wait:
            await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def through(
    gate: Any,
    path: str,
    method: str = "GET",
    body: bytes = b"",
    who: str = "1.2.3.4",
    silent: bool = False,
    **more: str,
) -> int:
    told = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(body)), **more}
    headers = [(name.encode(), value.encode()) for name, value in told.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": (who, 1)}
    sent: list[Any] = []

    async def receive() -> Any:
        if silent:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await gate(scope, receive, send)
    return int(sent[0]["status"])


def gate_of(inner: Inner, tmp_path: Path, **bounds: Any) -> Any:
    from abslrp.app.gate import Gate

    return Gate(inner, bounds.pop("host", "127.0.0.1"), tmp_path / "uploads", tmp_path, **bounds)


def test_a_visitor_asks_so_often_and_another_is_not_in_the_way(tmp_path: Path) -> None:
    inner = Inner()
    gate = gate_of(inner, tmp_path, joins=5)

    async def many() -> list[int]:
        body = question(0, [])
        found = [await through(gate, "/gradio_api/queue/join", "POST", body) for _ in range(7)]
        return [*found, await through(gate, "/gradio_api/queue/join", "POST", body, who="5.6.7.8")]

    assert asyncio.run(many()) == [200] * 5 + [429] * 2 + [200]
    assert inner.bodies == [question(0, [])] * 6


def test_a_visitor_holds_so_many_lines_open(tmp_path: Path) -> None:
    async def many() -> tuple[list[int], int]:
        inner = Inner(wait=True)
        gate = gate_of(inner, tmp_path, open_at_once=3)
        held = [asyncio.create_task(through(gate, "/config")) for _ in range(3)]
        await asyncio.sleep(0)
        refused = await through(gate, "/config")
        inner.go.set()
        assert await through(gate, "/config", who="5.6.7.8") == 200
        return [await one for one in held], refused

    assert asyncio.run(many()) == ([200] * 3, 429)


@pytest.mark.parametrize(
    "path, kind, left", [("join", "application/json", []), ("upload", "multipart/form-data", [b"gone"])]
)
def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, path: str, kind: str, left: list[bytes]) -> None:
    inner = Inner()
    gate = gate_of(inner, tmp_path, slowest=0.05)
    route = "/gradio_api/queue/join" if path == "join" else "/gradio_api/upload"
    told = {"content-type": kind, "content-length": "10"}
    status = asyncio.run(through(gate, route, "POST", silent=True, **told))
    assert inner.bodies == left and status == (408 if path == "join" else 200)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "::"])
def test_for_others_it_answers_to_numbers_and_its_own_name_only(tmp_path: Path, host: str) -> None:
    gate = gate_of(Inner(), tmp_path, host=host)
    for name, status in (
        ("10.0.0.5:80", 200),
        ("[fe80::1]:80", 200),
        (socket.gethostname(), 200),
        ("localhost", 200),
        ("evil.example", 421),
    ):
        assert asyncio.run(through(gate, "/", host=name)) == status, name


def test_a_header_that_decides_comes_once(server: Any) -> None:
    with socket.create_connection(place(server), timeout=10) as line:
        line.sendall(
            b"GET /config HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nOrigin: http://evil.example\r\n\r\n"
        )
        assert line.recv(100).split()[1] == b"400"


def test_a_full_queue_says_so_and_answers_later(server: Any) -> None:
    number, _ = functions(server)["from_sample"]
    server.shop._lock.acquire()
    try:
        ends = [join(server, question(number, [None, "rocket", "", ""], f"crowd{k:02d}"))[0] for k in range(40)]
    finally:
        server.shop._lock.release()
    assert ends.count(200) in (32, 33) and set(ends) == {200, 503}
    assert ask(server, "/")[0] == 200
    # In turn: when this one is answered, so are all before it.
    assert outcome(server, number, [None, "rocket", "", ""], "patient")["success"]


def test_sessions_are_apart(server: Any) -> None:
    number, _ = functions(server)["from_sample"]
    mine = outcome(server, number, [None, "rocket", "", ""], "mine1234")
    assert mine["success"]
    drawing, _ = functions(server)["draw"]
    theirs = outcome(server, drawing, [None, [], ["abslrp"], [], 1, 1, True, False], "theirs12")
    assert "no image is chosen" in json.dumps(theirs["output"])


def test_pages_that_start_together_are_not_in_each_others_way(tmp_path: Path) -> None:
    from abslrp.app.server import free_port

    ports: list[int] = []
    threads = [threading.Thread(target=lambda: ports.append(free_port("127.0.0.1"))) for _ in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(set(ports)) == 16 and all(port > 1023 for port in ports)


# Names that would be programs


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="no test of scripts in the page: pip install playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no test of scripts in the page: Debian's chromium is not here")
    with api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def test_names_stay_text_in_the_browser(server: Any, browser: Any, tmp_path: Path) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("dialog", lambda dialog: asked.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/x") else None)
    page.goto(server.url)
    page.wait_for_function("document.querySelectorAll('#maps figure img').length == 3", timeout=WAIT)
    for number, name in enumerate(
        ("<img src=x onerror=window.taken=1>.png", "${window.taken=1}.png", "{{window.taken=1}}.png")
    ):
        path = tmp_path / name
        path.write_bytes(picture((30 + number, 40)))
        if number:
            page.get_by_label("Clear").or_(page.get_by_role("button", name="Remove")).first.click()
        before = page.get_attribute(".preview img", "src")
        page.set_input_files("input[type=file] >> nth=0", path)
        page.wait_for_function("old => document.querySelector('.preview img').src != old", arg=before, timeout=WAIT)
        page.wait_for_selector("#note [role=status]:has-text('3 maps of')", timeout=WAIT)
    model = page.get_by_label("Model", exact=True)
    model.fill("seer")
    model.press("Enter")
    page.wait_for_selector("#maps h3:has-text('taken=1')", timeout=WAIT)
    for box in page.locator("label:has-text('taken=1') input[type=checkbox]").all():
        box.check()
    page.wait_for_function("document.querySelectorAll('#maps h3').length == 5", timeout=WAIT)
    page.get_by_label("Another class").fill(SCRIPT + "nobody")
    page.keyboard.press("Enter")
    page.wait_for_selector("#note [role=alert]", timeout=WAIT)
    page.get_by_role("tab", name="Text").click()
    page.get_by_label("Text", exact=True).fill(f"a {SCRIPT} good")
    page.get_by_role("button", name="Explain the words").click()
    page.wait_for_selector("#words .words", timeout=WAIT)
    page.get_by_label("Class", exact=True).fill(SCRIPT)
    page.get_by_role("button", name="Explain the words").click()
    page.wait_for_timeout(500)
    assert page.evaluate("window.taken") is None and not asked
    assert page.locator("#maps img[src=x], #note img, #words img, #maps script, #maps svg[onload]").count() == 0
    page.close()


def test_another_site_in_the_browser_reads_and_sends_nothing(server: Any, browser: Any) -> None:
    page = browser.new_page()
    # The same machine under another name is another site for the browser, and asks with its cookies and all.
    other = server.url.replace("127.0.0.1", "localhost")
    page.goto(other)
    page.evaluate("document.body.innerHTML = ''")
    tried = """async url => {
        const found = [];
        const json = {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"fn_index": 0, "data": [], "session_hash": "stranger"}'};
        const plain = {method: 'POST', mode: 'no-cors', body: '{"fn_index": 0, "data": [], "session_hash": "stranger"}'};
        for (const [path, how] of [['config', {}], ['gradio_api/queue/join', json], ['gradio_api/queue/join', plain], ['gradio_api/queue/data?session_hash=stranger', {}]]) {
            try { const answer = await fetch(url + path, how); found.push(answer.status == 200 ? 'read' : 'refused'); } catch (error) { found.push('refused'); }
        }
        const frame = document.createElement('iframe');
        frame.src = url;
        document.body.append(frame);
        await new Promise(done => { frame.onload = done; setTimeout(done, 2000); });
        let inside = 'unseen';
        try { inside = frame.contentDocument?.body?.children.length ? 'seen' : 'unseen'; } catch (error) { }
        return [...found, inside];
    }"""
    # The page's own policy would stop this before it is sent, so the attacker's has none.
    blank = browser.new_page(bypass_csp=True)
    blank.goto(other)
    assert blank.evaluate(tried, server.url) == ["refused"] * 4 + ["unseen"]
    assert "stranger" not in str(server._page._queue.pending_messages_per_session)
    blank.close()
    page.close()
