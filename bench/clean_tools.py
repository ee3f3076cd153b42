"""Databases, runtimes and tools that do not leak, each under constant load.

Programs that start other processes have LOOPS_DIRECTORY in the command lines, so that a rule can match them.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from bench.serving import asked_by, connected, http_client, running, tool
from bench.tracing import ended_with_us, free_port

LOOPS_DIRECTORY = "bpfleakd-loop-"

# 64 MB of rows for a cache of 32 MB, which is full after half a minute.
_SQLITE = """
import random, sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size=-32768")
database.execute("PRAGMA synchronous=OFF")
database.execute("CREATE TABLE pages(id INTEGER PRIMARY KEY, name TEXT, body BLOB)")
database.execute(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 64000)"
    " INSERT INTO pages SELECT i, 'page ' || i, randomblob(1000) FROM n"
)
while True:
    for _ in range(20):
        number = random.randrange(1, 64001)
        database.execute("SELECT body FROM pages WHERE id = ?", (number,)).fetchone()
        database.execute("UPDATE pages SET name = ? WHERE id = ?", (f"page {number}", number))
    time.sleep(0.01)
"""

_NODE = """
const http = require("http");
const latest = new Map();
let number = 0;
http.createServer((request, response) => {
  const page = { number: number++, words: Array.from({ length: 200 }, (_, i) => "word " + i) };
  latest.set(page.number, page);
  if (latest.size > 500) latest.delete(page.number - 500);
  response.end(JSON.stringify(page));
}).listen(Number(process.argv[1]), "127.0.0.1");
"""

_JAVA = """
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.LinkedHashMap;
import java.util.Map;

public class Pages {
    public static void main(String[] arguments) throws Exception {
        Map<Integer, String> latest = new LinkedHashMap<>() {
            protected boolean removeEldestEntry(Map.Entry<Integer, String> eldest) { return size() > 500; }
        };
        int[] number = {0};
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]));
        HttpServer server = HttpServer.create(address, 0);
        server.createContext("/", exchange -> {
            StringBuilder page = new StringBuilder();
            for (int word = 0; word < 200; word++) page.append("word ").append(word).append(' ');
            latest.put(number[0]++, page.toString());
            byte[] bytes = page.toString().getBytes();
            exchange.sendResponseHeaders(200, bytes.length);
            exchange.getResponseBody().write(bytes);
            exchange.close();
        });
        server.start();
    }
}
"""


@contextlib.contextmanager
def sqlite() -> Iterator[int]:
    """SQLite in a Python process: reads and writes random rows, twice as many as its cache holds."""
    with tempfile.TemporaryDirectory(prefix="bpfleakd-sqlite-") as directory:
        command = [sys.executable, "-c", _SQLITE, f"{directory}/database"]
        with running(*command) as process:
            yield process.pid


@contextlib.contextmanager
def postgresql() -> Iterator[int]:
    """A PostgreSQL server, and pgbench over persistent connections; all its processes."""
    binaries = Path(tool("pg_config")).resolve().parent
    if not (binaries / "initdb").exists():
        binaries = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    port = free_port()
    # The server refuses to run as root.
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    with tempfile.TemporaryDirectory(prefix=LOOPS_DIRECTORY, ignore_cleanup_errors=True) as directory:
        subprocess.run(["chown", "postgres", directory], check=True)
        data = f"{directory}/data"
        initdb = [*as_postgres, binaries / "initdb", "-D", data, "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=directory)
        options = ["-p", port, "-k", directory, "-h", "127.0.0.1", "-c", "fsync=off"]
        # After a change of user, the parent-death signal is reset.
        with running(*as_postgres, *ended_with_us(binaries / "postgres", "-D", data, *options)) as server:
            connected(port).close()
            bench = [binaries / "pgbench", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "postgres"]
            _until_true([*bench, "-i", "-q"])
            with running(*bench[:-1], "-n", "-c", 2, "-T", 1_000_000, "--rate=40", "postgres"):
                yield server.pid


@contextlib.contextmanager
def node() -> Iterator[int]:
    """A Node.js server that makes pages and keeps the latest 500."""
    port = free_port()
    with running(tool("node"), "-e", _NODE, port) as server, asked_by(lambda: http_client(port)):
        connected(port).close()
        yield server.pid


@contextlib.contextmanager
def java() -> Iterator[int]:
    """The same in Java."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bpfleakd-java-") as directory:
        Path(directory, "Pages.java").write_text(_JAVA)
        subprocess.run([tool("javac"), "-d", directory, f"{directory}/Pages.java"], check=True)
        command = [tool("java"), "-Xmx64m", "-cp", directory, "Pages", port]
        with running(*command) as server, asked_by(lambda: http_client(port)):
            connected(port).close()
            yield server.pid


