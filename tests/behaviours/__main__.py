"""`python -m tests.behaviours`: every number with its tests, then the count of those without.

Prints only; the test beside it is what fails.
"""

from tests.behaviours.numbers import DOCUMENT, REQUIRED, by_number, described

tests = by_number()
sentences = described(DOCUMENT.read_text())
numbers = [*REQUIRED, *sorted((sentences.keys() | tests.keys()) - set(REQUIRED))]
for number in numbers:
    note = "" if number in sentences else "  (not described)"
    print(f"{number:7} {', '.join(tests.get(number, ['-']))}{note}")
missing = [number for number in numbers if number not in tests]
print(f"\n{len(numbers) - len(missing)} of {len(numbers)} numbers have a test.")
if missing:
    print("Without:", ", ".join(missing))
