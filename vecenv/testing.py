"""For testing vector envs: the contract as a suite, toy environments, an exact comparison.

`check_vec_env` runs the contract of this package's back ends over anyone's back end:

    from vecenv.testing import check_vec_env

    def test_contract():
        check_vec_env(lambda env_fns, **settings: MyVectorEnv(env_fns, **settings), skip=["vecenv"])
"""

from __future__ import annotations

from vecenv.comparison import assert_same
from vecenv.contract import Check, ContractViolation, all_checks, check_vec_env
from vecenv.toy_envs import CountEnv, DrawEnv, EchoEnv, InfoEnv, LayerWrapper, NestedEnv, OneRewardEnv

__all__ = [
    "Check",
    "ContractViolation",
    "CountEnv",
    "DrawEnv",
    "EchoEnv",
    "InfoEnv",
    "LayerWrapper",
    "NestedEnv",
    "OneRewardEnv",
    "all_checks",
    "assert_same",
    "check_vec_env",
]
