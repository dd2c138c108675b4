"""The code runs on Linux, macOS and Windows: read from its syntax, and with what Windows lacks taken away."""

import ast
import os
import re
from pathlib import Path

import numpy as np
import pytest

from fedjax_core import atomic_files
from fedjax_core.data import row_readers

ROOT = Path(__file__).parents[1]
FILES = sorted(path for package in ("fedjax_core", "methods", "configs") for path in (ROOT / package).rglob("*.py"))

NOT_ON_WINDOWS = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}  # modules
NOT_EVERYWHERE = {  # of modules that are, by what Windows or macOS lack
    "os": {"fork", "forkpty", "wait", "waitpid", "killpg", "setsid", "getuid", "geteuid", "getgid", "getegid", "getpgid", "uname"}
    | {"pread", "preadv", "pwrite", "pwritev", "readv", "writev", "sendfile", "sched_getaffinity", "sched_setaffinity", "nice"}
    | {"mkfifo", "mknod", "chown", "fchown", "lchown", "chroot", "sysconf", "confstr", "statvfs", "getloadavg", "sync", "fdatasync"}
    | {"posix_fadvise", "posix_fallocate", "memfd_create", "pipe2", "register_at_fork", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"},
    "signal": {"SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGQUIT", "SIGCHLD", "SIGPIPE", "SIGSTOP", "SIGCONT"}
    | {"alarm", "setitimer", "pause", "sigwait", "pthread_sigmask", "pthread_kill"},
    "mmap": {"MAP_PRIVATE", "MAP_SHARED", "MAP_ANONYMOUS", "MAP_NORESERVE", "PROT_READ", "PROT_WRITE"},
    "select": {"poll", "epoll", "kqueue"},
}
FOLDERS = ("/tmp", "/dev/", "/proc/", "/usr/", "/var/", "/etc/", "/home/", "/root")
PATH = re.compile(r"(str\(|os\.fspath\()*(path|file|folder|directory|workdir)\b")  # what holds a path
GUARDS = ("sys.platform", "os.name", "hasattr(")


def is_guarded(node, parents):
    """Returns whether a node is behind a test of the platform, or an AttributeError there is caught."""
    while node in parents:
        node, child = parents[node], node
        if isinstance(node, ast.If | ast.IfExp) and child is not node.test and any(g in ast.unparse(node.test) for g in GUARDS):
            return True
        if isinstance(node, ast.BoolOp) and any(g in ast.unparse(v) for v in node.values if v is not child for g in GUARDS):
            return True
        if isinstance(node, ast.Try) and any("AttributeError" in ast.unparse(h.type) for h in node.handlers if h.type):
            return True
        if isinstance(node, ast.FunctionDef):  # an early return: `if sys.platform != "linux": return ...`
            before = node.body[: node.body.index(child)] if child in node.body else []
            if any(
                isinstance(s, ast.If) and isinstance(s.body[-1], ast.Return) and any(g in ast.unparse(s.test) for g in GUARDS)
                for s in before
            ):
                return True
    return False


def find_problems(source):
    """Returns "line: what" for all that cannot work on every platform."""
    tree, problems = ast.parse(source), []
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        what = ""
        match node:
            case ast.Import(names=names) if {name.name.partition(".")[0] for name in names} & NOT_ON_WINDOWS:
                what = ast.unparse(node)
            case ast.ImportFrom(module=str(module)) if module in NOT_ON_WINDOWS | NOT_EVERYWHERE.keys() - {"os"}:
                what = ast.unparse(node)
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in NOT_EVERYWHERE.get(module, ()):
                what = ast.unparse(node)
            case ast.Constant(value=str(text)) if text.startswith(FOLDERS) and node not in docstrings:
                what = repr(text)
            case ast.keyword(arg="preexec_fn" | "pass_fds" | "start_new_session" | "process_group"):
                what = f"{node.arg}="
            case ast.Call(args=[ast.Constant(value="fork" | "forkserver"), *_]):
                what = ast.unparse(node)
            case ast.Call(
                func=ast.Attribute(value=path, attr="split" | "rsplit" | "partition" | "rpartition"),
                args=[ast.Constant(value="/"), *_],
            ):
                what = ast.unparse(node) if PATH.match(ast.unparse(path)) else ""
            case ast.Call(func=function) if isinstance(function, ast.Name | ast.Attribute):
                what = ast.unparse(node) if opens_text_without_encoding(node) else ""
        if what and not is_guarded(node, parents):
            problems.append(f"{node.lineno}: {what}")
    return problems


def opens_text_without_encoding(call):
    """Returns whether a call opens a file as text in the platform's encoding, which differs."""
    name = ast.unparse(call.func)
    if any(keyword.arg == "encoding" for keyword in call.keywords):
        return False
    if name == "open":
        return (len(call.args) > 1 and "b" not in ast.unparse(call.args[1])) or len(call.args) == 1
    positional = {"read_text": 0, "write_text": 1}  # arguments before the encoding
    return isinstance(call.func, ast.Attribute) and positional.get(call.func.attr) == len(call.args)


def test_nothing_is_of_one_platform():
    assert not [f"{path}:{problem}" for path in FILES for problem in find_problems(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import os\nos.fork()", "2: os.fork"),
        ("import fcntl", "1: import fcntl"),
        ("import signal\ndef f(p):\n    p.send_signal(signal.SIGKILL)", "3: signal.SIGKILL"),
        ("open('a', 'w')", "1: open('a', 'w')"),
        ("folder = '/tmp/x'", "1: '/tmp/x'"),
        ("from signal import SIGALRM", "1: from signal import SIGALRM"),
        ("name = str(path).split('/')", "1: str(path).split('/')"),
        ("run([], preexec_fn=f)", "1: preexec_fn="),
        ("get_context('fork')", "1: get_context('fork')"),
        ("if sys.platform == 'win32':\n    import msvcrt\nimport resource", "3: import resource"),
    ],
)
def test_what_is_of_one_platform_is_seen(source, says):
    assert find_problems(source) == [says]


@pytest.mark.parametrize(
    "source",
    [
        "if sys.platform != 'win32':\n    import fcntl",
        "def f():\n    if os.name == 'nt':\n        return 0\n    return os.getuid()",
        "n = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1",
        "try:\n    os.sysconf('SC_PAGE_SIZE')\nexcept (AttributeError, OSError):\n    pass",
        "open('a', 'wb')",
    ],
)
def test_what_is_guarded_is_let_be(source):
    assert find_problems(source) == []


def test_files_are_read_and_written_from_an_offset_where_there_is_no_pread(tmp_path, monkeypatch):
    for name in ("preadv", "pwrite"):
        monkeypatch.delattr(os, name)
    with open(tmp_path / "file", "w+b") as file:
        atomic_files.write_at(file.fileno(), memoryview(b"abcdef"), 0)
        atomic_files.write_at(file.fileno(), memoryview(b"XY"), 2)
        target = bytearray(8)
        assert atomic_files.read_at(file.fileno(), memoryview(target), 1) == 5
        assert (bytes(target), atomic_files.read_at(file.fileno(), memoryview(target), 6)) == (b"bXYef\0\0\0", 0)
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(6, 2))
    reader = row_readers.ExampleReader(np.load(tmp_path / "x.npy", mmap_mode="r"))
    np.testing.assert_array_equal(reader.read_padded(np.array([4, 5, 1]), 3), [[8, 9], [10, 11], [2, 3]])


def test_cores_are_counted_everywhere(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert row_readers.machine_cores() == (os.cpu_count() or 1)
