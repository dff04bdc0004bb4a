#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""static.py BUILD [CHECK...]: what can be said about the tree without running it.

Called by .ci/run; needs a configured and compiled build directory. Each check_* function yields
findings, one line each; a check without findings has passed. The last line sums up like a suite.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ["cache", "sched", "fs", "tools"]
FUNCTION_LINES_MAX = 60
OPTION_FUNCTION_LINES_MAX = 100
FILE_LINES_MAX = 800

# What a folder may include, longest prefix first. A test may include everything.
MAY_INCLUDE = [
    ("cache/base/", ("cache/base/",)),
    ("cache/", ("cache/",)),
    ("sched/", ("sched/", "cache/base/")),
    ("fs/", ("fs/", "cache/", "sched/")),
    ("tools/hintctl_verify", ("tools/", "cache/")),  # a disk tier that no daemon uses
    ("tools/", ("tools/", "sched/", "cache/base/")),
]
FUSE_USERS = re.compile(r"fs/(fuse_\w+|main|opts)\.[ch]$|tests/")
# The only place where cache and sched meet.
JOINERS = re.compile(r"fs/engine\w*\.[ch]$|tests/")

# libc that neither does I/O nor asks the clock nor locks (malloc's own lock aside).
PURE = re.compile(
    r"^(_*mem(cpy|move|set|cmp|chr|rchr|mem|pcpy)(_chk)?"
    r"|_*str(len|nlen|cmp|ncmp|casecmp|ncasecmp|chr|rchr|str|spn|cspn|cpy|ncpy|cat|dup|ndup)(_chk)?"
    r"|malloc|calloc|realloc|reallocarray|free|aligned_alloc|posix_memalign"
    r"|qsort|bsearch|abort|__assert_fail|__stack_chk_fail"
    r"|__errno_location|__ctype_(b|tolower|toupper)_loc|tolower|toupper"
    r"|_*v?snprintf(_chk)?|__isoc99_sscanf|_*strto(d|l|ll|ul|ull|umax|imax)(_internal)?"
    r"|ceil|floor|sqrt|log|log2|exp|exp2|pow|fmin|fmax|fabs|lround|llround|round"
    r"|__popcount[sd]i2"  # of the compiler's own library, where the processor has no instruction for it
    r"|XXH\w+|_GLOBAL_OFFSET_TABLE_|__(asan|ubsan|tsan)\w*)$")


