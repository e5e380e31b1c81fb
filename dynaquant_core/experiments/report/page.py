"""One HTML page that needs nothing else: tables, and the plots as images inside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

from dynaquant_core.experiments.figures import kind_of, saving
from dynaquant_core.experiments.price import Run, prices
from dynaquant_core.experiments.report.ablation import ablation_parts
from dynaquant_core.experiments.report.comparison import comparison_rows
from dynaquant_core.experiments.report.overhead import overhead_rows
from dynaquant_core.experiments.report.price import has_restores, law_holds, price_rows, spread_lines
from dynaquant_core.experiments.report.published import SOURCE, published_rows
from dynaquant_core.experiments.report.sections import sections_of
from dynaquant_core.experiments.report.table import Row, checkpoint_rows, restore_rows, summary
from dynaquant_core.experiments.results import Results

__all__ = ["page"]

NOTHING: Mapping[str, bytes] = MappingProxyType({})

#: What a plot of all runs shows, for those who cannot see it.
TITLES = {
    "tradeoff": "degradation over ratio, a panel a model, a mark a run",
    "history": "ratio of each checkpoint over the training, a line a setting",
    "price": "final cost over stale x interval",
    "recovery": "rework after each restore",
}

OVERHEAD = (
    "Shares of the training time: averaging gradients (collector), time the training is held, search.  "
    "Beside them the same for 335M parameters and a checkpoint every 30 minutes, if a parameter costs as "
    "many seconds there as here, gradients averaged over 50 steps before each."
)

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
    results: Results, plots: Sequence[Mapping[str, bytes]], together: Mapping[str, bytes] = NOTHING
) -> str:
    """The page as text.

    Args:
        results: what to show.
        plots: for each run, plot name -> PNG; empty where there are none.
        together: plots of all runs, by name.
    """
    name = escape(str(results.data["config"]["name"]))
    runs = results.data["runs"]
    saved = saving(runs)
    body = [f"<h1>{name}</h1>", _table(summary(results)), *_comparison(saved, together)]
    body += _price(results, together)
    body += [*_ablation(runs, together), *_sections(runs, together)]
    trained = [run for run in saved if kind_of(run) == "train"]  # the others held up no training
    body += ["<h2>Overhead</h2>", f"<p>{OVERHEAD}</p>", _table(overhead_rows(trained))] if trained else []
    for index, (run, images) in enumerate(zip(runs, plots, strict=True)):
        if run["checkpoints"]:  # all of the others is in a section of their kind
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


def _comparison(runs: Sequence[Run], plots: Mapping[str, bytes]) -> list[str]:
    """All settings side by side, and beside them what was published; nothing for a single run."""
    if len(runs) < 2:
        return []
    words = (
        "Mean and, where there are several seeds, standard deviation.  Read ratios with stale beside them: a "
        "small checkpoint that loses the progress since the last one is not a good checkpoint."
    )
    marks = "Hollow marks: thresholds above 1%; crossed ones: a checkpoint did not keep its threshold."
    parts = ["<h2>Comparison</h2>", f"<p>{words}</p>", _table(comparison_rows(runs))]
    parts += [f"<p>{marks}</p>"] if "tradeoff" in plots else []
    parts += [_image(TITLES[name], plots[name]) for name in ("tradeoff", "history") if name in plots]
    published = published_rows(runs)
    return [*parts, f"<p>{SOURCE}</p>", _table(published)] if published else parts


def _ablation(runs: Sequence[Mapping[str, Any]], images: Mapping[str, bytes]) -> list[str]:
    """Figures against the axis, and what else was measured; nothing in other kinds."""
    body = []
    for part in ablation_parts(runs):
        body += [f"<h2>{escape(part.title)}</h2>", f"<p>{escape(part.words)}</p>"]
        body += [_image(part.title, images[part.name])] if part.name in images else []
        body.append(_table(part.rows))
    return body


def _price(results: Results, plots: Mapping[str, bytes]) -> list[str]:
    """What restores cost; nothing where there was none."""
    runs = results.data["runs"]
    if not has_restores(runs):
        return []
    law = (
        "The final loss grows by about 10% for each unit of stale x interval, summed over the restores; "
        "noise heals.  "
    )
    words = (
        "A restore loses movement of the training that its checkpoint does not hold: stale, a share.  "
        f"{law if law_holds(runs) else ''}Band: what uninterrupted runs of other seeds differ by.  Hollow "
        "marks: thresholds above 1%; larger ones: more restores."
    )
    parts = ["<h2>The price of a restore</h2>", f"<p>{words}</p>"]
    parts += [_image(TITLES[name], plots[name]) for name in ("price", "recovery") if name in plots]
    return [
        *parts,
        _table(price_rows(prices(results.data))),
        *(f"<p>{escape(line)}.</p>" for line in spread_lines(runs)),
    ]


def _sections(runs: Sequence[Mapping[str, Any]], plots: Mapping[str, bytes]) -> list[str]:
    parts: list[str] = []
    for name, (section, own) in sections_of(runs).items():
        parts += [f"<h2>{escape(section.title)}</h2>", f"<p>{escape(section.words)}</p>"]
        parts += [_image(name, plots[name])] if name in plots else []
        for title, table in section.tables.items():
            rows = table(own)
            parts += [f"<h3>{escape(title)}</h3>", _table(rows)] if rows else []
    return parts


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
    columns = list(dict.fromkeys(title for row in rows for title in row))  # rows may differ in them
    head = "".join(f"<th>{escape(title)}</th>" for title in columns)
    lines = ["".join(f"<td>{escape(row.get(title, '-'))}</td>" for title in columns) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
