"""CPython in bubblewrap: what it keeps, how it ends, and what code tries in it in vain.

Each attempt prints ESCAPED when it has what it wants. Those that harm nobody are run without the
sandbox too, to see that they would be noticed.
"""

import asyncio
import gc
import os
import re
import select
import socket
import subprocess
import sys
import textwrap
import time
from copy import copy
from pathlib import Path

import pytest
import uvloop

from dragoman.core.interfaces import ANYONE
from dragoman.tools.python import NO_OUTPUT, Python
from dragoman.tools.sandbox import ARCHITECTURES, IGNORED, MB, Bubblewrap, Limits, rules
from tests.steady import SteadyLoop

LIMITS = Limits(seconds=60.0, memory=256 * MB, disk=2 * MB, output=2_000)
try:
    FOUND = Bubblewrap(LIMITS)
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)


def made(limits: Limits = LIMITS) -> Python:
    """The tool, without another look whether it can be."""
    python = Python()
    python.sandbox = sandbox = copy(FOUND)
    sandbox.limits = limits
    return python


class Sandbox:
    """One container, for all tests of this module."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner, self.python = runner, made()
        self.session = runner.run(self.python.open({}, [], ANYONE))
        self.container = self.session.container

    def __call__(self, code: str) -> str:
        return self.runner.run(self.python.run(self.container, code))


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    """A file, a variable and a port of the server, which are nobody's business."""
    path = tmp_path_factory.mktemp("server") / "secret"
    path.write_text("ESCAPED")
    path.chmod(0o644)
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        pytest.MonkeyPatch.context() as patched,
    ):
        name = f"dragoman-{os.getpid()}"
        unix.bind(f"\0{name}")
        unix.listen()
        patched.setenv("DRAGOMAN_SECRET", "ESCAPED")
        yield {
            "PATH": str(path),
            "PORT": str(tcp.getsockname()[1]),
            "UNIX": name,
            "PID": str(os.getpid()),
            "FOLDER": str(Path(__file__).parent),
        }


@pytest.fixture(scope="module")
def sandbox():
    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        shared = Sandbox(runner)
        yield shared
        runner.run(shared.python.close())


# ---- an interpreter ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("x = 40", NO_OUTPUT),
        ("x = 41\nx + 1", "42"),
        ("print('a'); print('b', file=__import__('sys').stderr)\n'c'", "a\nb\n'c'"),
        ("None", NO_OUTPUT),
        ("2 + 2\nx = 1", NO_OUTPUT),
        ("import os\n_ = os.write(1, 'é\\n'.encode())", "é"),
        ("exit()", NO_OUTPUT),
        ("raise SystemExit('no')", "SystemExit: no"),
        ("print('\\ud800')", "?"),
        ("print('\\0')", "\0"),
        ("a\0b", "ValueError: source code string cannot contain null bytes"),
        ("input()", "EOFError: EOF when reading a line"),
        ("'a' * 5_000", f"'{'a' * 1_999}\n(Cut: the output is longer than 2,000 characters.)"),
        ("open('file', 'w').write('here'); open('/tmp/file').read()", "'here'"),
        ("import os; os.getcwd(), os.getuid(), os.getpid(), os.uname()[1]", "sandbox"),
        ("import os; os.sched_getscheduler(0) == os.SCHED_OTHER, os.nice(0) >= 17", "(True, True)"),
        ("import threading as t; a = t.Thread(target=print, args='T'); a.start(); a.join()", "T"),
        ("import asyncio; asyncio.run(asyncio.sleep(0, 'slept'))", "'slept'"),
        ("import sqlite3, json, random, zlib, decimal; random.random() < 1", "True"),
    ],
)
def test_what_code_gives(sandbox, code, output) -> None:
    assert output in sandbox(code)


def test_an_interpreter_without_memory_is_ended(sandbox) -> None:
    sandbox("x = []\ntry:\n  while True: x += [x]\nexcept MemoryError: pass")
    sandbox("y = []\ntry:\n  while True: y = [y]\nexcept MemoryError: pass")
    assert "gone" in sandbox("1 + 1")
    assert sandbox("1 + 1") == "2"


