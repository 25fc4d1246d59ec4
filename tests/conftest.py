"""Hypothesis for all tests: fixed examples where CI=true, so that a run can be repeated; random ones elsewhere.

No deadline for single examples: machines are noisy.
"""

import os

from hypothesis import settings

settings.register_profile("kvsim", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("kvsim"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "kvsim")
