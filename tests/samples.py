"""How many examples a test takes: a moderate number by default, many when DRAGOMAN_FULL is set.

Every test that samples (Hypothesis, seeded chaos, repeated trials) takes its size from here, so
that `make test` stays quick and `make test-full` is the same suite, only larger. It knows no test.
"""

import os

from hypothesis import HealthCheck, settings

FULL = bool(os.environ.get("DRAGOMAN_FULL"))


def samples(quick: int, full: int) -> int:
    """Return the sample size of this session: `quick` by default, `full` under `make test-full`."""
    return full if FULL else quick


def load_profile() -> None:
    """Give Hypothesis the session's profile.

    No deadline, as the machine may be shared; in CI the examples are the same in every run, so
    that a red run can be repeated.
    """
    settings.register_profile(
        "dragoman",
        max_examples=samples(15, 2_000),
        deadline=None,
        derandomize=bool(os.environ.get("CI")) and not FULL,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("dragoman")
