"""Whether what something costs grows with the square of what there is, on any machine.

CPU of this thread is compared with CPU of this thread: a bound in seconds is too short somewhere.
"""

import time
from collections.abc import Callable


def seconds(work: Callable[[int], object], count: int) -> float:
    begun = time.thread_time()
    work(count)
    return time.thread_time() - begun


def is_square(work: Callable[[int], object], count: int) -> bool:
    """Whether four times as many take far more than four times as long: sixteen, with a square.

    A machine that does much else may slow down either, but a square shows every time.
    """
    return all(
        seconds(work, 4 * count) > 9 * min(seconds(work, count), seconds(work, count))
        for _ in range(5)
    )
