"""The page's gate: who may ask for what, how much and how often. Whatever is not let in, Gradio never hears of."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from abslrp.app.uploads import MOST_BYTES, make_room

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
JOIN, UPLOAD = "/gradio_api/queue/join", "/gradio_api/upload"
_FILE = "/gradio_api/file="
_SESSION = r"[A-Za-z0-9_-]{4,64}"
# What the page itself asks for. Gradio has forty more routes, such as proxies and recordings, which nobody here needs.
_READ = re.compile(
    r"/|/config/?|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt|/(assets|static|svelte)/.+"
    rf"|/gradio_api/(startup-events|upload_progress|queue/data|heartbeat/{_SESSION}|file=.+)"
)
# Bytes of a request, by route; what multipart adds to a file is little.
_MOST = {JOIN: 256 * 2**10, UPLOAD: MOST_BYTES + 16 * 2**10}
_KIND = {JOIN: "application/json", UPLOAD: "multipart/form-data"}
_DEEPEST = 12


class Refused(Exception):
    """A request that is not let in, with the HTTP status and the sentence that it gets."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Pace:
    """So many in so many seconds for everyone, by name; those that were not seen for longest are forgotten first.

    >>> clock = iter([0.0, 1.0, 2.0, 61.0])
    >>> pace = Pace(2, 60, clock=lambda: next(clock))
    >>> [pace.allows("a") for _ in range(4)]
    [True, True, False, True]
    """

    def __init__(self, most: int, seconds: float, names: int = 1000, clock: Callable[[], float] = time.monotonic):
        self.most, self.seconds, self.names, self.clock = most, seconds, names, clock
        self._seen: OrderedDict[str, deque[float]] = OrderedDict()

    def allows(self, name: str) -> bool:
        now, seen = self.clock(), self._seen.setdefault(name, deque())
        self._seen.move_to_end(name)
        while seen and now - seen[0] >= self.seconds:
            seen.popleft()
        if len(self._seen) > self.names:
            self._seen.popitem(last=False)
        if len(seen) >= self.most:
            return False
        seen.append(now)
        return True


class Gate:
    """Around Gradio's application: lets in what the page itself asks for, from itself, within bounds.

    ``host`` is where the page listens and ``uploads`` the only folder that files are handed out from; ``kept`` is all that
    visitors make it write, of which the oldest goes when it grows beyond ``most_kept`` bytes.
    """

    def __init__(
        self,
        app: App,
        host: str,
        uploads: Path,
        kept: Path,
        *,
        most_kept: int = 2**30,
        joins: int = 300,
        brought: int = 40,
        open_at_once: int = 64,
        slowest: float = 60.0,
    ) -> None:
        self.app, self.names, self.uploads, self.kept = app, own_names(host), uploads.resolve(), kept
        self.anywhere = host not in LOOPBACK
        self.most_kept, self.open_at_once, self.slowest = most_kept, open_at_once, slowest
        self.paces = {JOIN: Pace(joins, 60), UPLOAD: Pace(brought, 60)}
        self._open: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._met(scope, receive, _marked(send))
        else:
            # The page uses no websockets.
            await send({"type": "websocket.close", "code": 1008})

    async def _met(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = (scope.get("client") or ("",))[0]
        self._open[who] = self._open.get(who, 0) + 1
        try:
            self._check(scope, who)
            if scope["method"] == "POST":
                receive = await self._body(scope, receive)
            await self.app(scope, receive, send)
        except Refused as no:
            await _answer(send, no)
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    def _check(self, scope: Scope, who: str) -> None:
        """All that is known before the body."""
        headers, path, method = _headers(scope), scope["path"], scope["method"]
        self._check_origin(headers, path, method)
        if self._open[who] > self.open_at_once:
            raise Refused(429, f"this page answers {self.open_at_once} requests of a visitor at once: wait for some.")
        if method in ("GET", "HEAD"):
            if not _READ.fullmatch(path):
                raise Refused(404, "there is nothing of this name on the page.")
            if path.startswith(_FILE):
                self._check_file(path.removeprefix(_FILE))
        elif method == "POST" and path in _MOST:
            _check_size(headers, path)
            if not self.paces[path].allows(who):
                raise Refused(429, "this was asked too often within a minute: wait a little.")
        else:
            raise Refused(404, "there is nothing of this name on the page.")

    def _check_origin(self, headers: dict[str, str], path: str, method: str) -> None:
        """The page is asked by its own name (else a foreign name points here) and from itself (else another site asks)."""
        host = headers.get("host", "")
        name = _name(host)
        if name not in self.names and not (self.anywhere and _is_address(name)):
            raise Refused(421, "this page is not known by that name: open it by the address that abslrp app printed.")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            raise Refused(403, "another site asked for this: open the page itself.")
        # A link from elsewhere may lead to the page, and nothing more.
        wanted = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
        followed = method == "GET" and path == "/" and wanted == ("navigate", "document")
        if site not in ("same-origin", "none") and not followed:
            raise Refused(403, "another site asked for this: open the page itself.")

    def _check_file(self, name: str) -> None:
        # Before anything else, since resolving a name looks at the disk.
        try:
            found = Path(name).resolve() if "\0" not in name and "://" not in name else Path()
        except (OSError, RuntimeError):
            found = Path()
        if not found.is_relative_to(self.uploads) or not found.is_file():
            raise Refused(403, "this file is not one of the page's.")

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        """The rest of a request, which must come in time; a question is read whole before Gradio sees it."""
        end = time.monotonic() + self.slowest

        async def timely() -> Message:
            try:
                return await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
            except asyncio.TimeoutError:
                return {"type": "http.disconnect"}

        if scope["path"] == UPLOAD:
            make_room(self.kept, self.most_kept - MOST_BYTES)
            return _until_read(timely, receive)
        parts, more = [], True
        while more:
            message = await timely()
            if message["type"] != "http.request":
                raise Refused(408, "the request did not come in time: ask again.")
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(parts)
        _check_question(body)
        return _replayed(body, receive)


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def own_names(host: str) -> frozenset[str]:
    """The names by which a page that listens on a host may be called.

    >>> sorted(own_names("127.0.0.1"))
    ['127.0.0.1', '::1', 'localhost']
    """
    own = {host.strip("[]").lower(), *LOOPBACK}
    if host not in LOOPBACK:
        own |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(own)


def _name(host: str) -> str:
    """The name in a Host header, without its port.

    >>> _name("LocalHost:7860"), _name("[::1]:80"), _name("a b"), _name("127.0.0.1:80@evil.example")
    ('localhost', '::1', '', '')
    """
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::\d{1,5})?", host)
    return (found[1] or found[2]).lower() if found else ""


