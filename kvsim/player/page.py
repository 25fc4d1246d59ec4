"""The player on a page of its own: one HTML text that needs no server and no network.

The page states its own Content-Security-Policy: nothing may be loaded, and only the one script and the one
style that stand in it may act, named by their hashes. A server or an embedding page may be as strict: the
player builds its elements one by one, evaluates no text, and sets no style attributes. Its two fonts stand in
the style; where a policy forbids even those, the fonts of the system take their place.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.player.bundle import bundle, stylesheet

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<script type="application/json" id="payload">{payload}</script>
<script type="module">{script}</script>
</body>
</html>
"""

_STYLE = "\nhtml, body { margin: 0; }\n"

FONTS = Path(__file__).parent / "fonts"

_START = """
const { payload, notes, ...options } = JSON.parse(document.getElementById("payload").textContent);
window.kvsim = mount(document.body, payload, options);
window.kvsim.player.note(notes);
// keys work at once, but a page around this one keeps its own focus
if (window === window.top) window.kvsim.player.root.focus({ preventScroll: true });
"""


def page(
    payload: dict[str, Any],
    at: int = 0,
    theme: str = "auto",
    height: str = "100vh",
    notes: dict[int, dict[str, Any]] | None = None,
) -> str:
    """The page that plays ``payload``, opened at step ``at`` in the theme light, dark or auto.

    ``notes`` says per step what a replay met (:mod:`kvsim.player.notes`).
    """
    style, script = _STYLE + _fonts() + stylesheet(), "\n" + bundle("main") + _START
    told = {str(i): note for i, note in (notes or {}).items()}
    data = {"payload": payload, "at": at, "theme": theme, "height": height, "notes": told}
    name = str(payload.get("name") or "kvsim")
    return _PAGE.format(
        policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; font-src data:",
        title=name.replace("&", "&amp;").replace("<", "&lt;"),
        style=style,
        payload=_json(data),
        script=script,
    )


@cache
def _fonts() -> str:
    """The player's fonts as rules that need no file beside the page."""
    return "".join(
        f'@font-face {{ font-family: "kvsim {name.title()}"; font-weight: 400 700; src: '
        f'url("data:font/woff2;base64,{base64.b64encode((FONTS / f"{name}.woff2").read_bytes()).decode()}"); }}\n'
        for name in ("sans", "mono")
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever text it holds."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
