"""Write what C and the types say of element types, operations and kinds of calls, from the rows of `shmring.dtypes`
and `shmring.collectives.plan.kinds`.

`shmring/core/kernel/numbers.h` and `shmring/collectives/engine/kinds.h` are written whole; in the declarations of that,
in the header of the C table and in its declarations, the bodies of enums are; in `shmring/typing.py` the names of
operations are. `tests/unit/base/test_dtypes.py` compares.
"""

from __future__ import annotations

import re
import runpy
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ROWS = runpy.run_path(str(ROOT / "shmring" / "dtypes.py"))  # without the extensions, which are older than a new row
DTYPES, OPS, ALIASES = [row.name for row in ROWS["DTYPES"]], ROWS["OPS"], ROWS["OP_ALIASES"]
KIND_ROWS = runpy.run_path(str(ROOT / "shmring" / "collectives" / "plan" / "kinds.py"))
KINDS, ON_ARRAYS = KIND_ROWS["KINDS"][1:], KIND_ROWS["ON_ARRAYS"]
NUMBERS = """\
/* The element types and operations, in the order of dtypes.py. Written by tools/enums.py. */
#ifndef SHMRING_NUMBERS_H
#define SHMRING_NUMBERS_H

#define SHMRING_DTYPES(X) {dtypes}
#define SHMRING_OPS(X) {ops}

#define SHMRING_NDTYPES {ndtypes}
#define SHMRING_NOPS {nops}

#endif
"""


KIND_HEADER = """\
/* The kinds of calls, by code. Written by tools/enums.py from collectives/plan/kinds.py, which has what the columns
mean. */
#ifndef SHMRING_KINDS_H
#define SHMRING_KINDS_H

enum {{
    KIND_NONE,
{codes}
    KIND_END
}};

{sets}

typedef struct {{
    const char *name;
    char inputs, outputs;
    char reads;
    signed char blocks_in, blocks_out;
    char takes_counts, takes_op;
    char shared_inputs, shared_outputs;
}} shmring_kind;

static const shmring_kind KINDS[KIND_END] = {{
{rows}
}};

#endif
"""


def kinds(_: str) -> str:
    """The text of ``kinds.h``."""
    codes = "\n".join(f"    {code}," for code in CODES)
    sets = "\n".join(f"enum {{ {', '.join(names)} }};" for names in SETS)
    return KIND_HEADER.format(codes=codes, sets=sets, rows="\n".join(map(row_of, CODES, KINDS)))


def row_of(code: str, kind: NamedTuple) -> str:
    """A row of the table of C."""
    values = [f'"{kind.name}"']
    for field in kind._fields[2:]:
        value = getattr(kind, field)
        if isinstance(value, bool):
            values.append(str(int(value)))
        elif isinstance(value, int):
            values.append(f"{value:d}")
        else:
            values.append(f"{'READS' if field == 'reads' else 'OF'}_{value.upper()}")
    return f"    [{code}] = {{{', '.join(values)}}},"


def kind_declarations(text: str) -> str:
    """``collectives/engine/kinds.pxd`` with the kinds of today."""
    names = ["KIND_NONE", *CODES, "KIND_END", *(name for names in SETS for name in names)]
    body = "".join(f"        {name}\n" for name in names)
    return re.sub(r"(?<=    enum:\n).*?(?=\n    ctypedef)", body, text, flags=re.DOTALL)


def numbers(_: str) -> str:
    """The text of ``numbers.h``."""
    return NUMBERS.format(dtypes=macro(DTYPES), ops=macro(OPS), ndtypes=len(DTYPES), nops=len(OPS))


def macro(names: Sequence[str]) -> str:
    """The names as arguments of a macro each, in lines that go on."""
    lines = textwrap.wrap(" ".join(f"X({name.upper()})" for name in names), 100)
    return " \\\n    ".join(["", *lines]).lstrip(" ")


def header(text: str) -> str:
    """``capi.h`` with the enums of today."""
    for name, (first, names) in ENUMS.items():
        begin = 1 if name == "collective" else 0
        body = ",\n".join(f"    SHMRING_{one.upper()} = {number}" for number, one in enumerate(names, begin))
        text = re.sub(rf"(?<=enum shmring_{name} {{\n{re.escape(first)}).*?(?=\n}};)", body, text, flags=re.DOTALL)
    return text


def declarations(text: str) -> str:
    """``capi/__init__.pxd`` with the enums of today."""
    for name, (first, names) in ENUMS.items():
        body = "".join(f"        SHMRING_{one.upper()}\n" for one in [*(["opaque"] if first else []), *names])
        text = re.sub(rf"(?<=    enum shmring_{name}:\n).*?(?=\n    \w)", body, text, flags=re.DOTALL)
    return text


def types(text: str) -> str:
    """``typing.py`` with the names of operations of today."""
    rows = [form(name) for form in (str.lower, str.upper) for name in (*OPS, *ALIASES)]
    body = textwrap.fill(
        ", ".join(f'"{name}"' for name in rows) + ",", 110, initial_indent="    ", subsequent_indent="    "
    )
    return re.sub(r"(?<=OpName: TypeAlias = Literal\[\n).*?(?=\n\])", body, text, flags=re.DOTALL)


CODES = [f"KIND_{kind.name.upper()}" for kind in KINDS]
SETS = [
    ["OF_NO_RANK", "OF_ROOT", "OF_ALL"],
    [f"READS_{name.upper()}" for name in dict.fromkeys(["nothing", *(kind.reads for kind in KINDS)])],
]
# By name: what the header says before the rows, and their names.
ENUMS = {
    "dtype": ("    SHMRING_OPAQUE = -1, /* bytes: messages only; may be received as SHMRING_UINT8 */\n", DTYPES),
    "op": ("", OPS),
    "collective": ("", [f"kind_{name}" for name in ON_ARRAYS]),
}
FILES = {
    "shmring/core/kernel/numbers.h": numbers,
    "shmring/collectives/engine/kinds.h": kinds,
    "shmring/collectives/engine/kinds.pxd": kind_declarations,
    "shmring/capi/include/shmring/capi.h": header,
    "shmring/capi/__init__.pxd": declarations,
    "shmring/typing.py": types,
}


def written() -> dict[Path, str]:
    """The text that each file should have."""
    return {
        ROOT / name: write((ROOT / name).read_text() if (ROOT / name).exists() else "") for name, write in FILES.items()
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
