"""The reader's Python: one interpreter for a page, in which its blocks run in order and share their names.

Reads one JSON object a line, {"code": ..., "name": ...}, and answers {"printed": ..., "error": ...}. The blocks never
see `__main__`, so that `if __name__ == "__main__":` keeps a file's own start out, as an import does.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import sys
import traceback
import types


def main() -> None:
    """Serve until standard input ends."""
    # What a block's children write must not end up among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    module = types.ModuleType("page")
    sys.modules["page"] = module
    for line in sys.stdin:
        asked = json.loads(line)
        code, name = asked["code"], asked["name"]
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        printed = io.StringIO()
        error = ""
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(code, name, "exec"), module.__dict__)
            except BaseException:  # noqa: BLE001  whatever it is, the page hears of it
                error = traceback.format_exc()
        answers.write(json.dumps({"printed": printed.getvalue(), "error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
