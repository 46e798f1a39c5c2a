"""Monty: what code tries in it in vain. CPython in bubblewrap is tried in `test_bubblewrap`.

Each attempt prints ESCAPED when it has what it wants.
"""

import asyncio
import os

import pytest

from dragoman.core.interfaces import ANYONE
from dragoman.tools.python import Python
from dragoman.tools.sandbox import MB, NICE, Limits
from tests.steady import SteadyLoop

ATTEMPTS = {
    # files and folders
    "a file": "print('ESCAPED', open('/etc/passwd').read())",
    "a file by path": "from pathlib import Path\nprint('ESCAPED', Path('/etc/passwd').read_text())",
    "a file of the server": "print('ESCAPED', open('{SECRET}').read())",
    "bytes of a file": "print('ESCAPED', open('{SECRET}', 'rb').read())",
    "a path upwards": "print('ESCAPED', open('../../../..{SECRET}').read())",
    "a file to write": "open('/tmp/escaped', 'w').write('x'); print('ESCAPED')",
    "a file to append to": "open('{SECRET}', 'a').write('x'); print('ESCAPED')",
    "a file descriptor": "print('ESCAPED', open(0).read())",
    "whether a file is there": "import os\nif os.path.exists('{SECRET}'): print('ESCAPED')",
    "whether a path is there": (
        "from pathlib import Path\nif Path('{SECRET}').exists(): print('ESCAPED')"
    ),
    "a folder": "import os; os.listdir('/'); print('ESCAPED')",
    "a folder by path": "from pathlib import Path\nprint('ESCAPED', list(Path('/').iterdir()))",
    "all files below": "import os\nif list(os.walk('/')): print('ESCAPED')",
    "the size of a file": "import os; os.stat('{SECRET}'); print('ESCAPED')",
    "a new folder": "import os; os.mkdir('/tmp/escaped'); print('ESCAPED')",
    "the end of a file": "import os; os.remove('{SECRET}'); print('ESCAPED')",
    "another name": "import os; os.rename('{SECRET}', '{SECRET}2'); print('ESCAPED')",
    "a link": "import os; os.symlink('{SECRET}', 'x'); print('ESCAPED')",
    "a link by path": (
        "from pathlib import Path\nPath('x').symlink_to('{SECRET}'); print('ESCAPED')"
    ),
    "where a path leads": (
        "from pathlib import Path\nprint('ESCAPED', Path('{SECRET}').resolve().read_text())"
    ),
    "its own process": "print('ESCAPED', open('/proc/self/environ').read())",
    "the server's process": "print('ESCAPED', open('/proc/{PID}/maps').read())",
    # the environment
    "the environment": "import os\nif os.environ['PATH']: print('ESCAPED')",
    "a variable": "import os\nif os.getenv('DRAGOMAN_SECRET'): print('ESCAPED')",
    "all variables": "import os\nif dict(os.environ): print('ESCAPED')",
    # the system
    "the number of the process": "import os; os.getpid(); print('ESCAPED')",
    "a child": "import os; os.fork(); print('ESCAPED')",
    "a signal": "import os; os.kill({PID}, 0); print('ESCAPED')",
    "a shell": "import os; os.system('true'); print('ESCAPED')",
    "a pipe": "import os; os.popen('true'); print('ESCAPED')",
    "a program": "import os; os.execv('/bin/true', ['true']); print('ESCAPED')",
    "the end of the process": "import os; os._exit(0); print('ESCAPED')",
    "other users": "import os; os.setuid(0); print('ESCAPED')",
    "random bytes of the system": "import os; os.urandom(4); print('ESCAPED')",
    "a descriptor": "import os; os.read(0, 1); print('ESCAPED')",
    # modules
    **{
        f"the module {name}": f"import {name}; print('ESCAPED')"
        for name in (
            "ctypes",
            "socket",
            "subprocess",
            "multiprocessing",
            "threading",
            "signal",
            "mmap",
            "importlib",
            "builtins",
            "inspect",
            "gc",
            "pickle",
            "urllib.request",
            "http.client",
            "ssl",
            "sqlite3",
            "shutil",
            "pty",
            "resource",
            "dragoman",
            "pydantic_monty",
        )
    },
    "a module of the path": "import sys; sys.path.append('/'); print('ESCAPED')",
    "modules that are loaded": "import sys; sys.modules['os']; print('ESCAPED')",
    "a module by function": "__import__('os').system; print('ESCAPED')",
    "a module by a loader": "__loader__.load_module('os'); print('ESCAPED')",
    "a module by its specification": "__spec__.loader; print('ESCAPED')",
    "the builtins": "__builtins__['open']; print('ESCAPED')",
    "code": "compile('1', '', 'eval'); print('ESCAPED')",
    "code in a text": "exec('import socket'); print('ESCAPED')",
    "a value in a text": "eval('__import__(\"os\")'); print('ESCAPED')",
    # objects
    "a class": "().__class__; print('ESCAPED')",
    "a class by its name": "getattr((), '__cl' + 'ass__'); print('ESCAPED')",
    "bases": "type(()).__bases__; print('ESCAPED')",
    "subclasses": "object.__subclasses__(); print('ESCAPED')",
    "subclasses by type": "type.__subclasses__(type); print('ESCAPED')",
    "the order of bases": "int.__mro__; print('ESCAPED')",
    "a made class": "type('X', (), {}).__mro__; print('ESCAPED')",
    "globals of a function": "(lambda: 0).__globals__; print('ESCAPED')",
    "code of a function": "(lambda: 0).__code__; print('ESCAPED')",
    "the cells of a function": (
        "def f():\n  x = 1\n  return lambda: x\nf().__closure__; print('ESCAPED')"
    ),
    "the owner of a function": "print.__self__; print('ESCAPED')",
    "the module of a function": "len.__module__; print('ESCAPED')",
    "globals of a method": "class A:\n  def f(self): pass\nA.f.__globals__; print('ESCAPED')",
    "the dictionary of a module": "import os; os.__dict__; print('ESCAPED')",
    "the loader of a module": "import os; os.__loader__; print('ESCAPED')",
    "the modules of a module": "import random; random._os; print('ESCAPED')",
    "a module within a module": "import json; json.codecs; print('ESCAPED')",
    "frames of an error": (
        "try: 1 / 0\nexcept Exception as error: error.__traceback__.tb_frame; print('ESCAPED')"
    ),
    "frames": "import sys; sys._getframe(); print('ESCAPED')",
    "the frame of a coroutine": "async def f(): pass\nf().cr_frame; print('ESCAPED')",
    "a class by a format": "'{0.__class__}'.format(1); print('ESCAPED')",
    "globals by a format": "'{0.__globals__}'.format(lambda: 0); print('ESCAPED')",
    "an index by a format": "class A:\n  x = {}\n'{0.x.__class__}'.format(A()); print('ESCAPED')",
    "a class by pattern": "match 1:\n  case object(__class__=c): print('ESCAPED')",
    "a descriptor's owner": "property.fget.__objclass__; print('ESCAPED')",
    "what reduces": "(1).__reduce_ex__(2); print('ESCAPED')",
    "another class": (
        "class A: pass\na = A()\na.__class__ = int\nif isinstance(a, int): print('ESCAPED')"
    ),
    "methods of a type": "str.__init_subclass__; print('ESCAPED')",
    "objects of the host": "NOT_HANDLED; print('ESCAPED')",
    # what it may take
    "memory": "x = 'a' * 10**9; print('ESCAPED')",
    "memory in parts": (
        "x = []\nwhile len(x) < 500: x.append('a' * 10**6 + str(len(x)))\nprint('ESCAPED')"
    ),
    "a power": "x = 10 ** 10 ** 9; print('ESCAPED')",
    "a shift": "x = 1 << 10**10; print('ESCAPED')",
    "a width": "x = f'{1:1000000000}'; print('ESCAPED')",
    "an old width": "x = '%1000000000d' % 1; print('ESCAPED')",
    "a filled text": "x = 'x'.ljust(10**10); print('ESCAPED')",
    "a product": "x = [0] * 10**9; print('ESCAPED')",
    "what repeats": "import itertools\nx = list(itertools.repeat(1, 10**8)); print('ESCAPED')",
    "replacements": "x = ('a' * 10**5).replace('a', 'a' * 10**5); print('ESCAPED')",
    "depth": "def f(): f()\nf(); print('ESCAPED')",
    "depth of a text": "x = " + "(" * 5000 + "1" + ")" * 5000 + "; print('ESCAPED')",
    "depth of a sum": "x = 1" + " + 1" * 20_000 + "\nprint('ESCAPED')",
    "depth of JSON": "import json; json.loads('[' * 10**5); print('ESCAPED')",
    "a limit of its own": "import sys; sys.setrecursionlimit(10**9); print('ESCAPED')",
    "digits": "int('9' * 10**6); print('ESCAPED')",
    "output": "for i in range(10**5): print('x' * 100)\nprint('ESCAPED')",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("server") / "secret"
    path.write_text("ESCAPED")
    limits = Limits(seconds=60.0, memory=16 * MB, output=2_000)
    names = {"SECRET": str(path), "PID": str(os.getpid())}
    with (
        asyncio.Runner(loop_factory=SteadyLoop) as runner,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setenv("DRAGOMAN_SECRET", "ESCAPED")
        python = Python(limits=limits)
        container = runner.run(python.open({}, [], ANYONE)).container

        def run(code: str) -> str:
            """What it gives; a traceback that quotes it says nothing."""
            for name, value in names.items():
                code = code.replace("{" + name + "}", value)
            code = code.replace("'ESCAPED'", "'ESC' + 'APED'")
            return runner.run(python.run(container, code))

        yield run
        assert path.read_text() == "ESCAPED"
        runner.run(python.close())


def test_an_attempt_that_succeeds_is_noticed(run) -> None:
    assert run("print('ESCAPED', [1][0])") == "ESCAPED 1"


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_attempts_fail(run, attempt) -> None:
    run("kept = 'kept'")
    assert "ESCAPED" not in run(ATTEMPTS[attempt])
    assert run("kept") == "'kept'"  # nor does it harm the interpreter


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "import math; math.factorial(10**7)",
        "sum(range(10**15))",
        "import re; re.match(r'(a|aa)+$', 'a' * 10**5 + 'b') or any(iter(int, 1))",
        "x = list(range(10**5)); x",
    ],
)
async def test_what_never_ends_is_ended(code) -> None:
    python = Python(limits=Limits(seconds=0.1, memory=16 * MB))
    container = (await python.open({}, [], ANYONE)).container
    await python.run(container, "x = 1")
    assert await python.run(container, code)
    assert await python.run(container, "1 + 1")
    await python.close()


@pytest.mark.parametrize(("own", "given"), [(0, NICE), (19, 19)])
async def test_code_has_no_higher_priority_than_the_server(own, given, monkeypatch) -> None:
    """Which no process may give to another."""
    told: list[int] = []
    monkeypatch.setattr(os, "nice", lambda _: own)
    monkeypatch.setattr(os, "setpriority", lambda *about: told.append(about[2]))
    python = Python("monty")
    session = await python.open({}, [], ANYONE)
    assert await python.run(session.container, "1 + 1") == "2"
    assert told == [given]
    await python.close()
