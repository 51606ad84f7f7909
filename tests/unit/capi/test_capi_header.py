"""The header of the C table: names, numbers and order; it compiles alone; other versions are refused."""

import ctypes
import importlib.util
import re
import sysconfig
from pathlib import Path

import pytest
from support.capi import WARNINGS, compiler
from support.programs import run_program

import shmring
import shmring.capi
from shmring.collectives.plan.kinds import ON_ARRAYS
from shmring.dtypes import DTYPES, OPS

HEADER = Path(shmring.capi.get_include()) / "shmring" / "capi.h"
TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
DECLARATIONS = Path(shmring.capi.__file__).with_name("__init__.pxd").read_text()

SIZE = ctypes.c_size_t.from_address(shmring.capi.table_address()).value

# In the order of the table. Released: none may move, change or go; new ones are appended.
FUNCTIONS = (
    "last_error", "comm_open", "comm_release", "comm_rank", "comm_size", "comm_abort", "comm_close", "comm_dup",
    "comm_split", "collective", "plan_make", "plan_run", "plan_release", "send", "recv", "sendrecv", "isend", "irecv",
    "test", "wait",
)  # fmt: skip


def numbers(enum):
    """The names and numbers of an enum of the header."""
    (body,) = re.findall(rf"enum {enum} \{{(.*?)\}};", TEXT, re.DOTALL)
    return {name: int(number) for name, number in re.findall(r"SHMRING_(\w+) = (-?\d+)", body)}


def test_numbers_of_dtypes_operations_and_collectives():
    wanted = {dtype.name.upper(): code for code, dtype in enumerate(DTYPES)}
    assert numbers("shmring_dtype") == {"OPAQUE": -1} | wanted
    assert numbers("shmring_op") == {op.upper(): code for code, op in enumerate(OPS)}
    assert numbers("shmring_collective") == {f"KIND_{name.upper()}": kind.code for name, kind in ON_ARRAYS.items()}


def table_members(text):
    (body,) = re.findall(r"typedef struct shmring_api \{(.*?)\n\} shmring_api;", text, re.DOTALL)
    return re.findall(r"\(\*(\w+)\)", body)


def test_functions_are_only_appended():
    assert tuple(table_members(TEXT)) == FUNCTIONS
    size = ctypes.c_size_t.from_address(shmring.capi.table_address()).value
    assert size == 2 * ctypes.sizeof(ctypes.c_size_t) + len(FUNCTIONS) * ctypes.sizeof(ctypes.c_void_p)


def test_every_function_of_the_table_is_set():
    first = shmring.capi.table_address() + 2 * ctypes.sizeof(ctypes.c_size_t)
    assert all((ctypes.c_void_p * len(FUNCTIONS)).from_address(first))


def test_cython_has_every_name_of_the_header():
    names = set(re.findall(r"\b(SHMRING_\w+) =|typedef struct (shmring_\w+)", TEXT))
    names = {name for pair in names for name in pair if name}
    names |= {
        "SHMRING_NO_TIMEOUT",
        "SHMRING_DEFAULT_TIMEOUT",
        "SHMRING_ANY_SOURCE",
        "SHMRING_ANY_TAG",
        "SHMRING_NO_COLOR",
        "SHMRING_API_VERSION",
    }
    assert not {name for name in names if not re.search(rf"\b{name}\b", DECLARATIONS)}
    made = re.findall(r"static inline int (\w+)\([^{]*\{\s*return shmring_make\(api, comm, SHMRING_KIND_(\w+),", TEXT)
    assert {kind.lower() for _, kind in made} == ON_ARRAYS.keys()
    for name, kind in made:
        assert name == f"shmring_{kind.lower()}"
        assert re.search(rf"\b{name}\(", DECLARATIONS)
    (api,) = re.findall(r"struct shmring_api:\n(.*?)\n\n", DECLARATIONS, re.DOTALL)
    assert tuple(re.findall(r"\(\*(\w+)\)", api)) == FUNCTIONS


def compile_text(folder, language, text, *options):
    """Compile C code to a shared object; its path."""
    source, made = folder / "code.c", folder / f"code{sysconfig.get_config_var('EXT_SUFFIX')}"
    source.write_text(text)
    command = [*compiler(language), *options, "-shared", "-fPIC", f"-I{shmring.capi.get_include()}",
               f"-I{sysconfig.get_path('include')}", str(source), "-o", str(made)]  # fmt: skip
    run_program(*command)
    return made


@pytest.mark.parametrize("language", ["C11", "C++17"])
def test_the_header_compiles_alone(tmp_path, language):
    linkage = 'extern "C"' if "+" in language else ""
    code = f'#include "shmring/capi.h"\n{linkage} int has(const shmring_api *a) {{ return SHMRING_HAS(a, wait); }}\n'
    made = compile_text(tmp_path, language, code, *WARNINGS)
    address = shmring.capi.table_address()
    assert ctypes.CDLL(str(made)).has(ctypes.c_void_p(address)) == 1
    short = ctypes.create_string_buffer(ctypes.string_at(address, SIZE))
    ctypes.c_size_t.from_buffer(short).value -= 1
    assert ctypes.CDLL(str(made)).has(short) == 0


def test_another_version_or_a_smaller_table_is_refused(tmp_path):
    made = compile_text(
        tmp_path,
        "C11",
        '#include "shmring/capi.h"\nconst void *checked(const void *a) { return shmring_table(a); }\n',
        *WARNINGS,
    )
    checked = ctypes.CDLL(str(made)).checked
    checked.restype = ctypes.c_void_p
    address = shmring.capi.table_address()
    assert checked(ctypes.c_void_p(address)) == address
    assert checked(None) is None
    for offset, change in ((0, -8), (8, 1), (8, -1)):
        table = ctypes.create_string_buffer(ctypes.string_at(address, SIZE))
        ctypes.c_int.from_buffer(table, offset).value += change
        assert checked(table) is None


MODULE = """
{define}
#include <Python.h>
#include "shmring/capi.h"
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "code", NULL, -1, NULL, NULL, NULL, NULL, NULL}};
PyMODINIT_FUNC PyInit_code(void) {{ return shmring_import() ? PyModule_Create(&module) : NULL; }}
"""


def load(path):
    spec = importlib.util.spec_from_file_location("code", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


@pytest.mark.skipif(
    not (Path(sysconfig.get_path("include")) / "Python.h").exists(), reason="needs the headers of Python"
)
@pytest.mark.parametrize("language", ["C11", "C++17"])
def test_a_module_that_needs_a_newer_table_is_not_imported(tmp_path, language):
    (tmp_path / "good").mkdir()
    load(compile_text(tmp_path / "good", language, MODULE.format(define="")))
    made = compile_text(tmp_path, language, MODULE.format(define="#define SHMRING_API_LEAST_SIZE 4096"))
    with pytest.raises(ImportError, match=r"compiled for version 2 and at least 4096 bytes"):
        load(made)