def files(suffixes, folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def name_of(path):
    return str(path.relative_to(ROOT))


def text_of(path):
    return path.read_text(encoding="utf-8", errors="replace")


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def parallel(function, items):
    """function(item) -> findings, for all items, on all cores."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        for findings in pool.map(function, items):
            yield from findings


def compile_commands(build):
    """(source path, command) of our own C files, in the build directory's terms."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if source.is_relative_to(ROOT) and not source.is_relative_to(ROOT / "subprojects") \
                and source.suffix == ".c":
            yield source, entry["command"]


def include_flags(build):
    flags = {}
    for _, command in compile_commands(build):
        for flag in re.findall(r"(?:-I|-isystem)\s*'?([^\s']+)", command):
            flags[str((build / flag).resolve())] = None
    return [f"-isystem{flag}" for flag in flags if not flag.startswith(str(ROOT / "fs"))]


# --- The checks -------------------------------------------------------------------------------------

def check_header_alone(build):
    """Every header compiles by itself, with gcc and clang."""
    flags = include_flags(build)

    def one(job):
        compiler, header = job
        result = run([compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function",
                      "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-DFUSE_USE_VERSION=317",
                      '-DHINTFS_VERSION="0"', f"-I{ROOT}", *flags, "-fsyntax-only", "-x", "c",
                      "-include", str(header), "/dev/null"])
        if result.returncode:
            first = next((l for l in result.stderr.splitlines() if "error" in l), result.stderr)
            return [f"{name_of(header)}: {compiler}: {first.strip()}"]
        return []

    compilers = [compiler for compiler in ("gcc", "clang") if shutil.which(compiler)]
    yield from parallel(one, [(c, h) for h in files({".h"}, PRODUCT + ["tests"]) for c in compilers])


def includes_of(path):
    return re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', text_of(path), re.MULTILINE)


def check_dependency_direction(_build):
    """Lower layers never include higher ones, cache and sched never each other."""
    for path in files({".c", ".h"}, PRODUCT):
        name = name_of(path)
        allowed = next(targets for prefix, targets in MAY_INCLUDE if name.startswith(prefix))
        seen = set()
        for include in includes_of(path):
            folder = include.split("/")[0]
            if folder in PRODUCT + ["tests"] and not include.startswith(allowed):
                yield f"{name}: includes {include}"
            if include.startswith("sched/"):
                seen.add("sched")
            if include.startswith("cache/") and not include.startswith("cache/base/"):
                seen.add("cache")
        if len(seen) == 2 and not JOINERS.match(name):
            yield f"{name}: joins cache and sched, which is fs/engine's job"


def check_fuse_headers(_build):
    """libfuse is known to fs/fuse_*, fs/main and fs/opts only."""
    for path in files({".c", ".h"}, PRODUCT):
        for include in includes_of(path):
            if re.match(r"fuse3?/|fuse_?(lowlevel|opt|common|log)?\.h$", include) \
                    and not FUSE_USERS.match(name_of(path)):
                yield f"{name_of(path)}: includes {include}"


def check_own_header_first(_build):
    """foo.c includes folder/foo.h first, or foo_i.h, which includes that."""
    for path in files({".c"}, PRODUCT):
        header = path.with_suffix(".h")
        includes = includes_of(path)
        own = (header.name, f"{path.stem}_i.h")
        if header.exists() and includes and pathlib.Path(includes[0]).name not in own:
            yield f"{name_of(path)}: includes {includes[0]} before its own header"


def nm(library, option):
    """{archive member: set of symbols}"""
    members = collections.defaultdict(set)
    for line in run(["nm", "-A", option, str(library)]).stdout.splitlines():
        place, _, rest = line.partition(": ") if ": " in line else line.rpartition(":")
        members[place.split(":")[1]].add(rest.split()[-1])
    return members


def impure(symbols, base_defined, base_undefined, seen):
    """Symbols that are not pure, followed through the members of libhfs_base.a."""
    for symbol in sorted(symbols):
        member = base_defined.get(symbol)
        if member is None:
            if not PURE.match(symbol):
                yield symbol
        elif member not in seen:
            seen.add(member)
            for deeper in impure(base_undefined[member], base_defined, base_undefined, seen):
                yield f"{symbol} -> {deeper}"


def check_sched_is_pure(build):
    """No I/O, clock, thread, lock or log behind libsched.a, and no state of its own."""
    sched, base = build / "sched/libsched.a", build / "cache/base/libhfs_base.a"
    if not sched.exists():
        yield "sched/libsched.a was not built"
        return
    defined = set().union(*nm(sched, "--defined-only").values())
    undefined = set().union(*nm(sched, "--undefined-only").values()) - defined
    base_defined = {symbol: member for member, symbols in
                    (nm(base, "--defined-only") if base.exists() else {}).items()
                    for symbol in symbols}
    base_undefined = nm(base, "--undefined-only") if base.exists() else {}
    for symbol in impure(undefined, base_defined, base_undefined, set()):
        yield f"libsched.a needs {symbol}"
    for line in run(["objdump", "-t", str(sched)]).stdout.splitlines():
        state = re.search(r"\s(\.(?:data|bss|tdata|tbss)(?!\.rel\.ro)\S*)\s+([0-9a-f]+)\s+(\S+)$", line)
        if state and int(state[2], 16) and state[3] != state[1]:
            yield f"libsched.a has writable data: {state[3]}"


def functions_of(path):
    """(name, first line, length) of each function: a brace in column 0, or at the end of a line
    that begins in column 0, up to the next closing brace in column 0."""
    lines = text_of(path).splitlines()
    start = None
    for number, line in enumerate(lines):
        opens = line == "{" or (re.match(r"\w[^=;]*\)\s*\{$", line) is not None)
        if opens and start is None:
            start = number
        elif line.startswith("}") and start is not None:
            head = " ".join(lines[max(0, start - 6):start + 1])
            names = re.findall(r"(\w+)\s*\(", head)
            yield (names[-1] if names else "?", start + 1, number - start + 1)
            start = None


def check_function_length(_build):
    """No function above 60 lines (100 where options are read)."""
    for path in files({".c", ".h"}, PRODUCT + ["tests"]):
        for function, line, length in functions_of(path):
            is_options = "opt" in path.stem or "option" in function
            limit = OPTION_FUNCTION_LINES_MAX if is_options else FUNCTION_LINES_MAX
            if length > limit:
                yield f"{name_of(path)}:{line}: {function}() has {length} lines, limit {limit}"


def check_file_length(_build):
    """Warning only: a file above 800 lines wants to be split."""
    for path in files({".c", ".h", ".py"}, PRODUCT + ["tests"]):
        length = len(text_of(path).splitlines())
        if length > FILE_LINES_MAX:
            print(f"    warning: {name_of(path)} has {length} lines")
    yield from ()


def check_file_head(_build):
    """The licence in the first lines of every file."""
    for path in files({".c", ".h", ".py", ".sh", ".build"}, PRODUCT + ["tests", ".ci"]):
        head = text_of(path)[:400]
        if head.strip() and "SPDX-License-Identifier: Apache-2.0" not in head:
            yield f"{name_of(path)}: no SPDX line in its head"


def check_forbidden(_build):
    """volatile, raw mutexes, alloca, unbounded string functions in product files."""
    words = {
        r"\bvolatile\b": "volatile",
        r"\b(strcat|sprintf|gets|alloca|strtok|atoi|atol)\s*\(": "unbounded or unchecked call",
        r"#\s*if(def)?\s.*\b(UNIT_?TEST|TESTING)\b": "#ifdef for a test",
    }
    for path in files({".c", ".h"}, PRODUCT):
        code = re.sub(r"/\*.*?\*/|//[^\n]*|\"(\\.|[^\"\\\n])*\"",
                      lambda m: "\n" * m[0].count("\n"), text_of(path), flags=re.DOTALL)
        for number, line in enumerate(code.splitlines(), 1):
            for pattern, why in words.items():
                if re.search(pattern, line):
                    yield f"{name_of(path)}:{number}: {why}: {line.strip()}"


def elf_facts(path):
    text = run(["readelf", "-hldW", str(path)]).stdout
    return {
        "position-independent": "DYN (" in text,
        "read-only relocations": "GNU_RELRO" in text,
        "immediate binding": "BIND_NOW" in text or re.search(r"FLAGS_1.*NOW", text) is not None,
        "no executable stack": re.search(r"GNU_STACK.*RWE", text) is None,
    }


def check_hardening(build):
    """The installed programs carry the protections that the build asks for."""
    programs = ["fs/hintfs", "tools/hintctl", "tools/hintfs-preload", "tools/libhintfs.so"]
    for program in programs:
        path = build / program
        if not path.exists():
            yield f"{program} was not built"
            continue
        for fact, holds in elf_facts(path.resolve()).items():
            if not holds:
                yield f"{program}: not {fact}" if fact[0] != "n" else f"{program}: lacks {fact}"


def check_install(build):
    """`meson install` into a DESTDIR puts everything in place."""
    with tempfile.TemporaryDirectory() as stage:
        result = run(["meson", "install", "-C", str(build), "--skip-subprojects", "--no-rebuild"],
                     env=dict(os.environ, DESTDIR=stage))
        if result.returncode:
            yield result.stderr.strip() or result.stdout.strip()
            return
        there = {path.name for path in pathlib.Path(stage).rglob("*")}
        for wanted in ("hintfs", "hintctl", "hintfs-preload", "mount.hintfs", "libhintfs.so",
                       "hintfs.h"):
            if wanted not in there:
                yield f"{wanted} is not installed"


def check_clang_tidy(build):
    """clang-tidy over the product files."""
    if not shutil.which("clang-tidy"):
        yield "clang-tidy is not installed"
        return

    # The same commands without the one flag that clang 14 wants a second flag for.
    database = build / "tidy"
    database.mkdir(exist_ok=True)
    commands = (build / "compile_commands.json").read_text()
    (database / "compile_commands.json").write_text(
        commands.replace(" -ftrivial-auto-var-init=zero", ""))
    up = os.path.relpath(ROOT, build) + "/"  # as meson writes our paths

    def one(source):
        result = run(["clang-tidy", "--quiet", f"--config-file={ROOT}/.ci/clang-tidy",
                      "-p", str(database), "--extra-arg=-Wno-unknown-warning-option",
                      "--extra-arg=-Wno-unused-command-line-argument", str(source)])
        return [line.replace(f"{build}/", "").replace(f"{ROOT}/", "").replace(up, "")
                for line in result.stdout.splitlines()
                if re.search(r"(warning|error): .*\[", line)]

    sources = [s for s, _ in compile_commands(build) if name_of(s).split("/")[0] in PRODUCT]
    yield from sorted(set(parallel(one, sorted(set(sources)))))


def check_cppcheck(_build):
    """cppcheck over the product files."""
    if not shutil.which("cppcheck"):
        yield "cppcheck is not installed"
        return
    result = run(["cppcheck", "--quiet", "--std=c11", "--enable=warning,performance,portability",
                  "--inline-suppr", "--suppress=missingInclude*", "--suppress=checkersReport",
                  "-j", str(os.cpu_count() or 2), "-D_GNU_SOURCE", '-DHINTFS_VERSION="0"',
                  f"-I{ROOT}", *(str(ROOT / folder) for folder in PRODUCT)])
    for line in result.stderr.splitlines():
        if re.search(r": (error|warning|performance|portability): ", line):
            yield line.replace(str(ROOT) + "/", "")


def check_scripts(_build):
    """shellcheck for the shell scripts, a compile for Python."""
    scripts = [path for folder in ["tools", "tests", ".ci"] for path in sorted((ROOT / folder).rglob("*"))
               if path.is_file() and "__pycache__" not in path.parts]
    for path in scripts:
        with open(path, "rb") as file:
            first = file.readline(80)
        if path.suffix == ".py" or b"python" in first[:40]:
            try:
                compile(path.read_bytes(), str(path), "exec")
            except SyntaxError as error:
                yield f"{name_of(path)}: {error}"
        elif re.match(rb"#!.*\b(sh|bash|dash)\b", first) and shutil.which("shellcheck"):
            result = run(["shellcheck", "-S", "warning", "-f", "gcc", str(path)])
            yield from (line.replace(str(ROOT) + "/", "") for line in result.stdout.splitlines())


CHECKS = [check_header_alone, check_dependency_direction, check_fuse_headers, check_own_header_first,
          check_sched_is_pure, check_function_length, check_file_length, check_file_head,
          check_forbidden, check_hardening, check_install, check_scripts, check_cppcheck,
          check_clang_tidy]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    wanted = sys.argv[2:]
    passed = 0
    failures = []
    for check in CHECKS:
        name = check.__name__.removeprefix("check_")
        if wanted and name not in wanted:
            continue
        findings = list(check(build))
        passed += not findings
        print(f"static/{name}: {'FAILED' if findings else 'passed'}")
        for finding in findings[:100]:
            print(f"    {finding}")
        sys.stdout.flush()
        if findings:
            failures.append(f"FAILED static/{name}: {findings[0]}")
    for failure in failures:  # the end of the output tells; .ci/run collects these lines
        print(failure.splitlines()[0])
    print(f"{passed} passed, {len(failures)} failed, 0 skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