def test_state_stays_and_tracebacks_are_those_of_the_code(sandbox) -> None:
    sandbox("def f(n):\n    return 1 / n")
    assert sandbox("f(2)") == "0.5"
    lines = sandbox("f(0)").splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[2] == "    f(0)"
    assert lines[4] == "    return 1 / n"
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert not [line for line in lines if "string" in line or "interpret" in line]
    lines = sandbox("x = (").splitlines()
    assert "call" in lines[0]
    assert lines[-1] == "SyntaxError: '(' was never closed"


def test_memory_is_limited_with_an_error_in_a_sentence(sandbox) -> None:
    output = sandbox("kept = 1\nx = bytearray(10**9)")
    assert output.endswith("MemoryError\nThe interpreter may take 256 MB.")
    assert sandbox("kept") == "1"


@pytest.mark.parametrize(
    "code",
    [
        "import os; print('before'); os._exit(1)",
        "import ctypes; print('before'); ctypes.string_at(0)",
    ],
)
def test_an_interpreter_that_dies_is_replaced(sandbox, code) -> None:
    assert sandbox(code) == "before\nThe interpreter ended. What earlier calls defined is gone."
    assert sandbox("1 + 1") == "2"


def test_time_is_limited_and_the_loop_goes_on() -> None:
    async def main() -> None:
        python = made(Limits(seconds=2, output=100))
        container = (await python.open({}, [], ANYONE)).container
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.ensure_future(count())
        code = "import signal as s\nfor n in range(1, 32):\n  if n not in (9, 19): "
        code += "s.signal(n, s.SIG_IGN)\nprint('before')\nwhile True: pass"
        late = await python.run(container, code)
        assert late == (
            "before\nIt did not end within 2 seconds, and was stopped. "
            "What earlier calls defined is gone."
        )
        flood = await python.run(container, "import os\nwhile True: os.write(1, bytes(10**6))")
        assert flood.endswith(
            "It wrote too much, and was stopped. What earlier calls defined is gone."
        )
        assert turns > 20
        counting.cancel()
        await python.close()

    asyncio.run(main())


def inside(python: Python) -> int:
    """A descriptor of an interpreter's process."""
    (container,) = python._containers.values()
    return os.dup(container.interpreter._inside)


def ended(descriptor: int) -> bool:
    """Whether a process ends, in a while."""
    try:
        return bool(select.select([descriptor], [], [], 60)[0])
    finally:
        os.close(descriptor)


def test_a_run_that_is_cancelled_ends_at_once() -> None:
    async def main() -> None:
        python = made()
        container = (await python.open({}, [], ANYONE)).container
        await python.run(container, "x = 1")
        process = inside(python)
        run = asyncio.ensure_future(python.run(container, "while True: pass"))
        await asyncio.sleep(0.05)
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()
        assert ended(process)
        again = await python.run(container, "'x' in globals()")
        assert again == "(A new interpreter. What earlier calls defined is gone.)\nFalse"
        process = inside(python)
        await python.close()
        assert ended(process)

    asyncio.run(main())


def test_a_start_that_is_cancelled_leaves_no_process(sandbox) -> None:
    """bubblewrap's child waits for it, and did so for ever where it was killed at that moment."""

    async def main() -> None:
        groups: list[int] = []
        for after in range(2, 22, 2):
            interpreter = sandbox.python.sandbox.interpreter()
            run = asyncio.ensure_future(interpreter.run("1"))
            await asyncio.sleep(after / 1000)
            groups += [interpreter._process.pid] if interpreter._process else []
            run.cancel()
            await asyncio.wait([run])
            if not run.cancelled():  # it had ended: a fast machine needs fewer milliseconds
                assert run.result() == "1"
                await interpreter.close()
        assert groups
        for _ in range(500):
            if not any(map(exists, groups)):
                break
            await asyncio.sleep(0.01)
        left = list(filter(exists, groups))
        for group in left:
            os.killpg(group, 9)
        assert not left

    asyncio.run(main())


