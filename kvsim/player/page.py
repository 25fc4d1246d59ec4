"""The player on a page of its own: one HTML text that needs no server and no network."""

from __future__ import annotations

import json
from typing import Any

from kvsim.player.bundle import bundle, stylesheet

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>kvsim</title>
<style>
html, body { margin: 0; }
%(css)s
</style>
</head>
<body>
<script type="application/json" id="payload">%(payload)s</script>
<script type="module">
%(script)s
const payload = JSON.parse(document.getElementById("payload").textContent);
window.kvsim = mount(document.body, payload, %(options)s);
</script>
</body>
</html>
"""


def page(payload: dict[str, Any], at: int = 0, theme: str = "auto", height: str = "100vh") -> str:
    """The page that plays ``payload``, opened at step ``at`` in the theme light, dark or auto."""
    options = {"at": at, "theme": theme, "height": height}
    return _PAGE % {
        "css": stylesheet(),
        "payload": _json(payload),
        "script": bundle("main"),
        "options": _json(options),
    }


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever text it holds."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
