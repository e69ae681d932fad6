"""`python -m walrq` is `walrq`."""

from __future__ import annotations

from walrq.cli import main

if __name__ == "__main__":
    main()
