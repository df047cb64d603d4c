"""Starting and ending the page: on this machine only unless told otherwise, with nothing fetched from elsewhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

from abslrp.app.shelf import Shelf
from abslrp.app.uploads import MOST_BYTES
from abslrp.inputs.fetching import needs
from abslrp.types import AbslrpError

HOST = "127.0.0.1"
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
_FONTS = ["system-ui", "sans-serif"]
_MONO = ["ui-monospace", "monospace"]
_SESSIONS = 200

Scope = dict[str, Any]
Channel = Callable[..., Awaitable[Any]]


class OwnThingsOnly:
    """Tells the browser to fetch nothing from elsewhere, whatever a library's page may ask for."""

    def __init__(self, app: Callable[[Scope, Channel, Channel], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Channel, send: Channel) -> None:
        async def guarded(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [
                    (b"content-security-policy", POLICY.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"no-referrer"),
                ]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        await self.app(scope, receive, guarded if scope["type"] == "http" else send)


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
        # Before the import: Gradio reads it once.
        os.environ["GRADIO_TEMP_DIR"] = str(Path(self._kept.name, "uploads"))
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        with needs("gradio", "the page", "app"):
            import gradio
            from starlette.middleware import Middleware
        from abslrp.app import page
        from abslrp.app.workshop import Chosen, Workshop

        self.shop = Workshop(shelf, device)
        made = Path(self._kept.name, "files")
        made.mkdir()
        self._page = page.build(self.shop, made)
        Thread(target=_ahead, args=(self.shop, Chosen()), daemon=True).start()
        try:
            _, self.url, _ = self._page.launch(
                server_name=host,
                server_port=port,
                inbrowser=browser,
                quiet=True,
                share=False,
                prevent_thread_lock=True,
                max_file_size=MOST_BYTES,
                state_session_capacity=_SESSIONS,
                ssr_mode=False,
                enable_monitoring=False,
                footer_links=[],
                theme=_theme(gradio),
                css=page.style(),
                app_kwargs={"middleware": [Middleware(OwnThingsOnly)]},
            )
        except OSError as error:
            self._kept.cleanup()
            where = f"{host}:{port}" if port else host
            raise AbslrpError(f"the page cannot listen on {where} ({_reason(error)}): choose another --port.") from None

    def wait(self) -> None:
        """Until somebody interrupts it."""
        self._page.block_thread()

    def close(self) -> None:
        self._page.close(verbose=False)
        self._kept.cleanup()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
