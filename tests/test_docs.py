#!/usr/bin/env python3
"""What the pages claim about the source: links resolve; files, flags and targets that they name
exist; README is short, and its sections hold. The lessons have further tests of their own, in
test_lessons.py; the numbers of its answer are in test_lab_kept.py.

    tests/test_docs.py [NAME...]         the tests of these names only
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import testing
from testing import ROOT, read

README_WORDS = 1500                    # as wc -w counts them
# Another project's, a name that stands for any, and the reader's own.
ELSEWHERE = {"llm.c", "mine.c"}


def files_of(*patterns):
    return testing.run("git", "ls-files", *patterns).split()


PAGES = {page: read(page) for page in files_of("*.md")}
NAMES = {os.path.basename(path) for path in files_of()}


def code_of(text):
    """What a page shows as code: spans, and blocks without the output they quote."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S))
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    return spans + re.findall(r"^ *((?:make|\./|scripts/|dev/|tests/).*)$", blocks, re.M)


def anchors_of(text):
    """What links may name of a page: its headings as GitHub and GitLab write them in an address."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_resolve():
    for page, text in PAGES.items():
        for link, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", text):
            if link.startswith("https:"):
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(page), link)) if link else page
            assert os.path.exists(os.path.join(ROOT, path)), f"{page}: there is no {link}"
            assert not anchor or anchor in anchors_of(PAGES[path]), \
                f"{page}: {path} has no section #{anchor}"


def test_readme_is_short():
    words = len(PAGES["README.md"].split())
    assert words <= README_WORDS, f"README.md has {words} words, more than {README_WORDS}"


def test_files_that_pages_name_exist():
    for page, text in PAGES.items():
        for code in code_of(text):
            for path in re.findall(r"(?<![\w/.])[\w./-]*\w\.(?:cu?|h|cpp|py|sh)\b", code):
                made = path.startswith(("build/", "exercise/")) or path in ELSEWHERE
                there = [os.path.join(ROOT, path), os.path.join(ROOT, os.path.dirname(page), path)]
                assert made or path in NAMES or any(map(os.path.exists, there)), \
                    f"{page}: there is no {path}"


def test_flags_and_targets_that_pages_name_exist():
    files = files_of("dev", "scripts", "dataloader.h", "tests/gpu.sh")
    source = "\n".join(read(path) for path in files
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


def test_sections_and_lines_are_as_readme_says():
    readme, words = PAGES["README.md"], " ".join(PAGES["README.md"].split())
    banners = re.findall(r"^// ={80,}\n// (.+)\n// ={80,}$", read("train_gpt2.c"), re.M)
    listed = re.findall(r"^\d\. \*\*(.+?)\*\*", readme, re.M)
    assert listed[-1] == "Training loop" and listed == banners[:len(listed)], \
        f"README.md lists {listed}, train_gpt2.c has {banners}"
    at_most = int(re.search(r"\bone file of under (\d+) lines", words).group(1))
    lines = read("train_gpt2.c").count("\n")
    assert lines <= at_most, f"README.md: train_gpt2.c has {lines} lines, more than {at_most}"
    about = int(re.search(r"about ([\d,]+) lines", words).group(1).replace(",", ""))
    lines = read("train_gpt2.cu").count("\n")
    assert abs(lines - about) <= about / 10, \
        f"README.md: train_gpt2.cu has {lines} lines, not about {about}"


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
