"""Sandboxes for Python that a model wrote: Monty, and CPython in bubblewrap.

Monty is an interpreter of a part of Python that has no system to reach. bubblewrap gives CPython
namespaces of its own, a root that is read-only and holds little but Python, and an empty
environment. That process then limits itself before it reads any code: a folder in memory, rlimits,
no capabilities, and a seccomp filter that forbids new processes, so that the limits of one
process are those of all. Between calls it is stopped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import platform
import re
import secrets
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from .run import ToolError

_log = logging.getLogger("dragoman")

MB = 1024 * 1024
SECONDS = 120.0
"""Wall-clock seconds of one call; what models that were trained with such a tool expect."""
MEMORY = 512 * MB
"""Bytes of memory of one interpreter in bubblewrap."""
DISK = 64 * MB
"""Bytes of its files, which are in memory, too."""
OUTPUT = 50_000
"""Characters that one call may write."""
NICE = 10
"""The priority of code in Monty, which has a tenth of what others have on a busy machine."""
START_SECONDS = 60.0
"""Seconds for an interpreter to start, on a busy machine."""
NOT_STARTED = (
    "The sandbox could not be started; this is the server's fault. Answer without running code."
)
LATE = "It did not end within {:g} seconds, and was stopped."


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of code: wall-clock seconds of a call, bytes of memory of a container and of its
    files, and characters of a call's output. Monty has no files."""

    seconds: float = SECONDS
    memory: int = MEMORY
    disk: int = DISK
    output: int = OUTPUT


class LostError(Exception):
    """An interpreter ended, with all its definitions: the reason, in a sentence, and its output
    until then."""

    def __init__(self, why: str, output: str = "") -> None:
        super().__init__(why)
        self.output = output


class Interpreter(Protocol):
    """An interpreter in a sandbox, which starts with its first run."""

    async def run(self, code: str) -> str:
        """The output of code, and the value of its last line, or the traceback of its error.
        Raises LostError. If cancelled, the interpreter is closed."""
        ...

    async def close(self) -> None:
        """Kill it at once."""
        ...


class Sandbox(Protocol):
    """Creates interpreters."""

    about: str

    def interpreter(self) -> Interpreter:
        """A new one."""
        ...

    async def close(self) -> None:
        """Close, when the server ends; its interpreters have been closed."""
        ...


def fitted(output: str, most: int) -> str:
    """The output of a call; one that is too long is cut, with a note."""
    if len(output) <= most:
        return output.rstrip("\n")
    return f"{output[:most]}\n(Cut: the output is longer than {most:,} characters.)"


# ---- Monty -----------------------------------------------------------------------------------

NO_MONTY = (
    "The Python tool needs Monty, its sandbox: pip install '.[tools]' in the checkout; or use the "
    "other sandbox, python=bubblewrap."
)
_TRIAL = "from pydantic_monty import Monty\nwith Monty() as m, m.checkout() as s: s.feed_run('1')"
HEAP = 64 * MB
"""Bytes of memory of one in Monty, which sends the value of the last line to this process."""
NODES = 20_000
"""Objects of a value that is shown, with the characters of its strings, and of others each 16th."""
_NOT_SHOWN = "(The value of the last line cannot be shown: {})"


