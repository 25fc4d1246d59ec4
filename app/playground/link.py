"""A setup and its lines as characters of an address."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence

from app.playground.lines import MOST_LINES
from app.playground.setup import Setup, SetupError

LONGEST_LINK = 2000
"""Characters of an address; longer ones do not survive mail and chats."""

MOST_TEXT = 200_000
"""Most characters a packed list may hold once unpacked."""


def packed(setup: Setup, lines: Sequence[str]) -> str:
    """Setup and lines as characters an address may hold."""
    text = "\n".join([setup.line(), *lines])
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def unpacked(text: str) -> tuple[Setup, list[str]]:
    """From :func:`packed`. Raises SetupError for what it did not make."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        unzip = zlib.decompressobj()
        plain = unzip.decompress(data, MOST_TEXT)
        if not unzip.eof:
            raise ValueError("it is cut, or too long")
        first, *lines = plain.decode().split("\n")
    except (ValueError, binascii.Error, zlib.error) as error:
        raise SetupError(f"The link is damaged, so the playground starts afresh: {error}.") from None
    return Setup.of_line(first), lines[:MOST_LINES]
