#!/usr/bin/env python3
"""Prints the ladders' tables, as dev/cuda/README.md has them; with --write puts them there.

    make ladder TABLE=1                                  counts every ladder, and rewrites the page
    scripts/ladder_table.py [--write] PROGRAM...         PROGRAM: build/counted/layernorm ...

Counts are those of the programs. Times are those in dev/results/GPU-DATE/ladders.md, what
make ladder prints where a GPU is; where there is none, their columns stay empty.
"""
import argparse
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "dev/cuda/README.md")
BEGIN, END = "<!-- ladders: written by make ladder TABLE=1 -->\n", "<!-- ladders: end -->\n"


def die(message):
    sys.exit("ladder_table.py: " + message)


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def operation(title):
    """'LayerNorm, forward' of '**LayerNorm, forward: N=512, C=768, bf16**'."""
    return title.strip("*\n").split(":")[0]


def times(reports):
    """{(operation, rung): [us, of the limit]}, and {operation: the shape}, of the last report."""
    found, shapes, title = {}, {}, None
    for report in reports:
        for line in open(report, encoding="utf-8"):
            if re.match(r"\*\*.*: .*\*\*$", line):
                title = line
                shapes[operation(title)] = title.strip("*\n").split(": ", 1)[1]
            elif title and re.match(r"\|.*\| *[\d.]+ \| *[\d.]+% \|$", line):
                rung, us, share = cells(line)
                found[operation(title), rung] = [us, share]
    return found, shapes


def with_times(output, found, shapes):
    """The program's output up to its legend, its tables without padding, two columns added."""
    lines, title = [], None
    for line in output.split("\nColumns\n")[0].splitlines():
        if line.startswith("**"):
            title = operation(line)
        if not line.startswith("|"):
            lines.append(line)
            continue
        row = cells(line)
        if row[0] == "rung":
            shape = " (%s)" % shapes[title] if title in shapes else ""
            row += ["us" + shape, "of the limit"]
        elif row[0] == "---":
            row += ["---", "---"]
        else:
            row += found.get((title, row[0]), ["", ""])
        lines.append("| %s |" % " | ".join(row))
    return "\n".join(lines).strip("\n")


def output_of(program):
    ran = subprocess.run([program], stdout=subprocess.PIPE, universal_newlines=True)
    if ran.returncode != 0:
        die(program + " failed")
    return ran.stdout


def tables(programs, output=output_of):
    found, shapes = times(sorted(glob.glob(os.path.join(ROOT, "dev/results/*/ladders.md"))))
    parts = [with_times(output(program), found, shapes) for program in programs]
    return "\n\n".join(parts) + "\n"


def write(text):
    page = open(PAGE, encoding="utf-8").read()
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        die("%s lacks the lines between which the tables stand" % PAGE)
    head, rest = page.split(BEGIN)
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(head + BEGIN + "\n" + text + "\n" + END + rest.split(END)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    args = parser.parse_args()
    text = tables(args.programs)
    if args.write:
        write(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
