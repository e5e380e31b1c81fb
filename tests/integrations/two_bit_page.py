"""The lines that docs/two-bit.md shows for a framework, as a reader would take them over."""

import re
from pathlib import Path

from dynaquant_core.comm import two_bit

PAGE = Path(__file__).parents[2] / "docs" / "two-bit.md"


def shown(begins, **there):
    """What a block of the page defines, from the line that begins so; ``there``: what its reader has."""
    page = PAGE.read_text(encoding="utf-8")
    block = re.search(rf"^{re.escape(begins)}.*?(?=\n\n|\n```)", page, re.MULTILINE | re.DOTALL)
    names = {"two_bit": two_bit, **there}
    exec(compile(block[0], str(PAGE), "exec"), names)
    return names