def test_starts_that_are_cancelled_close_no_descriptors_of_others(sandbox) -> None:
    """Transports of uvloop did, where one was cancelled as it was made."""

    async def main() -> None:
        held = list[tuple[int, int]]()
        for turns in range(60):
            interpreter = sandbox.python.sandbox.interpreter()
            run = asyncio.ensure_future(interpreter.run("1"))
            for _ in range(turns % 6):
                await asyncio.sleep(0)
            run.cancel()
            for _ in range(5):
                held.append((new := os.memfd_create("other"), os.fstat(new).st_ino))
                await asyncio.sleep(0)
            await asyncio.wait([run])
        del run, interpreter
        gc.collect()
        for descriptor, node in held:
            assert os.fstat(descriptor).st_ino == node
            os.close(descriptor)

    uvloop.run(main())


def exists(group: int) -> bool:
    """Whether a group has processes."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_nothing_runs_between_calls(sandbox) -> None:
    sandbox(
        "import threading\nn = 0\ndef count():\n  global n\n  while True: n += 1\n"
        "threading.Thread(target=count, daemon=True).start()"
    )
    first = int(sandbox("n"))
    copy = inside(sandbox.python)
    (pid,) = re.findall(r"Pid:\s+(\d+)", Path(f"/proc/self/fdinfo/{copy}").read_text())
    os.close(copy)
    for _ in range(1000):  # the system stops it when it gets there
        tasks = Path(f"/proc/{pid}/task").glob("*/stat")
        states = {task.read_text().rpartition(")")[2].split()[0] for task in tasks}
        if states == {"T"}:
            break
        time.sleep(0.01)
    assert states == {"T"}
    assert int(sandbox("n")) >= first
    sandbox("import os; os._exit(0)")


SERVER = """
import asyncio, os, sys
from dragoman.core.interfaces import ANYONE
from dragoman.tools.python import Python

async def main():
    python = Python("bubblewrap")
    container = (await python.open({}, [], ANYONE)).container
    await python.run(container, "import ctypes; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)")
    monitor = container.interpreter._process.pid
    print(open(f"/proc/{monitor}/task/{monitor}/children").read(), flush=True)
    await python.run(container, "while True: pass")

asyncio.run(main())
"""


def test_no_interpreter_outlives_the_server() -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    with server:
        process = os.pidfd_open(int(server.stdout.readline()))
        server.kill()
        assert ended(process)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_of_each_architecture_is_a_program(machine) -> None:
    lines = [rules(machine)[place : place + 8] for place in range(0, len(rules(machine)), 8)]
    for place, line in enumerate(lines):
        code, jumps = line[0], (line[2], line[3])
        assert code in (0x20, 0x15, 0x35, 0x45, 0x06)
        assert place + 1 + max(jumps) < len(lines) or code == 0x06
    assert lines[-1] == bytes.fromhex("0600 00 00 0000ff7f")


# ---- attempts ----------------------------------------------------------------------------------

SYSTEM = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
machine = os.uname().machine
def system(x86, arm, *args):
    number = {"x86_64": x86, "aarch64": arm}[machine]
    args = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) for a in args]
    return libc.syscall(ctypes.c_long(number), *args)
def escaped(result):
    if result >= 0: print('ESCAPED')
"""

