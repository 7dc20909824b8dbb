"""Acting with a network that ``torch.compile`` has translated; only measured, no agent acts so.

On two cores of an AMD EPYC (torch 2.13, one thread) translating took half a minute for each batch size. The small
convolutional network in bfloat16, which agents act with there, then was slower (0.8 times at 32 environments); in
float32 it gained 1.1 to 1.3 times, which bfloat16 alone exceeds; the network for vectors lost (0.9 times).
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch

from vecenv.agents.inference import BatchedPolicy
from vecenv.errors import UnknownSetting

COMPILERS = ("g++", "clang++", "c++")


class CompiledPolicy(BatchedPolicy):
    """Acts as `BatchedPolicy`; the first batch of a size waits until its network is translated.

    Args:
        network: as of `BatchedPolicy`; left as it is.
        keywords: as of `BatchedPolicy`.
    """

    def __init__(self, network: Any, **keywords: Any) -> None:
        super().__init__(network, **keywords)
        self._acting = torch.compile(self._acting, dynamic=False)


def require_compiler() -> None:
    """Look for what ``torch.compile`` translates with on a CPU.

    Raises:
        UnknownSetting: there is no C++ compiler.
    """
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    if not any(map(shutil.which, names)):
        raise UnknownSetting(
            f"torch.compile was asked for, but there is no C++ compiler here: none of {', '.join(names)} is found"
        )
