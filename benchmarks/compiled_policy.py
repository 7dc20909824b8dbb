"""Acting with a network that ``torch.compile`` has translated; only measured, no agent acts so.

Measured on two busy cores of an AMD EPYC (torch 2.13, one thread, medians of paired ratios to the untranslated network
in the same precision): in bfloat16, which image networks act in there, the small network at 32 environments, as the
preset for Atari games has them, 0.8 and 0.85 times as fast in two runs, 1.05 at 16, 1.45 at 128; the Nature network
0.95 at 32. The network for vectors in float32 0.94 at 16. Each translation took a quarter of a minute and more, which
is a good part of what a whole training spends on acting.
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
        compiled: Any = torch.compile(self._acting, dynamic=False)
        self._acting = compiled


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
