"""Acting with a network that ``torch.compile`` has translated; only measured, no agent acts so.

``vecenv bench inference --compiled`` shows it beside the untranslated network, by batch size and precision: it can be
slower at the batch sizes that the presets act with, and the first batch of a size waits for its translation.
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
