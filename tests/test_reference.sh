#!/bin/sh
# The fixtures are what dev/reference/gpt2.py writes, and that model is Hugging Face's GPT-2.
# Takes the first of python3 and /usr/bin/python3 that has torch (a distribution's package is
# invisible to a python3 of another origin).
cd "$(dirname "$0")/.." || exit 1
for python in "${PYTHON:-python3}" python3 /usr/bin/python3; do
    if "$python" -c "import torch" >/dev/null 2>&1; then
        PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
            exec "$python" dev/reference/gpt2.py check tests/fixtures/*.bin
    fi
done
echo "skip reference: needs python3 with torch"
