"""What ``kind: ablate`` can measure beyond whole saves: coders of the same codes, and the fewest bins."""

from __future__ import annotations