def _is_address(name: str) -> bool:
    """Whether a name is a number: no foreign server of names can make it point here."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _headers(scope: Scope) -> dict[str, str]:
    """Headers by name; one that decides and comes twice is none."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        if name in found and name in ("host", "origin", "content-length", "content-type"):
            raise Refused(400, f"the request has several {name} headers: send one.")
        found[name] = value.decode("latin-1")
    return found


def _check_size(headers: dict[str, str], path: str) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND[path]:
        # What a form of another site can send is not this.
        raise Refused(415, f"this takes {_KIND[path]} only.")
    length = headers.get("content-length", "")
    if not re.fullmatch(r"\d{1,12}", length) or "transfer-encoding" in headers:
        raise Refused(411, "the request does not say how long it is.")
    if int(length) > _MOST[path]:
        raise Refused(413, f"the request has {int(length)} bytes, and at most {_MOST[path]} are taken here.")


def _check_question(body: bytes) -> None:
    """A question to the queue is an object with a session, a function and data that name no address to fetch."""
    try:
        asked = json.loads(body)
        names = list(_paths(asked))
    except (ValueError, RecursionError):
        raise Refused(400, "the question is not JSON.") from None
    if not isinstance(asked, dict) or not isinstance(asked.get("fn_index"), int):
        raise Refused(400, "the question names no function of the page.")
    if not isinstance(asked.get("session_hash"), str) or not re.fullmatch(_SESSION, asked["session_hash"]):
        raise Refused(400, "the question names no session of the page.")
    if any(not isinstance(name, str) or "://" in name or "\0" in name for name in names):
        raise Refused(403, "the page takes files that were brought to it, and fetches none.")


def _paths(value: Any, depth: int = 0) -> Iterator[Any]:
    """Whatever is called a path in nested data."""
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        yield from (one for name, one in value.items() if name == "path")
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _paths(one, depth + 1)


def _until_read(timely: Receive, receive: Receive) -> Receive:
    """Timely until the body is there; afterwards a visitor may listen for as long as it takes."""
    read = False

    async def next_one() -> Message:
        nonlocal read
        message = await (receive if read else timely)()
        read = read or not message.get("more_body", False)
        return message

    return next_one


def _replayed(body: bytes, receive: Receive) -> Receive:
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_one() -> Message:
        return given.pop() if given else await receive()

    return next_one


def _marked(send: Send) -> Send:
    """Every answer tells the browser to fetch nothing from elsewhere, and to hand this to nobody else."""
    extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept: Sequence[Any] = [one for one in message.get("headers", []) if one[0].lower().decode() not in HEADERS]
            message = {**message, "headers": [*kept, *extra]}
        await send(message)

    return marked


async def _answer(send: Send, no: Refused) -> None:
    body = json.dumps({"detail": str(no)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    # What was not read of the request is not read any more.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": no.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
