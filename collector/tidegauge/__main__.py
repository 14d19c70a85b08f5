"""``python -m tidegauge``."""

from __future__ import annotations

from tidegauge.cli.main import main

raise SystemExit(main())