class Monty:
    """Monty: an interpreter of a part of Python, in processes without environment that can neither
    open files nor connections. Raises ImportError where it is not installed."""

    about = (
        "Run Python code and read what it prints, and the value of its last line. What it defines "
        "is there in later calls. It is a part of Python: functions, comprehensions, simple "
        "classes, dataclasses, match, async; no generators (yield), no inheritance, no del. It has "
        "the modules asyncio, base64, bisect, collections, copy, csv, dataclasses, datetime, "
        "decimal, functools, hashlib, itertools, json, math, random, re, time, tomllib, typing and "
        "unicodedata. There are no files, no network and no other packages."
    )

    def __init__(self, limits: Limits, most: int) -> None:
        if find_spec("pydantic_monty") is None:
            raise ImportError(NO_MONTY)
        self.limits = limits
        self.package = import_module("pydantic_monty")
        # Elsewhere: it starts threads, after which the workers of a server could not be forked.
        trial = sys.executable, "-Pc", _TRIAL
        try:
            subprocess.run(trial, capture_output=True, check=True, timeout=START_SECONDS)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            words = getattr(error, "stderr", None) or str(error).encode()
            reason = words.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise ImportError(f"{NO_MONTY} Its program does not run: {reason}") from None
        # A process serves one container, and is never reused.
        self._pool = self.package.AsyncMonty(max_processes=most, max_checkouts_per_worker=1)
        self._lock, self._open = asyncio.Lock(), False

    def interpreter(self) -> Interpreter:
        """A new one."""
        return _MontyInterpreter(self)

    async def session(self) -> Any:
        """A process of its own, with state."""
        try:
            async with self._lock:
                if not self._open:
                    await self._pool.__aenter__()
                    self._open = True
            limits = {
                "max_memory": min(self.limits.memory, HEAP),
                "max_suspensions": 1_000_000,  # refused attempts to open a file count
                "max_feed_duration_secs": min(self.limits.seconds, LIFE) + 1,  # of an orphan
            }
            policy = {"sleep": "zero"}
            session = self._pool.checkout(script_name="python", limits=limits, os_policy=policy)
            await session.__aenter__()
            if sys.platform != "win32":
                os.setpriority(os.PRIO_PROCESS, session.worker_pid, max(NICE, os.nice(0)))
            if sys.platform == "linux":  # some steps, of large numbers, Monty ends at no time
                import resource

                with suppress(PermissionError):  # it has a lower one, which is the server's
                    resource.prlimit(session.worker_pid, resource.RLIMIT_CPU, (LIFE, LIFE))
        except (OSError, RuntimeError, self.package.MontyError) as error:
            _log.error("a sandbox did not start: %s", error)
            raise ToolError(NOT_STARTED) from error
        return session

    async def close(self) -> None:
        """End the processes that wait for work."""
        if self._open:
            self._open = False
            await self._pool.__aexit__(None, None, None)
            await asyncio.sleep(0.1)  # its threads outlive that, and abort a process that ends


class _MontyInterpreter:
    def __init__(self, monty: Monty) -> None:
        self._monty = monty
        self._session: Any = None

    async def run(self, code: str) -> str:
        limits, library = self._monty.limits, self._monty.package
        if self._session is None:
            self._session = await self._monty.session()
        written: list[str] = []
        room = limits.output

        def write(_: str, text: str) -> None:
            nonlocal room
            written.append(text)
            room -= len(text)
            if room < 0:
                raise ValueError  # which ends this run alone

        shown, lost = "", False
        try:
            async with asyncio.timeout(limits.seconds):  # its own limit is of its own work
                value = await self._session.feed_run(code, print_callback=write)
            shown = _shown(value) if value is not None else ""
        except TypeError as error:  # for a set of instances, which it cannot transfer
            shown = _NOT_SHOWN.format(error)
        except library.MontyError as error:  # held no longer than here: it may be large
            traced = bool(getattr(error, "traceback", list)())
            if traced or room >= 0:  # else it is that of `write`
                shown = getattr(error, "display", error.__str__)()[: limits.output + 1]
                lost = not traced and self._session.worker_pid is None
        except TimeoutError:
            shown, lost = LATE.format(limits.seconds), True
        except BaseException:
            await self.close()
            raise
        output = "".join(written).rstrip("\n")
        if lost:
            await self.close()
            raise LostError(shown, fitted(output, limits.output))
        return fitted("\n".join(filter(None, (output, shown))), limits.output)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            try:
                await session.__aexit__(None, None, None)
            except self._monty.package.MontyError as error:  # it has crashed before
                _log.debug("a process of Monty ended before it was closed: %s", error)


