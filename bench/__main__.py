"""`make bench`: every section of `space bench`, by the interpreter that runs this."""

import sys

from space.bench.main import main

sys.exit(main())
