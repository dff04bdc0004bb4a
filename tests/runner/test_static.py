# SPDX-License-Identifier: Apache-2.0
"""The static checks of .ci/static.py find what they are for: each is shown a small tree with one sin."""
import importlib.util
import pathlib
import subprocess

import pytest

PATH = pathlib.Path(__file__).resolve().parents[2] / ".ci/static.py"


@pytest.fixture
def static(tmp_path):
    """The module, looking at an empty tree instead of ours."""
    spec = importlib.util.spec_from_file_location("static", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = tmp_path
    for folder in module.PRODUCT + ["cache/base", "tests", ".ci"]:
        (tmp_path / folder).mkdir(exist_ok=True)
    return module


def put(root, name, text):
    (root / name).write_text(text)


def archive(root, folder, name, text):
    """A static library of one member in the build folder `root`."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    put(root, f"{folder}/x.c", text)
    subprocess.run(["cc", "-O1", "-fPIC", "-c", "x.c", "-o", "x.o"], cwd=root / folder, check=True)
    subprocess.run(["ar", "rcs", name, "x.o"], cwd=root / folder, check=True)


@pytest.mark.parametrize("name, text", [
    ("sched/a.c", '#include "cache/cache.h"\n'),
    ("cache/a.c", '#include "sched/sched.h"\n'),
    ("cache/a.c", '#include "fs/engine.h"\n'),
    ("cache/base/a.c", '#include "cache/pool.h"\n'),
    ("sched/a.h", '#include "fs/opts.h"\n'),
    ("tools/a.c", '#include "cache/pool.h"\n'),
    ("fs/data.c", '#include "cache/cache.h"\n#include "sched/sched.h"\n'),
])
def test_wrong_direction(static, tmp_path, name, text):
    put(tmp_path, name, text)
    assert len(list(static.check_dependency_direction(None))) == 1


def test_right_direction(static, tmp_path):
    put(tmp_path, "fs/engine.c", '#include "cache/cache.h"\n#include "sched/sched.h"\n')
    put(tmp_path, "sched/a.c", '#include "sched/sched.h"\n#include "cache/base/arith.h"\n')
    assert list(static.check_dependency_direction(None)) == []


@pytest.mark.parametrize("include", ["<fuse_lowlevel.h>", "<fuse3/fuse.h>", "<fuse.h>"])
def test_fuse_headers(static, tmp_path, include):
    put(tmp_path, "fs/fuse_data.c", f"#include {include}\n")
    assert list(static.check_fuse_headers(None)) == []
    put(tmp_path, "fs/node.c", f"#include {include}\n")
    assert len(list(static.check_fuse_headers(None))) == 1


@pytest.mark.parametrize("text, culprit", [
    ("#include <time.h>\nlong f(void) { return time(0); }", "time"),
    ("#include <unistd.h>\nlong f(void) { char c; return read(0, &c, 1); }", "read"),
    ("#include <pthread.h>\nint f(pthread_mutex_t *m) { return pthread_mutex_lock(m); }", "pthread_mutex_lock"),
    ("static int calls;\nint f(void) { return ++calls; }", "calls"),
    ("long hfs_now(void);\nlong f(void) { return hfs_now(); }", "hfs_now -> clock_gettime"),
])
def test_impure(static, tmp_path, text, culprit):
    archive(tmp_path, "cache/base", "libhfs_base.a",
            "#include <time.h>\nlong hfs_now(void) { struct timespec t; clock_gettime(1, &t); return t.tv_sec; }")
    archive(tmp_path, "sched", "libsched.a", text)
    findings = list(static.check_sched_is_pure(tmp_path))
    assert len(findings) == 1 and findings[0].endswith(culprit)


def test_pure(static, tmp_path):
    archive(tmp_path, "sched", "libsched.a",
            "#include <stdlib.h>\n#include <string.h>\nstatic const char *const names[] = {\"a\", \"b\"};\n"
            "char *f(int i) { char *p = malloc(9); if (p) strncpy(p, names[i & 1], 9); return p; }")
    assert list(static.check_sched_is_pure(tmp_path)) == []


@pytest.mark.parametrize("opening", ["int f(void)\n{\n", "int f(void) {\n"])
def test_function_length(static, tmp_path, opening):
    table = "static const int t[] = {\n" + "\t1,\n" * 200 + "};\n"
    put(tmp_path, "fs/a.c", table + opening + "\tg();\n" * 50 + "}\n")
    assert list(static.check_function_length(None)) == []
    put(tmp_path, "fs/a.c", table + opening + "\tg();\n" * 60 + "}\n")
    findings = list(static.check_function_length(None))
    assert len(findings) == 1 and "f() has" in findings[0]


def test_forbidden(static, tmp_path):
    put(tmp_path, "fs/a.c", '/* volatile */ int a; // atoi(x)\nconst char *s = "sprintf(";\nint strtokens(int);\n')
    assert list(static.check_forbidden(None)) == []
    put(tmp_path, "fs/a.c", "volatile int a;\nint b(char *s) { return atoi(s); }\n")
    assert len(list(static.check_forbidden(None))) == 2


def test_header_alone(static, tmp_path):
    put(tmp_path, "compile_commands.json", "[]")
    put(tmp_path, "fs/good.h", "#include <stdint.h>\nuint32_t f(void);\n")
    assert list(static.check_header_alone(tmp_path)) == []
    put(tmp_path, "fs/bad.h", "uint32_t f(void);\n")
    assert list(static.check_header_alone(tmp_path)) != []


def test_file_head(static, tmp_path):
    put(tmp_path, "fs/a.c", "/* SPDX-License-Identifier: Apache-2.0 */\n")
    assert list(static.check_file_head(None)) == []
    put(tmp_path, "fs/b.c", "int a;\n")
    assert len(list(static.check_file_head(None))) == 1
