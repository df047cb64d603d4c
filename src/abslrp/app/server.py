"""Starting and ending the page: on this machine only unless told otherwise, with nothing fetched from elsewhere."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

from abslrp.app.gate import Gate
from abslrp.app.shelf import Shelf
from abslrp.app.uploads import MOST_BYTES
from abslrp.inputs.fetching import needs
from abslrp.types import AbslrpError

HOST = "127.0.0.1"
_FONTS = ["system-ui", "sans-serif"]
_MONO = ["ui-monospace", "monospace"]
# Each may hold an image of 120 MB.
_SESSIONS = 32
# Gradio reads these wherever it is asked to do something; what it counts, stores elsewhere or starts besides is not wanted.
_SETTINGS = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_RUN_HISTORY": "False",
    "GRADIO_NUM_WORKERS": "0",
    "GRADIO_ALLOWED_PATHS": "",
}


class Server:
    """The page while it runs; ``url`` is where. Uploads and files go when it ends."""

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]] = (),
        *,
        host: str = HOST,
        port: int | None = None,
        browser: bool = False,
        device: str = "cpu",
    ) -> None:
        shelf = Shelf(folders)
        self._kept = tempfile.TemporaryDirectory(prefix="abslrp-app-")
        kept = Path(self._kept.name)
        # Before the import: Gradio reads some of it once.
        settings = {**_SETTINGS, "GRADIO_TEMP_DIR": str(kept / "uploads")}
        self._before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        with needs("gradio", "the page", "app"):
            import gradio
            from starlette.middleware import Middleware
        from abslrp.app import page
        from abslrp.app.workshop import Chosen, Workshop

        self.shop = Workshop(shelf, device)
        made = kept / "files"
        made.mkdir()
        self._page = page.build(self.shop, made)
        Thread(target=_ahead, args=(self.shop, Chosen()), daemon=True).start()
        gate = Middleware(Gate, host=host, uploads=kept / "uploads", kept=kept)
        try:
            _, self.url, _ = self._page.launch(
                server_name=host,
                server_port=free_port(host, port),
                inbrowser=browser,
                quiet=True,
                share=False,
                prevent_thread_lock=True,
                max_file_size=MOST_BYTES,
                state_session_capacity=_SESSIONS,
                ssr_mode=False,
                enable_monitoring=False,
                mcp_server=False,
                footer_links=[],
                theme=_theme(gradio),
                css=page.style(),
                app_kwargs={"middleware": [gate]},
            )
        except OSError as error:
            self.close()
            where = f"{host}:{port}" if port else host
            raise AbslrpError(f"the page cannot listen on {where} ({_reason(error)}): choose another --port.") from None

    def wait(self) -> None:
        """Until somebody interrupts it."""
        self._page.block_thread()

    def close(self) -> None:
        self._page.close(verbose=False)
        self._kept.cleanup()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def free_port(host: str, port: int | None = None) -> int:
    """The port where a page can listen: the one that is wanted, or one that the system hands out.

    Gradio would try them one by one from the same first one, so that pages that start together are in each other's way.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as tried:
        # Only what listens now is in the way, not what has just ended.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind((host.strip("[]"), port or 0))
        found: int = tried.getsockname()[1]
        return found


def _theme(gradio: Any) -> Any:
    """Fonts of the machine, and colours that can be read: at least 4.5 to 1 against what is behind them."""
    theme = gradio.themes.Default(primary_hue="blue", font=_FONTS, font_mono=_MONO)
    return theme.set(
        button_primary_background_fill="#1d4ed8",
        button_primary_background_fill_hover="#1e40af",
        button_primary_text_color="#ffffff",
        body_text_color_subdued="#57534e",
        block_info_text_color="#57534e",
        block_title_text_color="#3f3b37",
        block_label_text_color="#3f3b37",
        input_placeholder_color="#6b6660",
        checkbox_background_color_selected="#1d4ed8",
        checkbox_border_color="#6b6660",
        checkbox_border_color_dark="#a8a29a",
        input_placeholder_color_dark="#a8a29a",
        body_text_color_subdued_dark="#bdb8b0",
        slider_color="#1d4ed8",
    )


def _ahead(shop: Any, chosen: Any) -> None:
    """Load the first network while the browser opens; what is missing is said when it is asked for."""
    try:
        shop.model(chosen)
    except Exception:
        return


def _reason(error: OSError) -> str:
    return " ".join((error.strerror or str(error)).split()).split(". ")[0].rstrip(".")
