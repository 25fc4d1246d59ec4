"""Scenarios: what a caller does with a context, as a small YAML file that can be recorded.

>>> from kvsim.scenarios import load_scenario, record_reference
>>> header, steps = record_reference(load_scenario("prefix-reuse"))
>>> header.arch, sum(1 for _ in steps) > 3
('llama', True)

``schema`` (what a file may hold), ``run`` (performing it, on anything that performs operations),
``reference`` (on kvsim's own context), ``live`` (on a real llama.cpp). The scenarios that ship stand beside
this module; ``docs/scenarios.md`` has the format.
"""

from __future__ import annotations

from pathlib import Path

from kvsim.scenarios.reference import record_reference
from kvsim.scenarios.schema import Scenario, ScenarioError, parse_scenario

__all__ = ["SHIPPED", "Scenario", "ScenarioError", "load_scenario", "parse_scenario", "record_reference"]

SHIPPED = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}
"""The scenarios that come with kvsim, by name."""


LONGEST = 256 << 10
"""Characters of a scenario."""


def load_scenario(name: str | Path) -> Scenario:
    """A shipped scenario by name, or the one in a file. Raises ScenarioError if it cannot be used."""
    path = SHIPPED.get(str(name), Path(name))
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(
            f"{name}: neither a file that can be read nor one of {', '.join(SHIPPED)} ({error})"
        ) from None
    if len(text) > LONGEST:
        raise ScenarioError(f"{name}: longer than {LONGEST >> 10} KiB: no scenario")
    return parse_scenario(text, str(path))
