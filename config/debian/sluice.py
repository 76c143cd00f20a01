#!/usr/bin/python3
"""The command `sluice` of the Debian package."""

from sluice.__main__ import main

raise SystemExit(main())
