"""Store runs of the benchmark with the package, for `shmring bench` to print beside a run of its user.

    shmring bench --json collectives.json
    shmring bench --channels --json channels.json
    python tools/stored_run.py collectives.json channels.json
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

from shmring.bench.stored import FILE, condensed, machine_name


def main() -> None:
    """Of the reports that the command line names."""
    reports = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    run = condensed(reports, date.today().isoformat(), machine_name(reports[0]["machine"]))
    rows = ",\n".join(f"  {json.dumps(row)}" for row in run.pop("rows"))
    FILE.write_text(json.dumps(run)[:-1] + ', "rows": [\n' + rows + "\n]}\n")


if __name__ == "__main__":
    main()