HARMLESS = {
    "a file of the system": "if open('/etc/passwd').read(): print('ESCAPED')",
    "a file of the server": "print(open('{PATH}').read())",
    "the folder of the program": "import os; os.listdir('{FOLDER}'); print('ESCAPED')",
    "home folders": "import os; os.listdir('/home'); print('ESCAPED')",
    "the environment of the process": (
        "if b'ESC' b'APED' in open('/proc/self/environ', 'rb').read(): print('ESCAPED')"
    ),
    "the environment": "import os; print(os.environ['DRAGOMAN_SECRET'])",
    "the environment of C": (
        "import ctypes; get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_char_p\n"
        "print((get(b'DRAGOMAN_SECRET') or b'').decode())"
    ),
    "the memory of the process": "open('/proc/self/mem', 'rb'); print('ESCAPED')",
    "the root of the first process": "import os; os.stat('/proc/1/status'); print('ESCAPED')",
    "settings of the kernel": "import os; os.listdir('/proc/sys'); print('ESCAPED')",
    "devices of the system": "import os; os.listdir('/sys/class'); print('ESCAPED')",
    "a link to a file": (
        "import os; os.symlink('{PATH}', f'link{os.getpid()}')\n"
        "try: print(open(f'link{os.getpid()}').read())\n"
        "finally: os.unlink(f'link{os.getpid()}')"
    ),
    "a link out of the folder": (
        "import os; name = f'up{os.getpid()}'; os.symlink('../' * 30 + '{PATH}', name)\n"
        "try: print(open(name).read())\n"
        "finally: os.unlink(name)"
    ),
    "a path upwards": "print(open('../' * 30 + '{PATH}').read())",
    "a folder's descriptor": (
        "import os; up = os.open('/', os.O_PATH)\n"
        "print(os.read(os.open('{PATH}'.lstrip('/'), os.O_RDONLY, dir_fd=up), 99).decode())"
    ),
    "the terminal": (
        "import os\nfor name in ('/dev/ptmx', '/dev/pts', '/dev/shm'):\n"
        "  if os.path.exists(name): print('ESCAPED')"
    ),
    "the server over TCP": (
        "import socket; socket.create_connection(('127.0.0.1', {PORT}), 5); print('ESCAPED')"
    ),
    "the server over HTTP": (
        "import http.client as h; h.HTTPConnection('127.0.0.1', {PORT}, timeout=5).connect()\n"
        "print('ESCAPED')"
    ),
    "the server over a socket of Unix": (
        "import socket; socket.socket(socket.AF_UNIX).connect('\\0{UNIX}'); print('ESCAPED')"
    ),
    "a server with asyncio": (
        "import asyncio\nserver = asyncio.run(asyncio.start_server(print, '127.0.0.1', 0))\n"
        "if server.sockets: print('ESCAPED')"
    ),
    "datagrams": (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM)\n"
        "s.sendto(b'', ('127.0.0.1', {PORT})); print('ESCAPED')"
    ),
    "the kernel over netlink": "import socket; socket.socket(16, 3, 0); print('ESCAPED')",
    "a socket by its number": SYSTEM + "escaped(system(41, 198, 2, 1, 0))",
    "large buffers of sockets": (
        "import socket\npair = socket.socketpair()\n"
        "pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**30)\nprint('ESCAPED')"
    ),
    "a child": (
        "import os; pid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0); print('ESCAPED')"
    ),
    "a child by its number": (
        SYSTEM + "pid = system(56, 220, 17, 0, 0, 0, 0)\nif not pid: os._exit(0)\nescaped(pid)"
    ),
    "a child the new way": (
        SYSTEM + "arguments = ctypes.create_string_buffer(64)\narguments[32] = 17\n"
        "pid = system(435, 435, ctypes.addressof(arguments), 64)\n"
        "if not pid: os._exit(0)\nescaped(pid)"
    ),
    "a program": "import subprocess as s; s.run(['/bin/true'], check=True); print('ESCAPED')",
    "Python once more": (
        "import subprocess, sys; subprocess.run([sys.executable, '-V'], check=True)\n"
        "print('ESCAPED')"
    ),
    "a shell": "import os; print('ESCAPED' if os.system('true') == 0 else '')",
    "a program by posix_spawn": (
        "import os; os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0); print('ESCAPED')"
    ),
    "multiprocessing": (
        "import multiprocessing as m; p = m.get_context('fork').Process(target=int)\n"
        "p.start(); p.join(); print('ESCAPED')"
    ),
    "the server's process": "import os; os.kill({PID}, 0); print('ESCAPED')",
    "the parent": "import os; os.kill(os.getppid() or {PID}, 0); print('ESCAPED')",
    "a descriptor of the server's process": SYSTEM + "escaped(system(434, 434, {PID}, 0))",
    "memory that is a file": "import os; os.memfd_create('x'); print('ESCAPED')",
    "shared memory": (
        SYSTEM + "id = system(29, 194, 0, 4096, 0o1600)\nescaped(id)\n"
        "if id >= 0: system(31, 195, id, 0, 0)"
    ),
    "a queue": SYSTEM
    + "id = system(68, 186, 0, 0o1600)\nescaped(id)\nif id >= 0: system(71, 187, id, 0, 0)",
    "watches": SYSTEM + "escaped(system(294, 26, 0))",
    "another personality": SYSTEM + "escaped(system(135, 92, 0xFFFFFFFF))",
    "more of what it may take": (
        "import resource as r\n"
        "if r.getrlimit(r.RLIMIT_CORE)[1] or r.getrlimit(r.RLIMIT_AS)[1] < 0: print('ESCAPED')"
    ),
    "to outlive the server": SYSTEM + "escaped(libc.prctl(1, 0, 0, 0, 0))",
    "many descriptors": "import os\nfor _ in range(100): os.dup(1)\nprint('ESCAPED')",
    "the program's own modules": "import dragoman; print('ESCAPED')",
    "its packages": "import msgspec; print('ESCAPED')",
}
"""What succeeds where there is no sandbox, and does nobody harm."""

