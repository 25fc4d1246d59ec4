"""Many users at once: every one gets the answer to what they asked, nobody sees what is another's, nothing fails.

How long they wait is measured by ``kvsim bench app``, never here.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections import Counter

import pytest

from app import tidy
from app.load.crowd import THINKS, come, crowd_table, mixed, percentile_95
from app.load.session import NoAnswerError, Session
from app.load.users import KINDS, SHARES
from kvsim.bench.served import Served, served

HURRY = 0.02


@pytest.fixture(scope="module")
def server():
    with served() as one:
        yield one


def test_users_of_every_kind_get_their_own_answers(server: Served) -> None:
    """Two of each kind of user, all at once: each one's answers are worked out without the server."""
    kinds = [kind for kind in (*KINDS, *KINDS) if kind != "compare"]  # comparing takes processor time: one
    crowd = come(server, [*kinds, "compare"], acts=2, hurry=HURRY)
    assert crowd.failed == []
    came = Counter([*kinds, "compare"])
    assert Counter((w.page, w.what) for w in crowd.waits) == {
        key: n for kind in KINDS for key, n in (((kind, "open"), came[kind]), ((kind, "act"), 2 * came[kind]))
    }


def test_uploads_of_one_name_stay_apart(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four users upload a file of the same name at once, each with something else in it."""
    monkeypatch.setattr("app.load.users.upload_name", lambda n, i: "mine.jsonl.gz")
    crowd = come(server, ["uploads"] * 4, acts=2, hurry=HURRY)
    assert crowd.failed == []
    assert len(crowd.seconds("act", "uploads")) == 8


def test_what_another_has_compared_is_there_at_once(server: Served) -> None:
    for _ in range(2):
        crowd = come(server, ["compare"], acts=1, hurry=HURRY)
        assert crowd.failed == []
        assert [w.what for w in crowd.waits] == ["open", "act"]


def test_an_answer_that_is_not_theirs_is_noticed(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a total that no configuration has ends with what the page says instead."""

    async def ask() -> None:
        async with Session(server.url) as session:
            monkeypatch.setattr("app.load.session.PATIENCE", 3.0)
            await session.open("page=memory&n_ctx=4096", lambda page: "1 bytes: " in page.text.split())

    with pytest.raises(NoAnswerError, match="no answer within 3 s; the page says: "):
        asyncio.run(ask())


def test_an_app_that_raises_is_noticed(tmp_path) -> None:
    script = tmp_path / "raises.py"
    script.write_text("1 / 0\n")

    async def ask(url: str) -> None:
        async with Session(url) as session:
            await session.open("", lambda page: False)

    with served(script) as broken, pytest.raises(NoAnswerError, match=r"the app raised: .*division by zero"):
        asyncio.run(ask(broken.url))


def test_a_crowd_is_mixed_and_told_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(SHARES) == set(KINDS)
    assert mixed(2) == ["playground", "replay"]
    assert Counter(mixed(30))["playground"] == 10
    monkeypatch.setattr("app.load.crowd.THINKS", (0.0, 0.01))
    monkeypatch.setattr("app.load.crowd.COMES_WITHIN", 0.0)
    told: list[str] = []
    rows = list(crowd_table(1, told.append, acts=2))
    assert [row.name for row in rows] == [
        "1 users, playground: opening",
        "1 users, playground: an act",
        "1 users: an act, median of 2",
        "1 users: an act, 95 of 100 wait less",
    ]
    assert all(row.seconds > 0 for row in rows)
    assert rows[0].against == "one user alone"
    assert told[-1].startswith("a user acts ")
    assert THINKS[0] > 0


@pytest.mark.parametrize(
    ("seconds", "expected"), [([3.0], 3.0), (list(range(1, 101)), 95), (list(range(20)), 18), ([2, 1], 2)]
)
def test_the_wait_that_95_of_100_do_not_exceed(seconds: list[float], expected: float) -> None:
    assert percentile_95(seconds) == expected


def test_what_a_closed_session_leaves_is_freed_though_nobody_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two objects that hold each other, as a session and its parts do: only a collection frees them."""

    class Part:
        other: Part

    one, two = Part(), Part()
    one.other, two.other = two, one
    left = weakref.ref(one)
    gc.disable()
    try:
        del one, two
        assert left() is not None
        monkeypatch.setattr(tidy, "EVERY", 0.01)
        threading.Thread(target=tidy._tidy, daemon=True).start()
        end = time.monotonic() + 60
        while left() is not None and time.monotonic() < end:
            time.sleep(0.01)
        assert left() is None
    finally:
        gc.enable()
