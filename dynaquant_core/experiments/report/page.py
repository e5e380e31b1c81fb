"""One HTML page that needs nothing else: tables, and the plots as images inside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from dynaquant_core.experiments.price import prices
from dynaquant_core.experiments.report.ablation import ablation_parts
from dynaquant_core.experiments.report.price import has_restores, price_rows, spread_line
from dynaquant_core.experiments.report.seeds import seed_rows
from dynaquant_core.experiments.report.table import Row, checkpoint_rows, restore_rows, summary
from dynaquant_core.experiments.results import Results

__all__ = ["page"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { border-bottom: 2px solid #888; }
.scroll { overflow-x: auto; }
img { max-width: 100%; display: block; margin: 1rem 0; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: 12px; }
"""


def page(
    results: Results,
    plots: Sequence[Mapping[str, bytes]],
    price: bytes | None = None,
    ablation: Mapping[str, bytes] | None = None,
) -> str:
    """The page as text.

    Args:
        results: what to show.
        plots: for each run, plot name -> PNG; empty where there are none.
        price: plot of what restores cost, PNG.
        ablation: name -> PNG of an ablation's sections.
    """
    name = escape(str(results.data["config"]["name"]))
    runs = results.data["runs"]
    body = [f"<h1>{name}</h1>", _table(summary(results))]
    together = seed_rows(runs)
    body += ["<h2>Mean and spread over seeds</h2>", _table(together)] if together else []
    body += _ablation(runs, ablation or {})
    body += _price(results, price)
    for index, (run, images) in enumerate(zip(runs, plots, strict=True)):
        body.append(_run(index, run, images))
    for title, key in (("Settings", "config"), ("Environment", "environment")):
        text = escape(json.dumps(results.data[key], indent=1))
        body.append(f"<details><summary>{title}</summary><pre>{text}</pre></details>")
    head = f'<meta charset="utf-8"><title>{name}</title><style>{STYLE}</style>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _ablation(runs: Sequence[Mapping[str, Any]], images: Mapping[str, bytes]) -> list[str]:
    """Figures against the axis, and what else was measured; nothing in other kinds."""
    body = []
    for part in ablation_parts(runs):
        body += [f"<h2>{escape(part.title)}</h2>", f"<p>{escape(part.words)}</p>"]
        body += [_image(part.title, images[part.name])] if part.name in images else []
        body.append(_table(part.rows))
    return body


def _price(results: Results, png: bytes | None) -> list[str]:
    """What restores cost; nothing where there was none."""
    runs = results.data["runs"]
    if not has_restores(runs):
        return []
    words = (
        "A restore loses movement of the training that its checkpoint does not hold: stale, a share.  The "
        "final loss grows by about 10% for each unit of stale x interval, summed over the restores; noise "
        "heals.  Band: what uninterrupted runs of other seeds differ by.  Hollow marks: thresholds above 1%."
    )
    parts = ["<h2>The price of a restore</h2>", f"<p>{words}</p>"]
    parts += [] if png is None else [_image("final cost over stale x interval", png)]
    return [*parts, _table(price_rows(prices(results.data))), f"<p>{escape(spread_line(runs))}.</p>"]


def _run(index: int, run: Mapping[str, Any], images: Mapping[str, bytes]) -> str:
    parts = [f"<h2>Run {index + 1}: {escape(run['method'])}, seed {run['seed']}</h2>"]
    parts += [_image(name, png) for name, png in images.items()]
    parts += ["<h3>Checkpoints</h3>", _table(checkpoint_rows(run))]
    if run["restores"]:
        parts += ["<h3>Restores</h3>", _table(restore_rows(run))]
    return "\n".join(parts)


def _image(name: str, png: bytes) -> str:
    return f'<img alt="{escape(name)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(title)}</th>" for title in rows[0])
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row.values()) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