HARMFUL = {
    "passwords": "import os; os.stat('/etc/shadow'); print('ESCAPED')",
    "a program for core dumps": (
        "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x'); print('ESCAPED')"
    ),
    "a file beside Python's": "open('/usr/lib/escaped', 'w'); print('ESCAPED')",
    "a module of Python": "import os; open(os.__file__, 'a'); print('ESCAPED')",
    "the rights of a module": "import os; os.chmod(os.__file__, 0o777); print('ESCAPED')",
    "a file in the root": "open('/escaped', 'w'); print('ESCAPED')",
    "a file among devices": "open('/dev/escaped', 'w'); print('ESCAPED')",
    "a file beside the folder": "open('/mnt/escaped', 'w'); print('ESCAPED')",
    "a hard link out": "import os; os.link(os.__file__, 'os.py'); print('ESCAPED')",
    "a device": "import os; os.mknod('disk', 0o60600, os.makedev(254, 0)); print('ESCAPED')",
    "disks and memory": (
        "import os\nfor name in 'mem kmsg sda vda kvm fuse tty console net/tun vsock'.split():\n"
        "  if os.path.exists(f'/dev/{name}'): print('ESCAPED')"
    ),
    "the host over vsock": SYSTEM + "escaped(system(41, 198, 40, 1, 0))",
    "ciphers of the kernel": SYSTEM + "escaped(system(41, 198, 38, 5, 0))",
    "packets": SYSTEM + "escaped(system(41, 198, 17, 3, 0))",
    "raw packets": SYSTEM + "escaped(system(41, 198, 2, 3, 1))",
    "a pair of another family": (
        SYSTEM + "escaped(libc.socketpair(30, 1, 0, ctypes.create_string_buffer(8)))"
    ),
    "a ring of requests": SYSTEM + "escaped(system(425, 425, 1, 0))",
    "a program in place of this": "import os, sys; os.execv(sys.executable, ['x', '-V'])",
    "a program by descriptor": (
        SYSTEM
        + "fd = os.open(sys.executable, os.O_PATH)\nescaped(system(322, 281, fd, b'', 0, 0, 4096))"
    ),
    "a fork bomb": "import os\nwhile True:\n  os.fork(); print('ESCAPED')",
    "a bomb of threads": (
        "import threading, time\nstop = threading.Event(); made = []\ntry:\n"
        "  for _ in range(200):\n"
        "    made.append(threading.Thread(target=stop.wait)); made[-1].start()\n"
        "  print('ESCAPED')\nfinally: stop.set()"
    ),
    "a thread with users of its own": SYSTEM + "escaped(system(56, 220, 0x10010F00, 0, 0, 0, 0))",
    "all processes": "import os, signal\nos.kill(-1, signal.SIGKILL)\nprint('ESCAPED')",
    "ptrace": SYSTEM + "escaped(libc.ptrace(0, 0, 0, 0))",
    "ptrace of the server": SYSTEM + "escaped(libc.ptrace(16, {PID}, 0, 0))",
    "the memory of the server": (SYSTEM + "escaped(system(310, 270, {PID}, 0, 0, 0, 0, 0))"),
    "other users": SYSTEM + "escaped(libc.unshare(0x10000000))",
    "other mounts": SYSTEM + "escaped(libc.unshare(0x00020000))",
    "the namespaces of the server": SYSTEM + "escaped(libc.setns(0, 0))",
    "a mount": SYSTEM + "escaped(libc.mount(b'proc', b'/mnt/data', b'proc', 0, None))",
    "a mount the new way": SYSTEM + "escaped(system(430, 430, b'tmpfs', 0))",
    "a copy of a mount": SYSTEM + "escaped(system(428, 428, -100, b'/', 1))",
    "a root that may be written": SYSTEM + "escaped(libc.mount(None, b'/', None, 32 | 4096, None))",
    "the end of a mount": SYSTEM + "escaped(libc.umount2(b'/mnt/data', 2))",
    "another root": "import os; os.mkdir('r'); os.chroot('r'); print('ESCAPED')",
    "a pivot of the root": SYSTEM + "escaped(system(155, 41, b'.', b'.'))",
    "files by handle": SYSTEM + "escaped(system(304, 265, -100, b'x' * 32, 0))",
    "to be root": "import os; os.setuid(0); print('ESCAPED')",
    "to be another": "import os; os.setresuid(0, 0, 0); print('ESCAPED')",
    "other groups": "import os; os.setgroups([0]); print('ESCAPED')",
    "capabilities that are left": (
        SYSTEM + "import struct\ndata = ctypes.create_string_buffer(24)\n"
        "libc.capget(struct.pack('=II', 0x20080522, 0), data)\n"
        "if any(data.raw) or libc.prctl(47, 2, 21, 0, 0) == 0: print('ESCAPED')"
    ),
    "capabilities": (
        SYSTEM + "import struct\n"
        "escaped(libc.capset(struct.pack('=II', 0x20080522, 0), b'\\xff' * 24))"
    ),
    "keys of the kernel": SYSTEM + "escaped(system(250, 219, 0, -3, 1))",
    "a program in the kernel": SYSTEM + "escaped(system(321, 280, 0, 0, 0))",
    "counters of the kernel": SYSTEM + "escaped(system(298, 241, 0, 0, -1, -1, 0))",
    "faults of the kernel": SYSTEM + "escaped(system(323, 282, 1))",
    "the kernel's log": SYSTEM + "escaped(system(103, 116, 10, 0, 0))",
    "a module in the kernel": SYSTEM + "escaped(system(313, 273, 0, b'', 0))",
    "another kernel": SYSTEM + "escaped(system(246, 104, 0, 0, 0, 0))",
    "to restart the machine": SYSTEM + "escaped(libc.reboot(0))",
    "the machine's name": "import socket; socket.sethostname('escaped'); print('ESCAPED')",
    "the time": "import time; time.clock_settime(0, 0); print('ESCAPED')",
    "swap": SYSTEM + "escaped(libc.swapon(b'/dev/zero', 0))",
    "the filter's end": SYSTEM + "escaped(libc.prctl(22, 0, 0, 0, 0))",
    "higher limits": (
        "import resource as r\n"
        "for limit in (r.RLIMIT_AS, r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CPU):\n"
        "  try: r.setrlimit(limit, (r.RLIM_INFINITY, r.RLIM_INFINITY)); print('ESCAPED')\n"
        "  except (ValueError, OSError): pass"
    ),
    "a larger share": "import os; os.nice(-10); print('ESCAPED')",
    "a share before all others": (
        "import os, resource as r; assert r.getrlimit(14) == (0, 0), 'ESCAPED'\n"  # RTPRIO
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); print('ESCAPED')"
    ),
    "a large file": (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with open('large', 'wb', 0) as file:\n  for _ in range(9): file.write(bytes(2**20))\n"
        "print('ESCAPED')"
    ),
    "a file of holes": (
        "import os; open('holes', 'w'); os.truncate('holes', 2**40); print('ESCAPED')"
    ),
    "large files": (
        "import os\nfor n in range(9):\n  with open(f'part{n}', 'wb') as f: f.write(bytes(2**20))\n"
        "print('ESCAPED')"
    ),
    "many files": (
        "import os\ntry:\n  for n in range(5000): os.close(os.open(f'many{n}', os.O_CREAT))\n"
        "  print('ESCAPED')\nfinally:\n  for n in os.listdir(): os.path.isdir(n) or os.unlink(n)"
    ),
    "memory": "x = bytearray(10**9); print('ESCAPED')",
    "memory in parts": "x = []\nwhile len(x) < 99: x.append(bytearray(10**7))\nprint('ESCAPED')",
    "memory that is mapped": "import mmap; mmap.mmap(-1, 10**9); print('ESCAPED')",
    "memory that is locked": SYSTEM + "escaped(libc.mlockall(3))",
    "much output": "print('x' * 10**7)\nprint('ESCAPED')",
    "depth": "def f(): return f()\nf(); print('ESCAPED')",
    "the modules of the server": (
        "import sys; sys.path += ['{FOLDER}', '{FOLDER}/../../src']\n"
        "import dragoman; print('ESCAPED')"
    ),
    "objects of the server": (
        "import gc, types\nfor each in gc.get_objects():\n"
        "  if isinstance(each, types.CodeType) and 'packages/' in each.co_filename:\n"
        "    print('ESCAPED')"
    ),
    "the frames of the server": (
        "import sys\nframe = sys._getframe()\nwhile frame:\n"
        "  if 'dragoman' in frame.f_code.co_filename: print('ESCAPED')\n  frame = frame.f_back"
    ),
    "packages": "import ensurepip; ensurepip.bootstrap(); print('ESCAPED')",
    "what is typed": (
        "import fcntl\nfor n in (0, 1, 2, 3): \n"
        "  try: fcntl.ioctl(n, 0x5412, b'x'); print('ESCAPED')\n  except OSError: pass"
    ),
    "other messages of the server": (
        "import os; os.set_blocking(3, False); print(os.read(3, 9)); print('ESCAPED')"
    ),
}
"""What is only tried in the sandbox."""

