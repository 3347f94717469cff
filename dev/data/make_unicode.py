#!/usr/bin/env python3
"""Writes the table in unicode.c: which characters are letters, numbers and white space.

    pip install unicodedata2==16.0.0
    python3 dev/data/make_unicode.py

GPT-2's pre-tokenization tests characters for \\p{L}, \\p{N} and \\s. The result depends on the
version of Unicode. The table uses 16.0, the version in tiktoken's regular expressions. The package
unicodedata2 is Python's unicodedata at a chosen version; the script refuses any other version.
"""
import os
import re
import sys

VERSION = "16.0.0"
CLASSES = {"O": 0, "L": 1, "N": 2, "S": 3}

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "unicode.c")


def character_class(unicodedata, code):
    """\\p{L} and \\p{N} are general categories; \\s is the property White_Space."""
    category = unicodedata.category(chr(code))
    if category[0] in "LN":
        return category[0]
    if category[0] == "Z" or code in (9, 10, 11, 12, 13, 0x85):
        return "S"
    return "O"


def main():
    try:
        import unicodedata2 as unicodedata
    except ImportError:
        import unicodedata
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"make_unicode.py: this is Unicode {unicodedata.unidata_version}, not {VERSION}; "
                 f"pip install unicodedata2=={VERSION}")
    runs, last = [], None
    for code in range(0x110000):
        name = character_class(unicodedata, code)
        if name != last:
            runs.append(f"0x{code * 4 + CLASSES[name]:x},")
        last = name
    lines = ["   "]
    for run in runs:
        if len(lines[-1]) + 1 + len(run) > 100:
            lines.append("   ")
        lines[-1] += " " + run
    with open(FILE, encoding="ascii") as f:
        text = f.read()
    table = f"unicode_runs[{len(runs)}] = {{\n" + "\n".join(lines) + "\n};"
    with open(FILE, "w", encoding="ascii") as f:
        f.write(re.sub(r"unicode_runs\[\d+\] = \{.*?\};", table, text, flags=re.S))


if __name__ == "__main__":
    main()
