"""The process in which uploads are checked: ``python -m app.replaying.checker``. They wait for each other, and what is
bundled does not wait for them."""

from __future__ import annotations

from app.replaying.worker import checking
from app.worker import serve

if __name__ == "__main__":
    serve({"check": checking})
