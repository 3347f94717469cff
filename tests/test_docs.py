#!/usr/bin/env python3
"""What the pages claim about the source: links resolve; files, flags and targets that they name
exist; README's counts of lines and of lessons hold. The lessons have further tests of their own,
in test_lessons.py.

    tests/test_docs.py [NAME...]         the tests of these names only
"""
import csv
import glob
import json
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import testing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WITHIN = 20                            # lines that a count in README may be off by
ELSEWHERE = {"llm.c", "fuzz_NAME.c"}   # another project's, and a name that stands for any
IN_WORDS = {14: "fourteen", 15: "fifteen", 16: "sixteen"}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def files_of(*patterns):
    return subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True,
                          check=True).stdout.split()


PAGES = {page: read(page) for page in files_of("*.md")}
NAMES = {os.path.basename(path) for path in files_of()}


def code_of(text):
    """What a page shows as code: spans, and blocks without the output they quote."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S))
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    return spans + re.findall(r"^ *((?:make|\./|scripts/|dev/|tests/).*)$", blocks, re.M)


def test_links_resolve():
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(([^)\s#]+)\)", text):
            there = os.path.exists(os.path.join(ROOT, os.path.dirname(page), link))
            assert there or link.startswith("https:"), f"{page}: there is no {link}"


def test_files_that_pages_name_exist():
    for page, text in PAGES.items():
        for code in code_of(text):
            for path in re.findall(r"(?<![\w/.])[\w./-]*\w\.(?:cu?|h|cpp|py|sh)\b", code):
                made = path.startswith(("build/", "exercise/")) or path in ELSEWHERE
                there = [os.path.join(ROOT, path), os.path.join(ROOT, os.path.dirname(page), path)]
                assert made or path in NAMES or any(map(os.path.exists, there)), \
                    f"{page}: there is no {path}"


def test_flags_and_targets_that_pages_name_exist():
    source = "\n".join(read(path) for path in files_of("dev", "scripts", "dataloader.h")
                       if path.endswith((".c", ".h", ".cu", ".cpp", ".py", ".sh", ".sbatch")))
    flags = set(re.findall(r'(?:--|^    \{ ")([a-z][a-z0-9-]+)', source, re.M))
    targets = set(re.findall(r"^([a-z_0-9-]+):", read("Makefile"), re.M))
    for page, text in PAGES.items():
        for code in code_of(text):
            for flag in re.findall(r"(?<!\S)--([a-z][a-z0-9-]+)", code):
                assert flag in flags, f"{page}: there is no flag --{flag}"
            for target in re.findall(r"^make (?:\w+=\S+ )*([a-z][\w/-]*)", code):
                made = target in targets or target.startswith("build/")
                assert made, f"{page}: there is no make {target}"


def sections_of(path):
    """The lines of each section of a trainer: from a banner to the next one."""
    parts = re.split(r"^// ={80,}\n// (.+)\n// ={80,}\n", read(path), flags=re.M)
    return {name: text.count("\n") + 3 for name, text in zip(parts[1::2], parts[2::2])}


def test_lines_are_as_many_as_readme_says():
    readme, sizes = PAGES["README.md"], sections_of("train_gpt2.c")
    rows = re.findall(r"^\| ([A-Z][\w, ]+) \| (\d+) \|", readme, re.M)
    assert ", ".join(name for name, _ in rows) == ", ".join(sizes), "README: other sections"
    said = {name: (int(lines), sum(sizes[part] for part in name.split(", ")))
            for name, lines in rows}
    for path, words in [("train_gpt2.c", r"in one file of about ([\d,]+) lines"),
                        ("train_gpt2.cu", r"`train_gpt2.cu` \(([\d,]+) lines\)")]:
        said[path] = (int(re.search(words, readme).group(1).replace(",", "")),
                      read(path).count("\n"))
    for name, (claimed, counted) in said.items():
        assert abs(claimed - counted) <= WITHIN, \
            f"README.md: {name} has {counted} lines, not {claimed}"


def kept(path):
    """A JSON file of the laboratory's results, or the rows of a table."""
    text = read(os.path.join("scripts", "lab", "results", path))
    return list(csv.DictReader(text.splitlines())) if path.endswith(".csv") else json.loads(text)


def test_answer_quotes_what_was_measured():
    """README's five sentences against the results of experiments 2, 5 and 8."""
    answer = PAGES["README.md"].split("## Why train on many GPUs")[1].split("![")[0]
    answer = " ".join(answer.split())
    b_crit = {row["target_nats"]: float(row["b_crit"]) for row in kept("02_knee/fit.csv")
              if (row["size"], row["reading"]) == ("119k", "weights")}
    at_first = [f"{float(row['b_crit']):,.0f}" for size in ("35k", "119k", "0.8M")
                for row in kept("02_knee/fit.csv")
                if (row["size"], row["reading"], row["target_nats"]) == (size, "weights", "2.5")]
    unlucky = [float(row["updates_two"]) for row in kept("05_time/blocks.csv")
               if (row["model"], row["batch_one"]) == ("119k", "256")]
    power = re.search(r"to the power of [\d.]+", kept("02_knee/summary.json")["why"]).group()
    times = {(r["model"], *r["batches"]): r["speedup"] for r in kept("05_time/fit.json")["ratios"]}
    large, best = times["0.8M", 1024, 1024], times["119k", 256, 1024]
    days = {row["gpus"]: float(row["modelled_days"]) for row in kept("08_fits/days.csv")
            if row["model"] == "1.6B"}
    for words in [
            f"{b_crit['2.5']:,.0f} tokens at 2.5 nats to {b_crit['1.4']:,.0f} at 1.4", power,
            "({}, {} and {} tokens)".format(*at_first),
            f"took {min(unlucky):,.0f} to {max(unlucky):,.0f} updates",
            f"{large[0]:.2f} times as fast as one with 0.8 million",
            f"measured, {large[1]:.2f} to {large[2]:.2f}",
            f"{times['119k', 4096, 4096][0]:.2f} times with 119 thousand and 4,096",
            "{:.2f} times ({:.2f} to {:.2f}) with 119 thousand and each at its own".format(*best),
            f"{days['1']:.1f} days there, {24 * days['8']:.0f} hours on 8 and "
            f"{24 * days['64']:.1f} hours on 64"]:
        assert words in answer, f"README.md: the answer does not say: {words}"


def test_lessons_are_as_many_as_pages_say():
    lessons = len(glob.glob(os.path.join(ROOT, "dev", "lessons", "[0-9][0-9]_*.md")))
    for page in ["README.md", "dev/lessons/README.md"]:
        counts = re.findall(r"\b(\w+teen) lessons", PAGES[page], re.I)
        assert counts and {word.lower() for word in counts} == {IN_WORDS[lessons]}, \
            f"{page}: there are {lessons} lessons, not {counts}"


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
