"""Lets an experiment import the shared machinery, and says what it needs: `import _path` before
both."""
import importlib.util
import os
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                "shared"))
if not all(map(importlib.util.find_spec, ["numpy", "matplotlib"])):
    sys.exit(f"{os.path.basename(sys.argv[0])}: needs pip install numpy matplotlib")