@contextlib.contextmanager
def compiler() -> Iterator[int]:
    """gcc -O2 on a C file that takes some ten seconds, in a loop; the pid is the loop's."""
    with tempfile.TemporaryDirectory(prefix=LOOPS_DIRECTORY, ignore_cleanup_errors=True) as directory:
        source = Path(directory, "many.c")
        function = (
            "int f{0}(int *list, int count) {{ int sum = {0}; for (int i = 0; i < count; i++)"
            " {{ if (list[i] % 7 == {0} % 7) sum += list[i] * {0}; else list[i] ^= sum; }} return sum; }}\n"
        )
        source.write_text("".join(function.format(number) for number in range(4_000)))
        script = 'while :; do gcc -O2 -c "$0" -o /dev/null; done'
        with running("sh", "-c", script, source) as loop:
            yield loop.pid


@contextlib.contextmanager
def git() -> Iterator[int]:
    """git cat-file --batch for random objects, while `git repack` repacks the repository."""
    with tempfile.TemporaryDirectory(prefix=LOOPS_DIRECTORY, ignore_cleanup_errors=True) as directory:
        command = [tool("git"), "-C", directory]
        subprocess.run([*command, "init", "--quiet", "--bare"], check=True)
        commits = "".join(map(_commit, range(2_000)))
        subprocess.run([*command, "fast-import", "--quiet"], input=commits, text=True, check=True)
        listed = subprocess.run(
            [*command, "rev-list", "--objects", "--all"], check=True, capture_output=True, text=True
        )
        objects = [line.split()[0] for line in listed.stdout.splitlines()]
        repack = 'while :; do git -C "$0" repack -adfq; sleep 1; done'
        batch = ended_with_us(*command, "cat-file", "--batch")
        with contextlib.ExitStack() as stack:
            stack.enter_context(running("sh", "-c", repack, directory))
            process = subprocess.Popen(batch, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            stack.enter_context(asked_by(lambda: _git_client(process, objects), clients=1))
            yield process.pid


def _commit(number: int) -> str:
    text = "".join(f"line {line} of {number if line == number % 200 else 0}\n" for line in range(200))
    return (
        f"commit refs/heads/main\ncommitter A <a@b.invalid> {1_600_000_000 + number} +0000\n"
        f"data 1\nx\nM 100644 inline file{number % 20}\ndata {len(text)}\n{text}\n"
    )


def _git_client(process: subprocess.Popen[bytes], objects: list[str]) -> Iterator[None]:
    assert process.stdin
    assert process.stdout
    while True:
        process.stdin.write(f"{random.choice(objects)}\n".encode())
        process.stdin.flush()
        size = int(process.stdout.readline().split()[2])
        process.stdout.read(size + 1)
        yield


def _until_true(command: list[object]) -> None:
    """Run a command until it succeeds, for at most half a minute."""
    pause = threading.Event()
    for _ in range(60):
        done = subprocess.run(list(map(str, command)), check=False, capture_output=True)
        if done.returncode == 0:
            return
        pause.wait(0.5)
    raise RuntimeError(f"{command[0]}: {done.stderr.decode(errors='replace')}")
