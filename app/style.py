"""How Streamlit's own parts are set so that the pages look as one with the player."""

from __future__ import annotations

from app import palette

_SQUARES = (
    '<rect x="3" y="3" width="12" height="12" rx="3" fill="#275abc"/>'
    '<rect x="17" y="3" width="12" height="12" rx="3" fill="#e6830c"/>'
    '<rect x="3" y="17" width="12" height="12" rx="3" fill="#2baa96"/>'
    '<rect x="17.75" y="17.75" width="10.5" height="10.5" rx="2.5" fill="none" stroke="#7b8591" '
    'stroke-width="1.5" stroke-dasharray="3 2"/>'
)

ICON = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" width="32" height="32">{_SQUARES}</svg>'
"""The mark: three cells in the first three colours, one empty."""

_BAR = 'data-testid="stVerticalBlock"'

CSS = f"""
<style>
:root {{ {palette.verdict_css("light")} }}
@media (prefers-color-scheme: dark) {{ :root {{ {palette.verdict_css("dark")} }} }}
[data-testid="stHeader"] {{ height: 44px; min-height: 44px; border-bottom: 1px solid rgba(128,138,150,.25); }}
[data-testid="stMainBlockContainer"] {{ padding: 44px 0 0 0; max-width: none; }}
[data-testid="stMainBlockContainer"] > [{_BAR}] {{ gap: 0; }}
.st-key-source {{ padding: 0 20px; min-height: 44px; box-sizing: border-box; align-items: center; flex-wrap: nowrap; gap: 8px;
  background: var(--st-secondary-background-color, rgba(128,138,150,.08)); border-bottom: 1px solid rgba(128,138,150,.25); }}
.st-key-source button, .st-key-source [role="group"], .st-key-source .react-aria-ComboBox > div {{ min-height: 30px; height: 30px; }}
.st-key-source [data-testid="stElementContainer"] button {{ padding: 0 10px; white-space: nowrap; }}
.st-key-source input {{ font-family: var(--st-code-font, monospace); font-size: 13px; }}
.st-key-source [data-testid="stElementContainer"]:has(.kvs-tags) {{ flex: 1 1 0; min-width: 0; }}
.st-key-source [data-testid="stElementContainer"]:has(.kvs-verdict) {{ flex: 0 0 auto; width: auto; }}
.kvs-tags {{ display: flex; gap: 8px; white-space: nowrap; overflow: hidden; font-size: 12.5px; line-height: 18px;
  -webkit-mask-image: linear-gradient(90deg, #000 calc(100% - 16px), transparent); }}
.kvs-tags span {{ padding: 0 7px; border: 1px solid rgba(128,138,150,.45); border-radius: 5px; }}
.kvs-verdict {{ white-space: nowrap; font-size: 13px; line-height: 18px; font-weight: 600; }}
.kvs-good {{ color: var(--kvs-agrees); }}
.kvs-bad {{ color: var(--kvs-fail); }}
.kvs-quiet {{ opacity: .75; font-weight: 400; }}
.st-key-card {{ margin: 40px auto; max-width: 640px; padding: 24px 28px; border: 1px solid rgba(128,138,150,.35); border-radius: 8px; }}
.kvs-ghost {{ display: grid; grid-template-columns: repeat(18, 26px); gap: 2px; }}
.kvs-ghost i {{ height: 26px; border-radius: 4px; background: rgba(128,138,150,.16); }}
</style>
"""
