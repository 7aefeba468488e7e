#!/usr/bin/python3 -B
"""Programs that watch files reload in the guest when the host saves a file, with barge-agent: node's own watchers, and tsc --watch.

MODULES: a directory with node_modules of vite and chokidar, and maybe of another typescript: these watch as well. AGENT: the program."""

import collections
import contextlib
import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time

from agents import LOCAL, Agent
from checking import check, end, said, skip, tests

if not shutil.which("node"):
    skip("this takes node")
MODULES = os.environ.get("MODULES")
# An emulated processor takes this long to start a program, seconds.
PATIENCE = float(os.environ.get("PATIENCE", "60"))
# NFS clients may notice by themselves that a file has been replaced, and do not report that to those that watch the file. The recursive watcher of node 20 watches each file.
REPLACED = ["by-rename", "anew"] if os.environ.get("SELF") == "no" else []
# 9P's cache=loose does not read a file again that is written in place.
STALE = ["in-place"] if os.environ.get("CACHE") == "loose" else []
# Not in the share.
OUTPUT = tempfile.mkdtemp()
times = collections.defaultdict(list)


class Program:
    """A program whose lines are awaited."""

    def __init__(self, name, *command, **options):
        self.name = name
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **options)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.rest, self.lines, self.seen = b"", collections.deque(), []

    def line(self, end):
        while not self.lines:
            if not self.selector.select(max(0, end - time.monotonic())):
                return None
            data = self.process.stdout.read(65536)
            if not data:
                return None
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.lines.extend(line.decode(errors="replace") for line in lines)
        self.seen.append(self.lines.popleft())
        return self.seen[-1]

    def wait(self, wanted, limit=PATIENCE):
        """Waits for a line for which `wanted` is true, or which has it as a part. Returns the line."""
        is_wanted = wanted if callable(wanted) else lambda line: wanted in line
        end = time.monotonic() + limit
        while (line := self.line(end)) is not None:
            if is_wanted(line):
                return line
        raise RuntimeError(f"{self.name} printed {self.seen[-20:]} only")

    def drain(self):
        """Forgets the lines so far."""
        while self.line(0) is not None:
            pass
        self.seen.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


# How editors and tools save a file: shell commands of the host for the file $f and its text $t. Each has a directory of its own: chokidar reads a directory once in a second,
# and node's recursive watcher and node --watch lose a file that had another name meanwhile, also on a local file system.
SAVES = {
    "in-place": 'printf %s "$t" >$f',
    "by-rename": 'printf %s "$t" >$f.tmp && mv $f.tmp $f',
    "with-backup": 'mv $f $f~ && printf %s "$t" >$f && rm $f~',
    "anew": 'rm $f && printf %s "$t" >$f',
}


def save(how, name, text):
    said("host", f"f={name}; t='{text}'; {SAVES[how]}")


def prepare(top, name, text):
    """Makes a file for each way to save it."""
    for how in SAVES:
        os.makedirs(f"{top}/{how}")
        with open(f"{top}/{how}/{name}", "w") as file:
            file.write(text)
    # Of the host, as an editor's.
    said("host", f"chown -R 0:0 {top}")


def each_save(program, top, name, text, expected, without=()):
    """Saves a file in each way but `without`, and waits for what the program prints then."""
    kind = program.name
    for how in [how for how in SAVES if how not in without]:
        program.drain()
        began = time.monotonic()
        save(how, f"{top}/{how}/{name}", text)
        try:
            program.wait(expected(how))
            times[kind].append(time.monotonic() - began)
        except RuntimeError as error:
            check(f"{kind}: a file that is saved {how}", str(error), "noticed")


FS_WATCH = """
require('fs').watch(process.argv[1], {recursive: true}, (event, name) => console.log(JSON.stringify({event, name})));
console.log('ready');
"""


def fs_watch():
    """node's own watcher of a tree."""
    prepare("w", "file", "old")
    with Program("fs.watch", "node", "-e", FS_WATCH, "w") as program:
        program.wait("ready")
        each_save(program, "w", "file", "new", lambda how: f'"{how}/file"', without=REPLACED)
        program.drain()
        said("host", "mkdir w/directory")
        program.wait('"directory"')
        said("host", "rmdir w/directory")
        program.wait('"directory"')


def node_watch():
    """node --watch starts a program again when one of its modules changes. A change while it does so is lost, and two of them are a save with a backup."""
    prepare("n", "module.js", "module.exports = 'old'")
    with open("n/main.js", "w") as file:
        file.write("console.log('values', ...process.argv.slice(2).map(how => require(`./${how}/module`)));")
    with Program("node --watch", "node", "--watch", "n/main.js", *SAVES) as program:
        program.wait("values old")

        def noticed(how):
            position = list(SAVES).index(how) + 1
            return lambda line: line.startswith("values") and line.split()[position] == "new"

        each_save(program, "n", "module.js", 'module.exports = "new"', noticed, without=["with-backup", *STALE])


