"""Two-bit gradient compression: +t, -t or nothing is sent, the rest waits in a residual.

`register` for DDP, `LocalReducer` for replicas in one process, `Worker` and `serve` for a parameter server;
`from_first_rank` where ranks have restored checkpoints of their own.
"""

from __future__ import annotations

from dynaquant_core.comm.first_rank import from_first_rank
from dynaquant_core.comm.two_bit.codes import decode_sum, encode, packed_bytes
from dynaquant_core.comm.two_bit.ddp_state import TwoBitState
from dynaquant_core.comm.two_bit.hook import register, registered
from dynaquant_core.comm.two_bit.local import LocalReducer
from dynaquant_core.comm.two_bit.saved import redistribute
from dynaquant_core.comm.two_bit.server import Worker, serve
from dynaquant_core.comm.two_bit.settings import TwoBitSettings

__all__ = [
    "LocalReducer",
    "TwoBitSettings",
    "TwoBitState",
    "Worker",
    "decode_sum",
    "encode",
    "from_first_rank",
    "packed_bytes",
    "redistribute",
    "register",
    "registered",
    "serve",
]
