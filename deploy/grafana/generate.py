#!/usr/bin/env python3
"""Writes the dashboards: `python3 deploy/grafana/generate.py`; `--check` writes nothing and fails when one is not up to date."""

import json
import sys
from pathlib import Path

from boards import BOARDS

HERE = Path(__file__).parent


def write(name: str, board: dict, check: bool) -> bool:
    path = HERE / "dashboards" / f"{name}.json"
    content = json.dumps(board, indent=2, ensure_ascii=False) + "\n"
    if check:
        return path.exists() and path.read_text() == content
    path.write_text(content)
    return True


def main() -> int:
    check = "--check" in sys.argv[1:]
    old = [name for name, board in BOARDS.items() if not write(name, board(), check)]
    for name in old:
        print(f"dashboards/{name}.json is not up to date: run python3 deploy/grafana/generate.py", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