def tsc_watch():
    """tsc --watch compiles again."""
    tsc = shutil.which("tsc")
    if MODULES and os.path.exists(f"{MODULES}/node_modules/typescript"):
        tsc = f"{MODULES}/node_modules/typescript/bin/tsc"
    if not tsc:
        return
    prepare("t/src", "module.ts", "export const value: number = 0;")
    options = {"outDir": f"{OUTPUT}/compiled", "types": [], "module": "es2020", "moduleResolution": "node", "noLib": True}
    with open("t/tsconfig.json", "w") as file:
        json.dump({"compilerOptions": options, "include": ["src"]}, file)
    # Types that every program needs.
    with open("t/src/global.d.ts", "w") as file:
        file.write("".join(f"interface {name} {{}}\n" for name in "Array<T> Boolean Function IArguments Number Object RegExp String CallableFunction NewableFunction".split()))
    with Program("tsc --watch", "node", tsc, "--watch", "-p", "t", "--preserveWatchOutput") as program:
        program.wait("Found 0 errors. Watching")

        def compiled(how):
            name = f"{OUTPUT}/compiled/{how}/module.js"
            return lambda line: "Found 0 errors. Watching" in line and "value = 1;" in open(name).read()

        each_save(program, "t/src", "module.ts", "export const value: number = 1;", compiled, without=STALE)
        said("host", "echo 'export const more: string = 1;' >t/src/new.ts")
        program.wait("Found 1 error. Watching")
        said("host", "rm t/src/new.ts")
        program.wait("Found 0 errors. Watching")


CHOKIDAR = """
const chokidar = require(process.argv[1]);
const watcher = chokidar.watch(process.argv[2], {ignoreInitial: true});
for (const event of ['add', 'change', 'unlink', 'addDir', 'unlinkDir'])
    watcher.on(event, name => console.log(event, name));
watcher.on('ready', () => console.log('ready'));
"""


def chokidar():
    """chokidar, the watcher that vite and others use."""
    prepare("c", "file", "old")
    said("host", "mkdir c/directory")
    with Program("chokidar", "node", "-e", CHOKIDAR, f"{MODULES}/node_modules/chokidar", "c") as program:
        program.wait("ready")
        each_save(program, "c", "file", "new", lambda how: lambda line: line in (f"change c/{how}/file", f"add c/{how}/file"))
        for command, event in (
            ("echo >c/directory/new", "add c/directory/new"),
            ("mkdir c/other && echo >c/other/inner", "add c/other/inner"),
            ("rm -r c/directory", "unlink c/directory/new"),
        ):
            program.drain()
            said("host", command)
            program.wait(event)


HMR = """
const base = 'http://localhost:5173';
const text = async path => (await fetch(base + path)).text();
(async () => {
    await text('/main.js');
    for (const how of process.argv.slice(1))
        await text(`/${how}/module.ts`);
    const socket = new WebSocket('ws://localhost:5173/', 'vite-hmr');
    socket.onmessage = async message => {
        const data = JSON.parse(message.data);
        if (data.type == 'update')
            for (const {acceptedPath, timestamp} of data.updates)
                console.log('update', acceptedPath, JSON.stringify(await text(`${acceptedPath}?t=${timestamp}`)));
        else if (data.type == 'full-reload')
            console.log('full-reload', JSON.stringify(await text(data.path == '*' ? '/' : data.path)));
        else
            console.log(data.type);
    };
})();
"""


def vite():
    """vite's server sends updates of modules to a browser."""
    prepare("v", "module.ts", "export const value: number = 0;")
    with open("v/index.html", "w") as file:
        file.write("<script type=module src=/main.js></script>old")
    with open("v/main.js", "w") as file:
        for how in SAVES:
            file.write(f'import "./{how}/module.ts"; import.meta.hot.accept("./{how}/module.ts", () => 1);')
    with open("v/vite.config.mjs", "w") as file:
        server = "{host: 'localhost', port: 5173, strictPort: true}"
        file.write(f"export default {{cacheDir: '{OUTPUT}/vite', server: {server}, optimizeDeps: {{noDiscovery: true}}}};")
    environment = {**os.environ, "NO_COLOR": "1"}
    with Program("vite", "node", f"{MODULES}/node_modules/vite/bin/vite.js", "v", "--configLoader", "native", env=environment) as server:
        server.wait("Local")
        with Program("vite", "node", "--experimental-websocket", "-e", HMR, *SAVES) as browser:
            browser.wait("connected")

            def updated(how):
                return lambda line: f"update /{how}/module.ts" in line and "value = 1" in line

            each_save(browser, "v", "module.ts", "export const value: number = 1;", updated, without=STALE)
            browser.drain()
            if not STALE:
                save("in-place", "v/index.html", "new")
                browser.wait(lambda line: line.startswith("full-reload") and "new" in line)


recursive = int(said("node", "--version")[1:].split(".")[0]) >= 20
programs = [*([fs_watch] if recursive else []), node_watch, tsc_watch, *([chokidar, vite] if MODULES else [])]
if ONLY := os.environ.get("ONLY"):
    programs = [program for program in programs if program.__name__ in ONLY.split()]
with contextlib.nullcontext() if LOCAL else Agent():
    tests(*programs)
if os.environ.get("VERBOSE"):
    for kind, each in times.items():
        each.sort()
        print(f"{kind}: {len(each)} reloads, after {each[len(each) // 2] * 1000:.0f} ms (median), {each[-1] * 1000:.0f} ms (largest)")
end(f"{len(times)} programs noticed files that the host saved")
