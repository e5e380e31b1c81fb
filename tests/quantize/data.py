"""Distributions that weights and gradients take, by name."""

from __future__ import annotations

import numpy as np

DISTRIBUTIONS = {
    "normal": lambda g, n: g.standard_normal(n),
    "narrow": lambda g, n: 0.02 * g.standard_normal(n),
    "uniform": lambda g, n: g.uniform(-1, 1, n),
    "positive": lambda g, n: g.uniform(0.5, 2, n),
    "laplace": lambda g, n: g.laplace(size=n),
    "lognormal": lambda g, n: g.lognormal(sigma=3, size=n),
    "cauchy": lambda g, n: g.standard_cauchy(n),
    "student": lambda g, n: g.standard_t(2, n),
    "bimodal": lambda g, n: g.standard_normal(n) * 0.1 + g.choice([-3.0, 3.0], n),
    "sparse": lambda g, n: g.standard_normal(n) * (g.random(n) < 0.1),
    "constant": lambda g, n: np.full(n, -0.37),
    "zeros": lambda g, n: np.zeros(n),
    "integers": lambda g, n: g.integers(-4, 5, n).astype(float),
    "wide": lambda g, n: np.exp2(g.uniform(-120, 120, n)) * g.choice([-1.0, 1.0], n),
    "outlier": lambda g, n: np.append(g.standard_normal(n - 1), 1e6),
}


def sample(name: str, size: int, seed: int = 0) -> np.ndarray:
    """float32[size] drawn from the named distribution."""
    return DISTRIBUTIONS[name](np.random.default_rng(seed), size).astype(np.float32)


def check_first_moments(exact, decoded, block, far, error):
    """Signs stay, and values are near, or zero where they are below ``far`` of their block's largest."""
    exact, decoded = exact.astype(np.float64), decoded.astype(np.float64)
    assert (decoded * exact >= 0).all()
    assert (decoded[exact == 0] == 0).all()
    for start in range(0, exact.size, block):
        x, y = np.abs(exact[start : start + block]), np.abs(decoded[start : start + block])
        flushed = (y == 0) & (x > 0)
        assert (x[flushed] < x.max() * far).all()
        kept = ~flushed & (x >= 2.0**-126)
        assert (np.abs(y - x)[kept] <= error * x[kept]).all()