def _shown(value: Any) -> str:
    """The repr of a value, unless it is large, as it may be where one list is in it many times."""
    room, rest = NODES, [value]
    try:
        while rest:
            each = rest.pop()
            room -= 1 + (len(each) if hasattr(each, "__len__") else 0)
            match each:
                case dict():
                    rest += [*each, *each.values()]
                case list() | tuple() | set() | frozenset():
                    rest += [*each, *getattr(each, "_fields", ()), type(each).__name__]
                case _ if hasattr(each, "attributes"):
                    rest += [each.name, each.attributes]
                case _ if not hasattr(each, "__len__"):  # an error may be long; a number is not
                    room -= len(str(getattr(each, "tzinfo", each))) // 16  # its repr takes long
            if room < 0:
                return "(The value of the last line is too large to be shown. Print a part of it.)"
        return repr(value)
    except (ValueError, RecursionError) as error:  # a number of many digits, a deep list
        return _NOT_SHOWN.format(error)


# ---- bubblewrap ------------------------------------------------------------------------------

NO_BUBBLEWRAP = (
    "The sandbox python=bubblewrap needs {}. "
    "To run a part of Python without it, use the other sandbox: python."
)
LIFE = 3600
"""Processor seconds of one interpreter, in all its calls."""
FILES, THREADS, INODES = 64, 9, 4096
AS_NOBODY = ("--reuid", "65534", "--regid", "65534", "--clear-groups")
"""Options of setpriv for the user nobody."""
WORK = "/mnt/data"
READY = b"\0ready\n"

# ---- forbidden system calls ------------------------------------------------------------------

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The number of an architecture for seccomp, and its place in the table below."""
DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes and programs
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    # connections; some families are in no namespace
    "socket": (41, 198),
    "setsockopt": (54, 208),  # for large buffers of a pair, which no limit counts
    # other namespaces, mounts and roots
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # memory that our limits do not count
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "io_setup": (206, 0),
    # rarely needed parts of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "vmsplice": (278, 75),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "fanotify_init": (300, 262),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "mbind": (237, 235),
    "modify_ldt": (154, None),
    "personality": (135, 92),
    "syslog": (103, 116),
    "quotactl": (179, 60),
}
IGNORED = ((162, 81), (306, 267), (74, 82), (75, 83), (277, 84), (26, 227), (221, 223))
"""sync, syncfs, fsync, fdatasync, sync_file_range, msync and fadvise64 give 0, and do nothing: they
act on the disk and the cache of all, and the code's own files are in memory."""
NEWER = 424
"""New system calls, the same everywhere: io_uring, mounts, pidfds. Programs fall back."""
CLONE, SOCKETPAIR, PRCTL = (56, 220), (53, 199), (157, 167)
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ZERO, _REFUSE, _ABSENT = 0x7FFF0000, 1 << 31, 0x50000, 0x50001, 0x50000 | 38


def rules(machine: str) -> bytes:
    """The seccomp filter of an architecture, as a program for the kernel. Raises KeyError for one
    that is not known."""
    number, place = ARCHITECTURES[machine]
    program: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_EQUAL, 1, 0, number),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the number of the call
        (_AT_LEAST, 0, 1, NEWER),
        (_RETURN, 0, 0, _ABSENT),
    ]
    for numbers in (*DENIED.values(), *IGNORED):
        if (denied := numbers[place]) is not None:
            answer = _ZERO if numbers in IGNORED else _REFUSE
            program += (_EQUAL, 0, 1, denied), (_RETURN, 0, 0, answer)
    for call, test, value, fits in (
        (CLONE, _ANY_BIT, 0x10000, _ALLOW),  # a thread is made, no process
        (SOCKETPAIR, _EQUAL, 1, _ALLOW),  # of the family AF_UNIX
        (PRCTL, _EQUAL, 1, _REFUSE),  # to outlive the server: PR_SET_PDEATHSIG
    ):
        other = _REFUSE if fits == _ALLOW else _ALLOW
        program += (
            (_EQUAL, 0, 4, call[place]),
            (_LOAD, 0, 0, 16),  # the lower half of the first argument
            (test, 0, 1, value),
            (_RETURN, 0, 0, fits),
            (_RETURN, 0, 0, other),
        )
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in program)