DEADLY = {
    "another architecture's calls": (
        SYSTEM + "import mmap\ncode = mmap.mmap(-1, 4096, prot=7)\n"
        "code.write(bytes.fromhex('b802000000cd80c3' if machine == 'x86_64' else '000000d4'))\n"
        "place = ctypes.addressof(ctypes.c_char.from_buffer(code))\n"
        "pid = ctypes.CFUNCTYPE(ctypes.c_int)(place)()\n"
        "print('ESCAPED' if pid >= 0 else '', flush=True)"
    ),
    "the end of the stack": "import faulthandler; faulthandler._stack_overflow(); print('ESCAPED')",
    "a forged end": (
        "import sys, os\nos.write(1, b'\\0' + b'0' * 32 + b'\\n')\n"
        "for fd in range(64):\n  try: os.close(fd)\n  except OSError: pass\nprint('ESCAPED')"
    ),
}
"""What the interpreter does not survive, or may not."""


def filled(code: str, names: dict[str, str]) -> str:
    """The code with the names of what it is about. A traceback that quotes it says nothing."""
    for name, value in names.items():
        code = code.replace("{" + name + "}", value)
    return code.replace("ESCAPED", "ESC' 'APED")


def test_calls_that_act_on_the_disk_of_all_do_nothing(sandbox) -> None:
    code = f"{SYSTEM}\n[system(*numbers, -1, 0, 0, 4) for numbers in {IGNORED}]"
    assert sandbox(code) == str([0] * len(IGNORED))


