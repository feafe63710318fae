"""Student's distribution, of which numpy has no tail."""

import math

TINY = 1e-300


def two_sided(t: float, free: float) -> float:
    r"""Return the probability of a larger ``|t|`` by chance with ``free`` degrees of freedom: :math:`I_{f/(f+t^2)}(f/2, 1/2)`."""
    return incomplete_beta(free / 2, 0.5, free / (free + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function by Lentz's continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):  # beyond it the fraction of the other side converges
        return 1 - front * _fraction(b, a, 1 - x) / b
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    h = d
    for m in range(1, 400):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for factor in (even, odd):
            d = 1 / _away(1 + factor * d)
            c = _away(1 + factor / c)
            h *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return h


def _away(value: float) -> float:
    return value if abs(value) > TINY else TINY
