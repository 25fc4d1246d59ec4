"""How Streamlit's own parts are set so that the pages look as one with the player."""

from __future__ import annotations

_SQUARES = (
    '<rect x="3" y="3" width="12" height="12" rx="3" fill="#275abc"/>'
    '<rect x="17" y="3" width="12" height="12" rx="3" fill="#e6830c"/>'
    '<rect x="3" y="17" width="12" height="12" rx="3" fill="#2baa96"/>'
    '<rect x="17.75" y="17.75" width="10.5" height="10.5" rx="2.5" fill="none" stroke="{ink}" '
    'stroke-width="1.5" stroke-dasharray="3 2"/>'
)

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" width="32" height="32">'
    + _SQUARES.format(ink="#5e6976")
    + "</svg>"
)

LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 112 32" width="112" height="32">'
    + _SQUARES.format(ink="#5e6976")
    + '<text x="42" y="22.5" font-family="Source Sans, sans-serif" font-size="20" font-weight="700" '
    'fill="#7b8591">kvsim</text></svg>'
)

CSS = """
<style>
[data-testid="stHeader"] { height: 44px; min-height: 44px; border-bottom: 1px solid var(--st-border-color-light, rgba(128,138,150,.25)); }
[data-testid="stMainBlockContainer"] { padding: 44px 0 0 0; max-width: none; }
[data-testid="stMain"] { overflow: hidden; }
[data-testid="stMainBlockContainer"] > [data-testid="stVerticalBlock"] { gap: 0; }
.st-key-source { padding: 0 20px; height: 44px; align-items: center; flex-wrap: nowrap; gap: 8px;
  background: var(--st-secondary-background-color); border-bottom: 1px solid rgba(128,138,150,.25); }
.st-key-source label { display: none; }
.kvs-tags { display: flex; gap: 8px; white-space: nowrap; overflow: hidden; font-size: 12.5px; line-height: 18px; }
.kvs-tags span { padding: 0 7px; border: 1px solid rgba(128,138,150,.45); border-radius: 5px; }
.kvs-verdict { white-space: nowrap; font-size: 13px; font-weight: 600; text-align: right; }
</style>
"""
