"""A run as a Python script that needs kvsim alone, and reading one without executing it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from app.playground.files import Scene, lines_of
from app.playground.lines import MOST_LINES
from app.playground.setup import Setup, SetupError
from kvsim.context import Fault
from kvsim.errors import CacheUsageError
from kvsim.models.known import KNOWN
from kvsim.models.tiny import TINY
from kvsim.ops import Op, fault_args, fault_of
from kvsim.trace import Step

WIDTH = 100

_ARGS = {
    "seq_rm": ("seq", "p0", "p1"),
    "seq_cp": ("src", "dst", "p0", "p1"),
    "seq_keep": ("seq",),
    "seq_add": ("seq", "p0", "p1", "delta"),
    "seq_div": ("seq", "p0", "p1", "d"),
    "clear": ("data",),
}
"""Calls on the memory, with their arguments in order."""

_FLIPPED = '''
def flipped(data, bits):
    """A saved state whose first byte was changed."""
    return bytes([data[0] ^ bits]) + data[1:]
'''

_LOOK = """
for seq in range(params.n_seq_max):
    print(f"seq {seq}: {memory.seq_pos_min(seq)} to {memory.seq_pos_max(seq)}")
for name, streams in memory.snapshot().caches.items():
    print(name, [[cell[:3] for cell in stream["cells"]] for stream in streams])
"""


# -- writing ---------------------------------------------------------------------------------------


def script(setup: Setup, steps: Sequence[Step]) -> str:
    """The steps of a run as calls."""
    calls = "\n".join(_call(step) for step in steps if step.op != "init")
    kind = "known" if setup.model in KNOWN else "tiny"
    imports = [
        *(["from dataclasses import replace", ""] if setup.window else []),
        "from kvsim.batch import Batch",
        *(["from kvsim.caches.factory import LeafFactory"] if setup.sizes else []),
        f"from kvsim.context import Context{', Fault' if 'Fault(' in calls else ''}",
        "from kvsim.models.context_params import ContextParams",
        f"from kvsim.models.{kind} import {kind}_model",
        *(["from kvsim.replay import defragmented"] if "defragmented(" in calls else []),
    ]
    leaves = f", leaves=LeafFactory(sizes={setup.sizes!r})" if setup.sizes else ""
    made = [
        f"model = {kind}_model({setup.model!r}){'.params()' if kind == 'tiny' else ''}",
        *([f"model = replace(model, n_swa={setup.window})"] if setup.window else []),
        f"params = ContextParams({_params(setup)})",
        f"ctx = Context(model, params, n_vocab=128{leaves})",
        "memory, saved = ctx.memory, {}",
    ]
    head = '"""A run of kvsim\'s playground: the same operations, in Python."""\n'
    helper = _FLIPPED if "flipped(" in calls else ""
    return "\n".join([head, *imports, helper, *made, "", calls, _LOOK])


def _params(setup: Setup) -> str:
    usual = {"n_rs_seq": 0, "type_k": "f16", "type_v": "f16"}
    names = ("n_ctx", "n_ubatch", "n_seq_max", "n_rs_seq", "kv_unified", "swa_full", "type_k", "type_v")
    values = {name: getattr(setup.params, name) for name in names}
    return ", ".join(f"{name}={value!r}" for name, value in values.items() if value != usual.get(name))


def _call(step: Step) -> str:
    """The call that does one operation."""
    a, op = step.args, step.op
    flags = f", flags={a['flags']}" if a.get("flags") else ""
    if op == "decode":
        return _decode(a)
    if op == "state_seq_get":
        return f"saved[{a['slot']}] = ctx.state_seq_get({a['seq']}{flags})"
    if op == "state_get":
        return f"saved[{a['slot']}] = ctx.state_get()"
    if op in ("state_seq_set", "state_set"):
        data = f"saved[{a['slot']}]"
        data = f"flipped({data}, {a['xor0']})" if "xor0" in a else data
        data = f"{data}[:{a['truncate']}]" if "truncate" in a else data
        seq = "" if op == "state_set" else f", {a['seq']}{flags}"
        return f"ctx.{op}({data}{seq})"
    if op == "defrag":
        return f"defragmented(ctx, {a['strategy']!r})"
    return f"memory.{op}({', '.join(repr(a[name]) for name in _ARGS[op])})"


