"""Without torch there is no engine to test: pip install 'kvsim[engine]'."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["*.py"]
