"""The prints of the slot search in what llama.cpp said (LLAMA_KV_CACHE_DEBUG=3)."""

from __future__ import annotations

from kvsim.logs.searches import SEVERAL, read_searches


def printed(owners: list[str], positions: list[str], stream: int = 0, head: int = 3, n_swa: int = 0) -> str:
    """As llama.cpp prints it: owners in lines of 256 cells, positions in lines of 64, five columns each."""
    size, used = len(owners), sum(owner != "." for owner in owners)
    text = (
        f"find_slot: stream[{stream}], n = {used:5d}, used = {used:5d}, head = {head:5d}, size = {size:5d}, "
        f"n_swa = {n_swa:5d}\n\n"
    )
    for i, owner in enumerate(owners):
        text += owner + (" *\n" if i % 256 == 255 else "")
    text += "\n\n"
    for i, pos in enumerate(positions):
        text += pos.ljust(5) + (" *" if i % 256 == 255 else "") + ("\n" if i % 64 == 63 else "")
    return text + f"\nfind_slot: stream[{stream}] min[0] =     0, max[0] =     7\n"


def cells(filled: dict[int, tuple[str, str]], size: int = 256) -> tuple[list[str], list[str]]:
    owners, positions = ["."] * size, ["."] * size
    for i, (owner, pos) in filled.items():
        owners[i], positions[i] = owner, pos
    return owners, positions


def test_cells_with_owner_and_position() -> None:
    (log,) = read_searches(printed(*cells({0: ("0", "4"), 1: ("M", "0"), 70: ("2", "12345")})))
    assert (log.stream, log.n, log.used, log.head, log.size, log.n_swa) == (0, 3, 3, 3, 256, 0)
    assert log.marks() == {0: (4, 0), 1: (0, SEVERAL), 70: (12345, 2)}


def test_several_caches_and_streams_with_other_lines_between() -> None:
    text = (
        "decode: something else\n"
        + printed(*cells({5: ("0", "1")}, 512))
        + "set_abort_callback: call\n12 34\n"
        + printed(*cells({511: ("1", "9")}, 512), stream=1, head=0, n_swa=32)
    )
    first, second = read_searches(text)
    assert (first.marks(), second.marks()) == ({5: (1, 0)}, {511: (9, 1)})
    assert (second.stream, second.n_swa) == (1, 32)


def test_a_prefix_of_the_log_does_not_matter() -> None:
    text = printed(*cells({})).replace("find_slot: stream[0], n", "0.01.234 D llama: find_slot: stream[0], n")
    assert read_searches(text)[0].marks() == {}


def test_owners_with_two_digits_that_nothing_tells_apart() -> None:
    """One range is printed, that of sequence 0: what stands for the two cells is unknown."""
    (log,) = read_searches(printed(*cells({0: ("1", "0"), 1: ("12", "1")})))
    assert log.used == 2
    assert log.marks() == {0: (0, SEVERAL), 1: (1, SEVERAL)}


def test_counts_alone_show_no_cells() -> None:
    counts = printed(*cells({})).partition("\n")[0]
    (log,) = read_searches(counts)
    assert log.marks() is None


def test_a_print_that_is_cut_short_shows_no_cells() -> None:
    lines = printed(*cells({})).split("\n")
    (log,) = read_searches("\n".join(lines[:6]))
    assert log.marks() is None


def test_nothing_printed() -> None:
    assert read_searches("") == []
    assert read_searches("0 0 0\n. . .\n") == []
