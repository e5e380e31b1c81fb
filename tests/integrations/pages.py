"""The lines that a page shows for a framework, as a reader would take them over."""

import re
from pathlib import Path

from dynaquant_core.comm import two_bit

DOCS = Path(__file__).parents[2] / "docs"


def shown(page, begins, **there):
    """What a block of a page of docs defines, from the line that begins so; ``there``: what a reader has."""
    text = (DOCS / page).read_text(encoding="utf-8")
    block = re.search(rf"^{re.escape(begins)}.*?(?=\n\n|\n```)", text, re.MULTILINE | re.DOTALL)
    names = {"two_bit": two_bit, **there}
    exec(compile(block[0], page, "exec"), names)
    return names
