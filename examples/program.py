"""A program: a choice, a reason and a date, bound to grammars, on the model in the package.

Run it with `python examples/program.py`; `dragoman run examples/program.py --html page.html` shows
every token. Any other model does: `Model("http://127.0.0.1:11434/v1")`.
"""

from dragoman.program import Model, assistant, gen, regex, select, system, user

lm = Model("pocket", temperature=0)
with system():
    lm += "You classify messages."
with user():
    lm += "Is 'have a nice day' friendly?"
with assistant():
    lm += "It is " + select(["friendly", "rude"], name="mood") + ". "
    lm += f"Written in {regex('[12][0-9]{3}', name='year')}, by " + gen("by", max_tokens=5)

year = int(lm["year"])
print(lm["mood"] in ("friendly", "rude"), 1000 <= year < 3000, lm.guarantee("mood"))

# On the pocket model it prints:
#     True True enforced