def _decode(args: dict[str, Any]) -> str:
    tokens, pos, ids, out = args["tokens"], args["pos"], args["seq"], args["out"]
    fault, n = fault_of(args), len(ids)
    late = f", Fault({fault.ubatch}, {fault.kind!r})" if fault else ""
    if tokens is None:
        return f"# a batch of {n} embeddings, which the playground does not write"
    one_run = n and pos == list(range(pos[0], pos[0] + n)) and all(row == ids[0] for row in ids)
    if one_run and out == [0] * (n - 1) + [1]:
        seq = ids[0][0] if len(ids[0]) == 1 else list(ids[0])
        batch = f"Batch.tokens_of({seq!r}, {tokens!r}, start={pos[0]})"
    else:
        batch = (
            f"Batch(tokens={tokens!r}, pos={pos!r}, seq_ids={[list(row) for row in ids]!r}, output={out!r})"
        )
    return _wrapped(f"{batch}{late}")


def _wrapped(inside: str) -> str:
    """A decode, its lists broken between numbers where it is long."""
    if len(inside) + 12 <= WIDTH:
        return f"ctx.decode({inside})"
    lines = [""]
    for word in inside.split(" "):
        if len(lines[-1]) + len(word) > WIDTH - 6:
            lines.append("")
        lines[-1] += f"{word} "
    return "ctx.decode(\n" + "\n".join(f"    {line.rstrip()}" for line in lines) + "\n)"


# -- reading ---------------------------------------------------------------------------------------


