"""The player's ES modules as one script, without a build step.

``js/*.js`` are plain ES modules that a browser can load as they are. Streamlit and a self-contained
HTML page both want one text, so :func:`bundle` puts the modules behind one another in the order of their
imports, each wrapped in a function of its own so that names of different modules can't clash::

    const model = (() => { ...; return { Model }; })();

Only the forms that the modules use are understood, each on a line of its own (an import may span lines):
``import { a, b } from "./x.js";``, ``export function``, ``export class``, ``export const`` and, in an entry,
``export default function name``. Anything else raises ValueError, so a new form cannot be dropped in silence.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from kvsim.player import palette

FOLDER = Path(__file__).parent / "js"

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:(async function|function|class|const) (\w+))", re.MULTILINE)
_DEFAULT = re.compile(r"^export default function (\w+)", re.MULTILINE)


@cache
def bundle(entry: str = "main") -> str:
    """One ES module holding ``entry`` and all it imports; it exports what the entry exports."""
    done: dict[str, str] = {}
    _add(entry, done, ())
    exported = _exports((FOLDER / f"{entry}.js").read_text(encoding="utf-8"))
    tail = [f"export const {name} = {_variable(entry)}.{name};" for name in exported if name != "default"]
    if "default" in exported:
        tail.append(f"export default {_variable(entry)}.default;")
    return "\n".join([*done.values(), *tail, ""])


@cache
def stylesheet(*more: str) -> str:
    """The player's CSS with the palette in front, and the files ``more`` behind."""
    files = [(FOLDER / name).read_text(encoding="utf-8") for name in ("player.css", *more)]
    return "\n".join([palette.css(), *files])


def _add(module: str, done: dict[str, str], path: tuple[str, ...]) -> None:
    if module in done:
        return
    if module in path:
        raise ValueError(f"modules import each other: {' -> '.join([*path, module])}")
    source = (FOLDER / f"{module}.js").read_text(encoding="utf-8")
    for match in _IMPORT.finditer(source):
        _add(match[2], done, (*path, module))
        exported = _exports((FOLDER / f"{match[2]}.js").read_text(encoding="utf-8"))
        for name in filter(None, (part.strip() for part in match[1].split(","))):
            if name not in exported:
                raise ValueError(f"{module}.js imports {name}, which {match[2]}.js does not export")
    done[module] = _wrap(module, source)


def _wrap(module: str, source: str) -> str:
    exported = _exports(source)
    body = _IMPORT.sub(lambda m: f"const {{{m[1]}}} = {_variable(m[2])};\n", source)
    default = [match[1] for match in _DEFAULT.finditer(body)]
    body = _DEFAULT.sub(r"function \1", body)
    body = _EXPORT.sub(r"\1 \2", body)
    for number, line in enumerate(body.splitlines(), 1):
        if line.startswith(("import ", "export ")):
            raise ValueError(f"{module}.js:{number}: the bundler does not know this form: {line.strip()}")
    names = [f"default: {default[0]}" if name == "default" else name for name in exported]
    return f"const {_variable(module)} = (() => {{\n{body}\nreturn {{ {', '.join(names)} }};\n}})();"


def _exports(source: str) -> list[str]:
    names = [match[2] for match in _EXPORT.finditer(source)]
    return [*names, "default"] if _DEFAULT.search(source) else names


def _variable(module: str) -> str:
    return "module_" + module.replace("-", "_")