# ---- the program in the sandbox --------------------------------------------------------------


def interpret(work: str, inodes: int, disk: int, room: int, limits: str, rules: bytes) -> None:
    """The main loop of an interpreter: it limits itself, then runs the code of each message,
    and reports the end. Only its source is used, by a Python without Dragoman."""
    import ast
    import ctypes
    import io
    import linecache
    import os
    import resource
    import struct
    import sys
    from code import InteractiveInterpreter

    libc = ctypes.CDLL(None, use_errno=True)

    def done(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    # bubblewrap has no limit for the number of files, which take memory even where they are empty.
    options = f"size={disk},nr_inodes={inodes},mode=0700"
    done(libc.mount(b"work", work.encode(), b"tmpfs", 6, options.encode()))  # nosuid, nodev
    os.chdir(work)
    os.nice(17)  # of each thread: they are few. SCHED_IDLE is no time where others leave none.
    messages = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    for name, most in (pair.split("=") for pair in limits.split()):
        resource.setrlimit(getattr(resource, name), (int(most), int(most)))
    done(libc.capset(struct.pack("=II", 0x20080522, 0), bytes(24)))
    code = ctypes.create_string_buffer(rules, len(rules))
    program = struct.pack("@HP", len(rules) // 8, ctypes.addressof(code))
    done(libc.prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0))))  # no new privileges
    done(libc.prctl(22, ctypes.c_ulong(2), program))  # seccomp

    def send(data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    class Output(io.TextIOBase):
        left = 0
        encoding = "utf-8"

        def writable(self) -> bool:
            return True

        def write(self, text: str) -> int:
            send(text[: self.left].encode("utf-8", "replace"))
            self.left = max(self.left - len(text), 0)
            return len(text)

    class Shell(InteractiveInterpreter):
        failed = False

        def write(self, data: str) -> None:
            self.failed = True
            output.write(data)

        def showtraceback(self) -> None:
            super().showtraceback()
            if isinstance(sys.exc_info()[1], MemoryError):
                most = resource.getrlimit(resource.RLIMIT_AS)[0]
                output.write(f"The interpreter may take {most >> 20} MB.\n")

    output = Output()
    scope = {"__name__": "__main__"}
    shell = Shell(scope)
    send(b"\0ready\n")
    for count in range(1 << 62):
        size, _, mark = messages.readline().partition(b" ")
        if not mark:
            return
        text = messages.read(int(size)).decode("utf-8", "replace")
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(), output, output
        output.left, shell.failed = room, False
        name = f"<call {count + 1}>"
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        try:
            body = ast.parse(text, name).body
            last = [body.pop()] if body and isinstance(body[-1], ast.Expr) else []
            shell.runcode(compile(ast.Module(body, []), name, "exec"))
            if last and not shell.failed:
                shell.runcode(compile(ast.Interactive(last), name, "single"))
        except SyntaxError:
            shell.showsyntaxerror(name)
        except SystemExit as error:
            if error.code not in (None, 0):
                output.write(f"SystemExit: {error.code}\n")
        except BaseException as error:
            output.write(f"{type(error).__name__}: {error}\n")
            if isinstance(error, MemoryError):  # none is left, not even to delete what takes it
                return
        send(b"\0" + mark)


# ---- the sandbox -----------------------------------------------------------------------------


class Bubblewrap:
    """CPython of this machine in bubblewrap. A server that runs as root runs it as nobody.

    Raises ValueError, in a sentence, where there is no bubblewrap, or it cannot make a sandbox.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.about = (
            "Run Python code and read what it prints, and the value of its last line. What it "
            f"defines is there in later calls, and so are files in {WORK}, the working directory. "
            "There is no network, nothing can be installed, and no other program can be run. "
            f"A call may take {limits.seconds:g} seconds."
        )
        if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
            raise ValueError(NO_BUBBLEWRAP.format("Linux on x86-64 or ARM64"))
        programs = {"bwrap": "bubblewrap"}
        if os.geteuid() == 0:
            programs["setpriv"] = "util-linux"
        for program, package in programs.items():
            if shutil.which(program) is None:
                needed = f"{program}: install the package {package} of your system"
                raise ValueError(NO_BUBBLEWRAP.format(needed))
        problem = "a Python in /usr or where Dragoman's is"
        own = Path(sys.base_prefix, "bin", f"python3.{sys.version_info[1]}")
        for python in dict.fromkeys(path.resolve() for path in (own, Path("/usr/bin/python3"))):
            if python.is_file():
                self.command = command(python, limits)
                try:
                    with _spawn([*self.command[0], *self.command[1]]) as process:
                        try:
                            ready = process.communicate(timeout=START_SECONDS)[0]
                        finally:
                            process.kill()
                except (OSError, subprocess.SubprocessError) as error:
                    ready = str(error).encode()
                if ready == READY:
                    return
                words = ready.decode("utf-8", "replace").strip().rpartition("\n")[2]
                problem = f"user namespaces, and a Python that all may read ({words})"
        raise ValueError(NO_BUBBLEWRAP.format(problem))

    def interpreter(self) -> Interpreter:
        """A new one."""
        return _Process(self.command, self.limits)

    async def close(self) -> None:
        """No-op: there is nothing besides interpreters."""


def command(python: Path, limits: Limits) -> tuple[list[str], list[str]]:
    """The command of an interpreter."""
    rlimits = {
        "RLIMIT_AS": limits.memory,
        "RLIMIT_CPU": LIFE,
        "RLIMIT_FSIZE": limits.disk,
        "RLIMIT_NOFILE": FILES,
        "RLIMIT_NPROC": THREADS,
        "RLIMIT_SIGPENDING": 256,
        **{f"RLIMIT_{each}": 0 for each in ("CORE", "MEMLOCK", "MSGQUEUE", "NICE", "RTPRIO")},
    }
    given = (
        WORK,
        INODES,
        limits.disk,
        limits.output + 1,
        " ".join(f"{name}={most}" for name, most in rlimits.items()),
        rules(platform.machine()),
    )
    text = f"{inspect.getsource(interpret)}\ninterpret{given!r}"
    # Not all of /usr: some programs and services have their data in it.
    paths = ["/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"]
    paths += ["/etc/ld.so.cache", "/etc/alternatives", str(python.parents[1] / "lib"), str(python)]
    words = ["--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"]
    words += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1"]
    words += ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]  # to mount its folder, then none
    for path in map(Path, ("/lib", "/lib32", "/lib64")):
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        else:
            paths.append(str(path))
    for name in paths:
        words += ["--ro-bind-try", name, name]
    for name in ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"):
        words += ["--dev-bind", name, name]
    words += ["--dir", WORK, "--symlink", WORK, f"/{'tmp'}", "--remount-ro", "/"]
    words += ["--clearenv", "--setenv", "HOME", WORK, "--setenv", "LANG", "C.UTF-8"]
    for each in ("OPENBLAS_NUM", "OMP_NUM", "RAYON_NUM", "POLARS_MAX"):  # else one a processor
        words += ["--setenv", f"{each}_THREADS", "1"]
    start = [str(shutil.which("bwrap"))]
    if os.geteuid() == 0:
        start = [str(shutil.which("setpriv")), *AS_NOBODY, *start]
    return start, [*words, str(python), "-I", "-B", "-X", "utf8", "-c", text]


def _spawn(words: Sequence[str], pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start it, from the thread of the event loop, with which it ends. The options allow
    vfork, without a copy of the server's memory."""
    return subprocess.Popen(  # noqa: S603
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        env={},
        pass_fds=pass_fds,
        process_group=0,  # the parent handles Ctrl-C
    )


class _Process:
    def __init__(self, command: tuple[list[str], list[str]], limits: Limits) -> None:
        self._command, self._limits = command, limits
        self._process: Any = None
        self._inside = -1  # a descriptor of the interpreter, whose parent is `_process`

    async def run(self, code: str) -> str:
        try:
            if self._process is None:
                await self._start()
            return await self._run(code.encode("utf-8", "replace"))
        except BaseException:
            await self.close()
            raise

    async def _run(self, code: bytes) -> str:
        mark = secrets.token_hex(16).encode() + b"\n"
        limits, buffer, end = self._limits, bytearray(), -1
        why = "The interpreter ended."
        writing = asyncio.ensure_future(self._write(b"%d %s%s" % (len(code), mark, code)))
        try:
            async with asyncio.timeout(limits.seconds):
                signal.pidfd_send_signal(self._inside, signal.SIGCONT)
                while received := await self._read():
                    buffer += received
                    end = buffer.find(b"\0" + mark, max(len(buffer) - len(received) - 64, 0))
                    if end >= 0:
                        signal.pidfd_send_signal(self._inside, signal.SIGSTOP)
                        break
                    if len(buffer) > 4 * limits.output + MB:  # it limits itself further
                        why = "It wrote too much, and was stopped."
                        break
        except TimeoutError:
            why = LATE.format(limits.seconds)
        except ProcessLookupError:
            pass
        finally:
            writing.cancel()
        output = fitted(buffer[: None if end < 0 else end].decode(errors="replace"), limits.output)
        if end < 0:
            raise LostError(why, output)
        return output

    # By no transport: uvloop's close a descriptor twice, the second time when it is another's.

    async def _read(self) -> bytes:
        """What it has written; nothing at its end."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(BlockingIOError):
                return os.read(self._output, 1 << 16)
            await self._ready(self._output, loop.add_reader, loop.remove_reader)

    async def _write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        with suppress(BrokenPipeError):
            while data:
                try:
                    data = data[os.write(self._given, data) :]
                except BlockingIOError:
                    await self._ready(self._given, loop.add_writer, loop.remove_writer)

    async def _ready(self, pipe: int, add: Callable[..., None], remove: Callable[..., Any]) -> None:
        ready = asyncio.Event()
        add(pipe, ready.set)
        try:
            await ready.wait()
        finally:
            if self._process is not None:  # else it is closed
                remove(pipe)

    async def _start(self) -> None:
        ready: object = b""
        info, theirs = os.pipe()
        try:
            os.set_blocking(info, False)
            try:
                program, options = self._command
                self._process = _spawn([*program, "--info-fd", str(theirs), *options], (theirs,))
            finally:
                os.close(theirs)
            self._given = self._process.stdin.fileno()
            self._output = self._process.stdout.fileno()
            os.set_blocking(self._given, False)
            os.set_blocking(self._output, False)
            async with asyncio.timeout(START_SECONDS):
                ready = await self._read()
            if ready == READY:  # bubblewrap has written this before the interpreter began
                found = re.findall(rb'"child-pid": (\d+)', os.read(info, 4096))
                self._inside = os.pidfd_open(int(b"".join(found)))
        except (OSError, ValueError, TimeoutError) as error:
            ready = error
        finally:
            os.close(info)
        if ready != READY:
            _log.error("a sandbox did not start: %s", ready)
            raise ToolError(NOT_STARTED)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # While it starts, its child waits for it without end: they are one group until then.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if self._inside >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inside, signal.SIGKILL)
            os.close(self._inside)
            self._inside = -1
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._given)
        loop.remove_reader(self._output)
        process.stdin.close()
        process.stdout.close()
        await loop.run_in_executor(None, process.wait)
