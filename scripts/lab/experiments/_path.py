"""Lets an experiment import the shared machinery: `import _path` before it."""
import os
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                "shared"))
