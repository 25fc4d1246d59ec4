"""Every example of docs/policies.md prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def test_every_example_prints_what_the_page_says() -> None:
    examples = re.findall(
        r"^```python\n(.*?)^```\n```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(examples) == PAGE.read_text().count("```python") == 8
    names: dict[str, object] = {}
    for code, printed in examples:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(PAGE), "exec"), names)
        assert out.getvalue() == printed, code
