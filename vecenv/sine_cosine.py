"""Sine and cosine in one, without a branch or a call, so that LLVM computes several rows at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_QUARTERS_PER_RADIAN = 0.6366197723675814  # 2 / pi
# 1.5 * 2 ** 52: added to a float below 2 ** 51, it leaves the nearest whole number in the lowest bits.
_ROUNDING = 6755399441055744.0
# pi / 2 in two parts; the first has 33 bits, so that its products with the quarters are exact.
_QUARTER_LEADING, _QUARTER_REST = 1.5707963267341256, 6.077100506506192e-11


@njit(forceinline=True)
def sine_cosine_near_zero(x: Any) -> Any:
    """What `sine_cosine` gives for angles within an eighth of a turn of zero, to the last bit.

    Args:
        x: float64, in radians, between -pi / 4 and pi / 4.

    Returns:
        Sine and cosine, float64.
    """
    z = x * x
    odd = -2.50507602534068634195e-08 + z * 1.58969099521155010221e-10
    odd = 2.75573137070700676789e-06 + z * odd
    odd = -1.98412698298579493134e-04 + z * odd
    odd = 8.33333333332248946124e-03 + z * odd
    odd = -1.66666666666666324348e-01 + z * odd
    odd = x + x * z * odd
    even = 2.08757232129817482790e-09 + z * -1.13596475577881948265e-11
    even = -2.75573143513906633035e-07 + z * even
    even = 2.48015872894767294178e-05 + z * even
    even = -1.38888888888741095749e-03 + z * even
    even = 4.16666666666666019037e-02 + z * even
    even = 1.0 - 0.5 * z + z * z * even
    return odd, even


@njit(forceinline=True)
def sine_cosine(angle: Any) -> Any:
    """Sine and cosine of an angle, right to about 1e-16 for angles up to a million.

    The angle is brought into a quarter turn around zero, where the series of both, cut off after the powers 13 and 14
    and with the last terms fitted (coefficients as FreeBSD's `msun` publishes them), are exact to the last bit or two.

    Args:
        angle: float64, in radians.

    Returns:
        Sine and cosine, float64.
    """
    rounded = np.float64(angle * _QUARTERS_PER_RADIAN + _ROUNDING)
    quarters = rounded - _ROUNDING
    x = (angle - quarters * _QUARTER_LEADING) - quarters * _QUARTER_REST
    odd, even = sine_cosine_near_zero(x)
    turned = rounded.view(np.int64)  # its two lowest bits are the quarter
    swapped = (turned & 1) != 0
    # The sign is changed by its bit, in place of a comparison and a choice.
    sine = np.float64(even if swapped else odd).view(np.int64) ^ ((turned & 2) << 62)
    cosine = np.float64(odd if swapped else even).view(np.int64) ^ (((turned + 1) & 2) << 62)
    return np.int64(sine).view(np.float64), np.int64(cosine).view(np.float64)