def scene_of_script(text: str, name: str) -> Scene:
    """The memory and the lines of a script as :func:`script` writes them, perhaps edited by hand.

    Nothing is executed: calls of the known forms with plain values are read, anything else raises SetupError
    with file and line.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise SetupError(f"{name}:{line}: not Python: {getattr(error, 'msg', error)}") from None
    reader = _Reader()
    for node in tree.body:
        try:
            reader.statement(node)
        except (_UnknownError, CacheUsageError, LookupError, TypeError, ValueError, AttributeError):
            shown = ast.unparse(node).partition("\n")[0][:60]
            raise SetupError(
                f"{name}:{node.lineno}: {shown!r} is not understood: only the calls that the playground "
                "writes are read, with plain numbers"
            ) from None
        if len(reader.ops) > MOST_LINES:
            raise SetupError(f"{name}:{node.lineno}: more than {MOST_LINES} operations")
    setup = reader.setup(name)
    return Scene(setup, setup.header, lines_of(setup.header, reader.ops))


class _UnknownError(Exception):
    """A form that the playground does not write."""


class _Reader:
    """Walks the statements of a script and notes what they say."""

    def __init__(self) -> None:
        self.model = ""
        self.window = 0
        self.params: dict[str, Any] = {}
        self.ops: list[Op] = []

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.For():
                pass  # what the calls need, and what is printed at the end
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name)) as call):
                self.ops.append(self.operation(name, call))
            case ast.Expr(value=ast.Call(func=ast.Name(id="defragmented"), args=[_, strategy])):
                self.ops.append(Op("defrag", {"strategy": _plain(strategy)}))
            case ast.Assign(targets=[ast.Name(id="model")], value=value):
                self.take_model(value)
            case ast.Assign(targets=[ast.Name(id="params")], value=ast.Call() as call):
                self.params = _keywords(call)
            case ast.Assign(targets=[ast.Name(id="ctx") | ast.Tuple()]):
                pass
            case ast.Assign(targets=[ast.Subscript(slice=slot)], value=ast.Call() as call):
                self.ops.append(self.save(_plain(slot), call))
            case _:
                raise _UnknownError

    def take_model(self, value: ast.expr) -> None:
        match value:
            case ast.Call(func=ast.Attribute(value=inner, attr="params")):
                self.take_model(inner)
            case ast.Call(func=ast.Name(id="tiny_model" | "known_model"), args=[name]):
                self.model = _plain(name)
            case ast.Call(func=ast.Name(id="replace")):
                self.window = int(_keywords(value)["n_swa"])
            case _:
                raise _UnknownError

    def save(self, slot: int, call: ast.Call) -> Op:
        match call:
            case ast.Call(func=ast.Attribute(attr="state_get"), args=[]):
                return Op.state_get(slot)
            case ast.Call(func=ast.Attribute(attr="state_seq_get"), args=[seq]):
                return Op.state_seq_get(_plain(seq), slot, _keywords(call).get("flags", 0))
        raise _UnknownError

    def operation(self, name: str, call: ast.Call) -> Op:
        if name == "decode":
            return self.decode(call)
        if name in ("state_seq_set", "state_set"):
            data, *rest = call.args
            given = {"seq": _plain(rest[0]), "flags": _keywords(call).get("flags", 0)} if rest else {}
            return Op(name, {**given, **_state(data)})
        values = [_plain(arg) for arg in call.args]
        return Op(name, dict(zip(_ARGS[name], values, strict=True)))

    def decode(self, call: ast.Call) -> Op:
        batch, *late = call.args
        fault = Fault(*(_plain(arg) for arg in late[0].args)) if late else None  # type: ignore[attr-defined]
        match batch:
            case ast.Call(func=ast.Attribute(attr="tokens_of"), args=[seq, tokens]):
                ids, listed, start = _plain(seq), _plain(tokens), _keywords(batch)["start"]
                op = Op.decode_run(ids, start, listed)
            case ast.Call(func=ast.Name(id="Batch")):
                given = _keywords(batch)
                op = Op.decode(given["tokens"], given["pos"], given["seq_ids"], given["output"])
            case _:
                raise _UnknownError
        return Op("decode", {**op.args, **fault_args(fault)})

    def setup(self, name: str) -> Setup:
        """The memory that was made. Raises SetupError if it is none of the page's."""
        p = {"n_seq_max": 1, "n_ubatch": 512, "kv_unified": False, "swa_full": True, **self.params}
        if self.model not in {*TINY, *KNOWN}:
            raise SetupError(f"{name}:1: no model of the table is made, tiny_model(...) or known_model(...)")
        try:
            return Setup(
                self.model,
                int(p["n_ctx"]) // (1 if p["kv_unified"] else int(p["n_seq_max"])),
                int(p["n_ubatch"]),
                int(p["n_seq_max"]),
                bool(p["kv_unified"]),
                str(p.get("type_k", "f16")),
                str(p.get("type_v", "f16")),
                self.window,
                bool(p["swa_full"]),
                int(p.get("n_rs_seq", 0)),
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise SetupError(
                f"{name}:1: ContextParams(...) with n_ctx and plain numbers is missing"
            ) from None


def _state(node: ast.expr) -> dict[str, int]:
    """``saved[3]``, cut or with its first byte changed, as arguments of a restore."""
    match node:
        case ast.Subscript(value=inner, slice=ast.Slice(lower=None, upper=ast.expr() as end, step=None)):
            return {**_state(inner), "truncate": _plain(end)}
        case ast.Call(func=ast.Name(id="flipped"), args=[inner, bits]):
            return {**_state(inner), "xor0": _plain(bits)}
        case ast.Subscript(value=ast.Name(id="saved"), slice=slot):
            return {"slot": _plain(slot)}
    raise _UnknownError


def _keywords(call: ast.Call) -> dict[str, Any]:
    return {str(word.arg): _plain(word.value) for word in call.keywords}


def _plain(node: ast.expr) -> Any:
    """A constant, or lists of constants. Raises ValueError for anything that would have to be executed."""
    return ast.literal_eval(node)
