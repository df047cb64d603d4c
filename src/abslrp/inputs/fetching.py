"""What may be missing when a model is loaded, packages or the network, said in one sentence."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from abslrp.types import AbslrpError


@contextlib.contextmanager
def needs(package: str, what: str, extra: str) -> Iterator[None]:
    """Around an import: a missing package becomes a sentence that names the extra to install.

    >>> with needs("no_such_package", "the model", "models"):
    ...     import no_such_package
    Traceback (most recent call last):
    abslrp.types.AbslrpError: the model needs the package no_such_package: pip install 'abslrp[models]'.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise AbslrpError(f"{what} needs the package {missing}: pip install 'abslrp[{extra}]'.") from None


@contextlib.contextmanager
def fetching(label: str) -> Iterator[None]:
    """Around a download: whatever goes wrong becomes a sentence that says what to do without the network.

    >>> with fetching("timm:resnet18"):
    ...     raise OSError("no route to host")
    Traceback (most recent call last):
    abslrp.types.AbslrpError: timm:resnet18 could not be fetched (no route to host): connect to the network, \
give a file of weights (--weights FILE), or take random ones (--random-weights, pretrained=False).
    """
    try:
        yield
    except AbslrpError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".:")
        raise AbslrpError(
            f"{label} could not be fetched ({reason}): connect to the network, give a file of weights "
            "(--weights FILE), or take random ones (--random-weights, pretrained=False)."
        ) from error


@contextlib.contextmanager
def offline_when_unreachable() -> Iterator[None]:
    """Keep huggingface_hub to its cache where its host has no address, instead of most of a minute of retries."""
    try:
        from huggingface_hub import constants
    except ImportError:
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _has_address(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _has_address(url: str) -> bool:
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # Behind a proxy names need not resolve here.
    try:
        socket.getaddrinfo(urlsplit(url).hostname, urlsplit(url).port or 443)
    except OSError:
        return False
    return True
