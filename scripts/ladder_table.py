#!/usr/bin/env python3
"""Writes the ladders' tables of counts into dev/cuda/counted.md.

    make ladder TABLE=1                       counts every ladder, and rewrites the page
    scripts/ladder_table.py PROGRAM...        PROGRAM: build/counted/layernorm ...
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "dev/cuda/counted.md")
BEGIN, END = "<!-- ladders: written by make ladder TABLE=1 -->\n", "<!-- ladders: end -->\n"


def table(output):
    """What a ladder prints up to its legend, without padding."""
    lines = output.split("\nColumns\n")[0].strip("\n").splitlines()
    return "\n".join("| %s |" % " | ".join(cell.strip() for cell in line.strip("|").split("|"))
                     if line.startswith("|") else line for line in lines)


def write(tables):
    with open(PAGE, encoding="utf-8") as f:
        page = f.read()
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(head + BEGIN + "\n" + "\n\n".join(tables) + "\n\n" + END + tail)


if __name__ == "__main__":
    write([table(subprocess.run([program], stdout=subprocess.PIPE, universal_newlines=True,
                                check=True).stdout) for program in sys.argv[1:]])
