"""Every finding on the installed llama.cpp: it still does that, or the test says that it does not."""

from __future__ import annotations

import pytest
from live_lane import model_file, needs_library

from kvsim.lanes.finding_table import FINDINGS
from kvsim.lanes.findings import Finding, shown
from kvsim.lanes.library import open_library

pytestmark = needs_library


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.hazard)
def test_it_is_still_there(finding: Finding) -> None:
    version = open_library()[2].name
    told = shown(finding, model_file(finding.model))
    if version in finding.gone:
        assert told != finding.found, f"llama.cpp {version} does it again: remove {version} from its gone"
    elif told == finding.wanted:
        pytest.fail(
            f"llama.cpp {version} no longer does it: {finding.looks} is now {told}. Add {version} to the gone of "
            f"{finding.hazard} in kvsim/lanes/finding_table.py, and tell kvsim/lanes/known_differences.py"
        )
    else:
        assert told == finding.found, f"llama.cpp {version} does something else: neither found nor wanted"
