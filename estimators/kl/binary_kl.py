"""binary-kl: the KL of what one token shows, sampled or not."""

from ...numerics import binary_kl as coin
from ...registry import PerToken, kl_estimator


@kl_estimator(
    scope="token", claims=("zero-at-equality", "non-negative"), deviates={"referenced": "No paper or framework is known that has it."}
)
def binary_kl(log_prob: PerToken, ref_log_prob: PerToken) -> PerToken:
    r"""Return the KL between two coins, this token against all the others: exact for a vocabulary of two, else from below.

    .. math:: k = p \ln \frac{p}{q} + (1 - p) \ln \frac{1 - p}{1 - q}, \qquad
        \frac{\partial k}{\partial \ell} = p \Bigl( \ln \frac{p}{q} - \ln \frac{1 - p}{1 - q} \Bigr), \qquad p = e^{\ell}, \quad q = e^{\ell^{ref}}

    ``[N]``, in nats. Unlike its neighbours, which see the ratio alone, it weighs a token by its probability: one that the policy hardly
    ever samples is hardly pulled, and an unlikely token cannot make it explode. By the data-processing inequality no more than the
    KL of the whole distribution, and no unbiased estimate of it. The chances of the others are kept 1e-8 above 0,
    and rounding never makes it negative.
    """
    return coin(log_prob, ref_log_prob)