@pytest.mark.parametrize("attempt", [*HARMLESS, *HARMFUL])
def test_attempts_fail(sandbox, secret, attempt) -> None:
    before = sandbox.container.interpreter
    output = sandbox(filled({**HARMLESS, **HARMFUL}[attempt], secret))
    assert "ESCAPED" not in output
    assert sandbox.container.interpreter is before or before is None


@pytest.mark.parametrize("attempt", DEADLY)
def test_attempts_that_end_the_interpreter_fail(sandbox, attempt) -> None:
    assert "ESCAPED" not in sandbox(filled(DEADLY[attempt], {}))
    assert "2" in sandbox("1 + 1").split()


def test_the_attempts_would_be_noticed(secret, tmp_path) -> None:
    """Without a sandbox, those that harm nobody succeed."""
    program = "\n".join(
        f"print({name!r})\ntry: exec({filled(code, secret)!r}, {{}})\n"
        f"except BaseException as error: print(type(error), error)"
        for name, code in HARMLESS.items()
        if name not in PRIVILEGED
    )
    done = subprocess.run(
        [sys.executable, "-u", "-c", textwrap.dedent(program)],  # in order with what it starts
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    got: dict[str, str] = {}
    name = ""
    for line in done.stdout.splitlines():
        name = line if line in HARMLESS else name
        got[name] = f"{got.get(name, '')}\n{line}"
    assert not {name: text for name, text in got.items() if "ESCAPED" not in text}


PRIVILEGED = {"many descriptors"}
"""What depends on the limits of whoever runs the tests."""
