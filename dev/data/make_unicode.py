#!/usr/bin/env python3
"""Writes unicode.c: which characters are letters, numbers and white space.

    pip install unicodedata2==16.0.0
    python3 dev/data/make_unicode.py > dev/data/unicode.c

GPT-2's pre-tokenization tests characters for \\p{L}, \\p{N} and \\s. The result depends on the
version of Unicode. The table uses 16.0, the version in tiktoken's regular expressions. The package
unicodedata2 is Python's unicodedata at a chosen version; the script refuses any other version.
"""
import sys

VERSION = "16.0.0"
CLASSES = {"O": 0, "L": 1, "N": 2, "S": 3}

HEAD = """\
// Letters, numbers and white space of Unicode {version}. Written by make_unicode.py: do not edit.
//
// The table lists runs of code points of one class. An entry is 4 * the run's first code point +
// its class. A run ends before the next run begins; the last one ends at U+10FFFF.
#include "data.h"

static const uint32_t unicode_runs[{count}] = {{
"""

TAIL = """\
};

int unicode_class(uint32_t c) {
    int low = 0, high = (int)(sizeof unicode_runs / sizeof unicode_runs[0]);
    while (high - low > 1) {                       // start of run low <= c < start of run high
        int middle = (low + high) / 2;
        if (unicode_runs[middle] >> 2 <= c) low = middle;
        else high = middle;
    }
    return (int)(unicode_runs[low] & 3);
}
"""


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
    print(HEAD.format(version=VERSION, count=len(runs)), end="")
    line = "   "
    for run in runs:
        if len(line) + 1 + len(run) > 100:
            print(line)
            line = "   "
        line += " " + run
    print(line)
    print(TAIL, end="")


if __name__ == "__main__":
    main()
