"""``python -m descend.cli`` is the command ``descend``."""

import sys

from descend.cli import main

sys.exit(main())
