"""States of environments inside a checkpoint: bytes as tensors, each with its hash.

The bytes are pickles of whole environments, and unpickling runs code. They are only ever unpickled by a back end's
`set_state`, when a user resumes a run; evaluation never looks at them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .checkpoint import CheckpointError


def pack_states(states: Sequence[bytes]) -> list[dict[str, Any]]:
    """Plain values for a checkpoint."""
    return [
        {
            "bytes": torch.from_numpy(np.frombuffer(state, np.uint8).copy()),
            "sha256": hashlib.sha256(state).hexdigest(),
        }
        for state in states
    ]


def unpack_states(packed: Any) -> list[bytes]:
    """What :func:`pack_states` was given.

    Raises:
        CheckpointError: the bytes are not those that were saved.
    """
    states = []
    for index, entry in enumerate(packed):
        try:
            state = entry["bytes"].numpy().tobytes()
            expected = entry["sha256"]
        except (AttributeError, KeyError, TypeError) as error:
            raise CheckpointError(f"the saved state of environment {index} cannot be read") from error
        if hashlib.sha256(state).hexdigest() != expected:
            raise CheckpointError(f"the saved state of environment {index} is damaged: its hash does not match")
        states.append(state)
    return states
