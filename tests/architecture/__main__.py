"""Prints today's values of the ratchets beside their limits: `python -m tests.architecture`.

With `--write` the limits become today's values; `--raise` lets them rise as well, which takes a
reason in docs/decisions.
"""

import argparse

from tests.architecture import ratchets


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.architecture", description=__doc__)
    parser.add_argument("--write", action="store_true", help="lower the limits to today's values")
    parser.add_argument("--raise", dest="rise", action="store_true", help="raise them too")
    options = parser.parse_args()
    allowed = ratchets.limits() if ratchets.FILE.exists() else {}
    today = {**ratchets.tree_figures(), **ratchets.call_figures()}
    written: ratchets.Figures = {}
    for section, values in today.items():
        old = allowed.get(section, {})
        for name, value in values.items():
            limit = old.get(name, value)
            print(f"{section}.{name:<16}{value:>8g}   limit {limit:g}")
            kept = value if options.rise else min(value, limit)
            written.setdefault(section, {})[name] = kept
    if options.write or options.rise:
        ratchets.write(written)


if __name__ == "__main__":
    main()
