"""The acts as buttons, and the fields of the chosen one: together they make one line."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import streamlit as st

from app.playground.acts import ActError
from app.playground.lines import parse
from app.playground.run import Run, Trial
from app.playground.session import Play

ICONS = {
    "Prompt": "edit_note",
    "Decode": "play_arrow",
    "Share": "content_copy",
    "Remove": "remove",
    "Keep": "filter_alt",
    "Shift": "swap_horiz",
    "Divide": "percent",
    "Save": "save",
    "Restore": "settings_backup_restore",
    "Defragment": "unfold_less",
    "Speculate": "alt_route",
    "Fault": "bolt",
}
EVERY = "every seq"


def acts(play: Play, run: Run) -> Trial:
    """Buttons, fields and Apply. Returns what the act as it stands would do."""
    chosen = st.session_state.setdefault("pg act", "Prompt")
    with st.container(key="pg-buttons", horizontal=True):
        for name, icon in ICONS.items():
            st.button(
                name,
                key=f"act {name}",
                icon=f":material/{icon}:",
                type="primary" if name == chosen else "secondary",
                width="stretch",
                on_click=_choose,
                args=(name,),
            )
    with st.container(key="pg-form", horizontal=True, vertical_alignment="center", gap="xsmall", wrap=False):
        line = _FORMS[chosen](run)
        trial = _tried(run, line)
        st.html(_told(trial))
        st.button(
            "Apply",
            type="primary",
            key="pg apply",
            shortcut=None if st.session_state.get("pg as") == "text" else "ctrl+enter",
            disabled=bool(trial.error) or run.error is not None,
            on_click=_apply,
            args=(play, line),
        )
    return trial


def _choose(name: str) -> None:
    st.session_state["pg act"] = name


def _apply(play: Play, line: str) -> None:
    play.act(line)
    st.query_params.pop("at", None)


def _tried(run: Run, line: str) -> Trial:
    """What the line would do, or why it cannot be understood or done."""
    if run.error:
        return Trial(error=f"Line {run.error[0] + 1} of the list comes first: it cannot be done.")
    try:
        return run.trial(parse(line))
    except ActError as error:
        return Trial(error=str(error))


def _told(trial: Trial) -> str:
    if trial.error:
        return f'<p class="kvs-trial kvs-bad" title="{escape(trial.error)}">{escape(trial.error)}</p>'
    return f'<p class="kvs-trial">{escape(trial.text)}</p>'


# -- fields ----------------------------------------------------------------------------------------


def _word(text: str) -> None:
    st.html(f'<span class="kvs-word">{text}</span>')


def _seq(run: Run, key: str, extra: tuple[str, ...] = (), default: int = 0) -> str:
    """One sequence, by number."""
    names = [f"seq {i}" for i in range(_n_seq(run))]
    chosen = st.selectbox(
        "Sequence",
        [*names, *extra],
        index=min(default, len(names) - 1),
        key=f"{key} of {len(names)}",
        label_visibility="collapsed",
        width=96,
    )
    return {EVERY: "all", "everything": "all"}.get(chosen, chosen.removeprefix("seq "))


def _n_seq(run: Run) -> int:
    return run.header.n_seq_max


def _text(label: str, value: str, key: str, width: int = 64) -> str:
    typed = st.text_input(label, value, key=key, label_visibility="collapsed", width=width, max_chars=60)
    return (typed or "").strip()


def _span(key: str, start: str = "start", end: str = "end") -> str:
    _word("positions")
    p0 = _text("From position", start, f"{key} from")
    _word("to")
    p1 = _text("To position, itself included", end, f"{key} to")
    if p1.isascii() and p1.isdigit():
        p1 = str(int(p1) + 1)
    return f"{p0 or 'start'} {p1 or 'end'}"


def _prompt(run: Run) -> str:
    seq = _seq(run, "prompt seq")
    n = _text("Tokens", "12", "prompt n", 56)
    _word("tokens from")
    at = _text("From position", "its end", "prompt at", 70)
    return f"prompt {seq} {n}" + ("" if at in ("its end", "end", "") else f" at {at}")


def _decode(run: Run) -> str:
    names = list(range(min(_n_seq(run), 12)))
    _word("seq")
    chosen = st.pills(
        "Sequences",
        names,
        default=names[:1],
        selection_mode="multi",
        key=f"decode seqs of {len(names)}",
        label_visibility="collapsed",
        format_func=str,
    )
    n = _text("Tokens of each", "1", "decode n", 48)
    _word("each,")
    times = _text("Times", "1", "decode times", 48)
    _word("times")
    parts = " ".join(f"{seq}*{n}" if n != "1" else str(seq) for seq in chosen or [])
    return f"decode {parts}" + ("" if times == "1" else f" x{times}")


def _share(run: Run) -> str:
    src = _seq(run, "share from")
    _word("with")
    dst = _seq(run, "share to", default=1)
    return f"share {src} {dst} {_span('share')}"


def _remove(run: Run) -> str:
    return f"remove {_seq(run, 'remove seq', (EVERY,))} {_span('remove')}"


def _keep(run: Run) -> str:
    _word("only")
    return f"keep {_seq(run, 'keep seq')}"


def _shift(run: Run) -> str:
    line = f"shift {_seq(run, 'shift seq')} {_span('shift')}"
    _word("by")
    return f"{line} {_text('By', '-4', 'shift by', 52).replace('−', '-')}"


def _divide(run: Run) -> str:
    line = f"divide {_seq(run, 'divide seq')} {_span('divide')}"
    _word("by")
    return f"{line} {_text('By', '2', 'divide by', 48)}"


def _save(run: Run) -> str:
    what = _seq(run, "save seq", ("everything",))
    part = st.toggle("window and states only", key="save part", disabled=what == "all")
    return f"save {what}{' partial' if part and what != 'all' else ''}"


def _restore(run: Run) -> str:
    what = _seq(run, "restore seq", ("everything",), default=1)
    _word("from")
    save = _save_number(run, "restore from")
    return f"restore {what} from {save}"


def _save_number(run: Run, key: str) -> str:
    n = run.live.n_saved
    if not n:
        _word("no save yet")
        return "0"
    chosen = st.selectbox(
        "Save", range(n), index=n - 1, format_func=lambda i: f"save {i}", key=f"{key} {n}",
        label_visibility="collapsed", width=96,
    )  # fmt: skip
    return str(chosen)


def _defragment(run: Run) -> str:
    chosen = st.segmented_control(
        "Strategy", ["classic", "minimal"], default="classic", required=True, key="defragment",
        label_visibility="collapsed",
    )  # fmt: skip
    _word("as llama.cpp did until 2025")
    return f"defragment {chosen}"


def _speculate(run: Run) -> str:
    seq = _seq(run, "speculate seq")
    guesses = _text("Guesses", "4", "guesses", 48)
    _word("guesses, accepted")
    return f"speculate {seq} {guesses} {_text('Accepted', '2', 'accepted', 48)}"


_FAULTS = {
    "abort": "abort while computing",
    "alloc": "no memory for the graph",
    "compute": "compute fails",
    "cut": "a save is cut",
    "flip": "a save is damaged",
}


def _fault(run: Run) -> str:
    kind = st.selectbox(
        "Fault", list(_FAULTS), format_func=_FAULTS.get, key="fault kind", label_visibility="collapsed",
        width=190,
    )  # fmt: skip
    seq = _seq(run, "fault seq")
    if kind in ("cut", "flip"):
        _word("from")
        save = _save_number(run, "fault from")
        _word("to" if kind == "cut" else "xor")
        return f"restore {seq} from {save} {kind} {_text('Bytes', '40', f'fault {kind}', 56)}"
    n = _text("Tokens", "20", "fault n", 52)
    _word("tokens, in ubatch")
    return f"prompt {seq} {n} {kind} {_text('Ubatch', '2', 'fault ubatch', 44)}"


_FORMS: dict[str, Callable[[Run], str]] = {
    "Prompt": _prompt,
    "Decode": _decode,
    "Share": _share,
    "Remove": _remove,
    "Keep": _keep,
    "Shift": _shift,
    "Divide": _divide,
    "Save": _save,
    "Restore": _restore,
    "Defragment": _defragment,
    "Speculate": _speculate,
    "Fault": _fault,
}
