"""The command ``app``: the local web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def app(
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Where to listen; else a free one.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="This machine only, unless you name another address.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    models: Annotated[
        list[Path] | None,
        typer.Option("--models", help="A folder whose weights and models the page offers; may be repeated."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, mps …")] = "cpu",
) -> None:
    """Open a local web page: drop an image, choose classes and methods, see the maps side by side."""
    from abslrp.app.server import HOST, Server

    with Server(models or (), host=host, port=port, browser=browser, device=device) as server:
        print(f"The page is at {server.url} until you press Ctrl+C.", flush=True)
        if host != HOST:
            print("Others on the network can open it, and what they compute runs on this machine.", flush=True)
        server.wait()
