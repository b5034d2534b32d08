"""One self-contained HTML page: no script, nothing fetched, light and dark alike."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

from trainmaster.report.comparison_figures import Picture

_MIME = {"svg": "image/svg+xml", "png": "image/png"}
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #2b6ca3; }
@media (prefers-color-scheme: dark) { :root { --accent: #8cc0ea; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
h2 { font-size: 1.25rem; margin-top: 2.4rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; } a { color: var(--accent); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem; }
th, td { padding: .25rem .55rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; } th:first-child, td:first-child { text-align: left; }
thead th { background: var(--soft); }
table.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
td.best { font-weight: 700; }
table.words th, table.words td { text-align: left; white-space: normal; }
figure { margin: 1rem 0; background: #fff; color: #222; border: 1px solid var(--line);
  border-radius: 6px; padding: .6rem; }
figure img { display: block; width: 100%; height: auto; }
figcaption { font-size: .85rem; padding: .4rem .3rem 0; }
details { margin: .6rem 0; } summary { cursor: pointer; }
.note { border-left: 3px solid var(--accent); padding-left: .8rem; }
"""


def escape(text: object) -> str:
    return html.escape(str(text))


def picture(made: Picture) -> str:
    data = base64.b64encode(made.data).decode()
    return (
        f'<figure><img alt="{escape(made.title)}. {escape(made.caption)}"'
        f' src="data:{_MIME[made.kind]};base64,{data}">'
        f"<figcaption>{escape(made.caption)}</figcaption></figure>"
    )


def table(headers: Sequence[str], rows: Iterable[Sequence[str | tuple[str, str]]], kind: str = "") -> str:
    """Cells are text, or (text, class). Text is escaped here."""
    head = "".join(f"<th>{escape(h)}</th>" for h in headers)
    body = []
    for row in rows:
        cells = "".join(
            f'<td class="{escape(c[1])}">{escape(c[0])}</td>' if isinstance(c, tuple) else f"<td>{escape(c)}</td>"
            for c in row
        )
        body.append(f"<tr>{cells}</tr>")
    top = f"<thead><tr>{head}</tr></thead>" if any(headers) else ""
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{"".join(body)}</tbody></table></div>'


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def details(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def page(title: str, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
