"""One rank whose evaluate measures a copy of the model; started by `test_blind_ranks`."""

from __future__ import annotations

import copy
from typing import Any

from tests.plugins import ranks


class Blind(ranks.Rank):
    """A rank with one more act."""

    def blind(self) -> list[dict[str, Any]]:
        """Nothing that a candidate changes is measured."""
        kept = copy.deepcopy(self.model)
        return self.search(lambda: self.losses(kept), 2)


if __name__ == "__main__":
    ranks.Rank = Blind  # type: ignore[misc]
    ranks.main()
