"""How Streamlit's own parts are set so that the pages look as one with the player."""

from __future__ import annotations

from pathlib import Path

from kvsim.player import palette

_SQUARES = (
    '<rect x="3" y="3" width="12" height="12" rx="3" fill="#275abc"/>'
    '<rect x="17" y="3" width="12" height="12" rx="3" fill="#e6830c"/>'
    '<rect x="3" y="17" width="12" height="12" rx="3" fill="#2baa96"/>'
    '<rect x="17.75" y="17.75" width="10.5" height="10.5" rx="2.5" fill="none" stroke="#7b8591" '
    'stroke-width="1.5" stroke-dasharray="3 2"/>'
)

ICON = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" width="32" height="32">{_SQUARES}</svg>'
"""The mark: three cells in the first three colours, one empty."""

_RULES = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")

CSS = f"""<style>
{palette.page_css(".stApp")}
{_RULES}</style>
"""


def sheet(file: Path) -> str:
    """The rules that only one page needs, for ``st.html``."""
    return f"<style>{file.read_text(encoding='utf-8')}</style>"
