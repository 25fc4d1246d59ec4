"""Lines of text as acts: short words for what is common, a line of JSON for any operation.

prompt 0 18            18 tokens of seq 0, where it ends
prompt 0+1 18 at 5     shared by seq 0 and 1, from position 5
decode 0 1 x6          one token each of seq 0 and 1, six times
decode 0*3 1*2         several sequences in one batch
prompt 2 40 abort 2    the second ubatch is aborted (alloc, compute: other faults)
share 0 1              or a part: share 0 1 4 8; an end is written "end"
remove 0 18 end
keep 0 / clear
shift 0 8 end -8 / divide 0 0 end 2
save 0 / save 0 partial / save all
restore 1 from 0       or damaged: restore 1 from 0 cut 100, ... flip 255
defragment classic
speculate 0 4 2        4 guesses, 2 accepted
{"op": "seq_rm", "args": {"seq": 0, "p0": 4, "p1": -1}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from app.playground.acts import (
    MOST_TIMES,
    MOST_TOKENS,
    Act,
    ActError,
    Decode,
    Part,
    Plain,
    Restore,
    Save,
    Speculate,
)
from kvsim.context import FAULTS, Fault
from kvsim.errors import TraceError
from kvsim.ops import Op
from kvsim.trace.kinds import check_keys, check_record
from kvsim.trace.operation import ARGS, OPTIONAL_ARGS

MOST_LINES = 400
LONGEST_LINE = 40_000

_NUMBER = re.compile(r"-?[0-9]{1,9}")
_PART = re.compile(r"([0-9+]+)(?:\*([0-9]{1,9}))?(?:@([0-9]{1,9}))?")
_WRITTEN = ("decode", "seq_rm", "seq_cp", "seq_keep", "seq_add", "seq_div", "clear", "defrag")
"""Operations that may stand as JSON; saves are numbered by their order, so they are written in words."""


def parse(line: str) -> Act:
    """The act a line stands for. Raises ActError that says what was expected."""
    if len(line) > LONGEST_LINE:
        raise ActError(f"the line has {len(line):,} characters, at most {LONGEST_LINE:,} are read")
    if line.lstrip().startswith("{"):
        return _json(line)
    verb, *words = line.split() or [""]
    if verb not in _PARSERS:
        raise ActError(f"{verb[:30]!r} is no act: use {', '.join(_PARSERS)}, or an operation as JSON")
    return _PARSERS[verb](words)


def _prompt(words: list[str]) -> Decode:
    fault = _take_fault(words)
    at = _take(words, "at")
    if len(words) != 2:
        raise ActError('a prompt has a sequence and a number of tokens: "prompt 0 18"')
    part = Part(_seqs(words[0]), _tokens(words[1]), None if at is None else _number(at, 0))
    return Decode((part,), fault=fault)


def _decode(words: list[str]) -> Decode:
    fault = _take_fault(words)
    times = 1
    if words and re.fullmatch(r"x[0-9]{1,4}", words[-1]):
        times = _number(words.pop()[1:], 1, MOST_TIMES)
    if every := words[-1:] == ["every"]:
        words.pop()
    if not words:
        raise ActError('a decode has sequences: "decode 0 1", or with numbers of tokens "decode 0*9 1*3"')
    return Decode(tuple(map(_part, words)), times, fault, every)


def _part(word: str) -> Part:
    match = _PART.fullmatch(word)
    if match is None:
        raise ActError(f"{word[:30]!r} is no part of a batch: write seq, seq*tokens or seq*tokens@position")
    seqs, n, at = match.groups()
    return Part(_seqs(seqs), _tokens(n or "1"), None if at is None else int(at))


def _take_fault(words: list[str]) -> Fault | None:
    if len(words) >= 2 and words[-2] in FAULTS:
        kind, ubatch = words[-2:]
        del words[-2:]
        return Fault(_number(ubatch, 1) - 1, kind)
    return None


def _take(words: list[str], name: str) -> str | None:
    if len(words) >= 2 and words[-2] == name:
        value = words[-1]
        del words[-2:]
        return value
    return None


def _seqs(word: str) -> tuple[int, ...]:
    ids = tuple(_number(part, 0) for part in word.split("+"))
    if len(set(ids)) < len(ids):
        raise ActError(f"{word!r} names a sequence twice")
    return ids


def _tokens(word: str) -> int:
    return _number(word, 1, MOST_TOKENS)


def _number(word: str, low: int | None = None, high: int | None = None) -> int:
    if not _NUMBER.fullmatch(word):
        raise ActError(f"{word[:30]!r} is no number")
    value = int(word)
    if low is not None and value < low:
        raise ActError(f"{value} is too small: from {low} on")
    if high is not None and value > high:
        raise ActError(f"{value:,} is too large: at most {high:,}")
    return value


def _edge(word: str) -> int:
    return -1 if word in ("start", "end") else _number(word)


def _share(words: list[str]) -> Plain:
    if len(words) not in (2, 4):
        raise ActError('share from one sequence to another, all or a part: "share 0 1", "share 0 1 4 8"')
    return Plain(Op.seq_cp(_number(words[0]), _number(words[1]), *map(_edge, words[2:])))


def _remove(words: list[str]) -> Plain:
    if len(words) not in (1, 3):
        raise ActError('remove a sequence, or a part of it: "remove 0", "remove 0 18 end"')
    seq = -1 if words[0] == "all" else _number(words[0])
    return Plain(Op.seq_rm(seq, *map(_edge, words[1:])))


def _keep(words: list[str]) -> Plain:
    if len(words) != 1:
        raise ActError('keep one sequence: "keep 0"')
    return Plain(Op.seq_keep(_number(words[0])))


def _shift(words: list[str]) -> Plain:
    if len(words) != 4:
        raise ActError('shift a part by a number: "shift 0 8 end -8"')
    return Plain(Op.seq_add(_number(words[0]), _edge(words[1]), _edge(words[2]), _number(words[3])))


def _divide(words: list[str]) -> Plain:
    if len(words) != 4:
        raise ActError('divide the positions of a part: "divide 0 start end 2"')
    return Plain(Op.seq_div(_number(words[0]), _edge(words[1]), _edge(words[2]), _number(words[3])))


def _clear(words: list[str]) -> Plain:
    if words not in ([], ["keep-rows"]):
        raise ActError('clear everything: "clear", or leave the stored rows: "clear keep-rows"')
    return Plain(Op.clear(not words))


def _save(words: list[str]) -> Save:
    partial = words[1:] == ["partial"]
    if len(words) != 1 + partial or words == ["all", "partial"]:
        raise ActError('save a sequence or everything: "save 0", "save 0 partial", "save all"')
    return Save(None if words[0] == "all" else _number(words[0], 0), partial)


def _restore(words: list[str]) -> Restore:
    flip, cut = _take(words, "flip"), _take(words, "cut")
    partial = words[3:] == ["partial"]
    if len(words) != 3 + partial or words[1] != "from":
        raise ActError('restore a sequence or everything from a save: "restore 1 from 0"')
    seq = None if words[0] == "all" else _number(words[0], -1)
    if seq is None and (partial or cut or flip):
        raise ActError("only the state of a sequence is restored in part or damaged here")
    return Restore(
        seq,
        _number(words[2], 0),
        partial,
        None if cut is None else _number(cut, 0),
        None if flip is None else _number(flip, 0, 255),
    )


def _defragment(words: list[str]) -> Plain:
    if words not in (["classic"], ["minimal"]):
        raise ActError('defragment "classic" or "minimal"')
    return Plain(Op("defrag", {"strategy": words[0]}))


def _speculate(words: list[str]) -> Speculate:
    if len(words) != 3:
        raise ActError('speculate with a sequence, guesses, and how many are accepted: "speculate 0 4 2"')
    guesses = _number(words[1], 0, MOST_TOKENS - 1)
    return Speculate(_number(words[0], 0), guesses, _number(words[2], 0, guesses))


def _json(line: str) -> Plain:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ActError(f"not JSON: {error}") from None
    op, args = value.get("op"), value.get("args")
    if op not in _WRITTEN:
        raise ActError(f"op is {str(op)[:30]!r}: as JSON there may be {', '.join(_WRITTEN)}")
    try:
        check_keys(value, ("op", "args"), "the operation")
        check_record(args, ARGS[op], f"{op} args", OPTIONAL_ARGS.get(op, {}))
        check_keys(args, {*ARGS[op], *OPTIONAL_ARGS.get(op, {})}, f"{op} args")
    except TraceError as error:
        raise ActError(error.reason) from None
    return Plain(Op(op, args))


_PARSERS: dict[str, Callable[[list[str]], Act]] = {
    "prompt": _prompt,
    "decode": _decode,
    "share": _share,
    "remove": _remove,
    "keep": _keep,
    "shift": _shift,
    "divide": _divide,
    "clear": _clear,
    "save": _save,
    "restore": _restore,
    "defragment": _defragment,
    "speculate": _speculate,
}
