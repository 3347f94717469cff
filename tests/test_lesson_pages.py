#!/usr/bin/env python3
"""make pages LESSONS=1: links and anchors resolve, code is today's source, formulas are MathML; in
Chromium no page asks the network or is wider than a telephone, and the stepped pictures step, with
numbers that are computed again here.

    tests/test_lesson_pages.py [NAME...]     the tests of these names only
"""
import atexit
import functools
import glob
import html.parser
import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import browser
import testing
from testing import ROOT, read

OUT = tempfile.TemporaryDirectory()
BUILDER = os.path.join(ROOT, "dev", "lessons", "pages.py")
FOLDERS = {"lessons": "", "build_up": "build_up/", "exercises": "exercises/"}
SOURCES = [os.path.join(ROOT, "dev", folder) for folder in FOLDERS]
PICTURES = {"07_attention": "online_softmax", "08_residuals": "block", "12_matmul": "tiles",
            "13_gpu": "banks", "14_ranks": "ring"}


@functools.lru_cache(None)
def markdown_pages():
    """{name of the page: its Markdown}, of all folders."""
    found = {}
    for source, to in zip(SOURCES, FOLDERS.values()):
        for path in glob.glob(os.path.join(source, "*.md")):
            found[to + os.path.basename(path)[:-3].replace("README", "index")] = read(path)
    return found


class Parsed(html.parser.HTMLParser):
    """A page's text, ids, links and what it loads."""

    def __init__(self, name):
        super().__init__()
        self.path = os.path.join(OUT.name, name + ".html")
        self.ids, self.links, self.loads = [], [], []
        with open(self.path, encoding="utf-8") as file:
            self.text = file.read()
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs["href"]] if tag == "a" else []
        if attrs.get("rel") not in ("prev", "next", "up"):
            self.loads += [attrs[key] for key in ("src", "href") if key in attrs and tag != "a"]


@functools.lru_cache(None)
def built():
    """The pages, built once: {name: Parsed}."""
    for module in ["markdown_it", "mdit_py_plugins", "latex2mathml"]:
        if not importlib.util.find_spec(module):
            raise testing.Skip(f"needs {module}, of pip")
    if not os.listdir(OUT.name):
        done = subprocess.run([sys.executable, BUILDER, "--out", OUT.name], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0, done.stderr
    return {name: Parsed(name) for name in markdown_pages()}


def test_lesson_pages_links_resolve():
    """Addresses and anchors; nothing is loaded, and a link to a page is to its HTML."""
    pages = built()
    ids = {os.path.realpath(page.path): page.ids for page in pages.values()}
    for name, page in pages.items():
        assert len(set(page.ids)) == len(page.ids), f"{name}: an id stands twice"
        assert all(load.startswith("data:") for load in page.loads), (name, page.loads)
        for link in page.links:
            path, _, anchor = link.partition("#")
            path = os.path.realpath(os.path.join(os.path.dirname(page.path), path) if path
                                    else page.path)
            assert link.startswith("https:") or os.path.exists(path), f"{name}: there is no {link}"
            assert not anchor or anchor in ids.get(path, [anchor]), f"{name}: no anchor {link}"
            assert not path.endswith(".md") or os.path.dirname(path) not in SOURCES, \
                f"{name}: {link} has a page"


def test_lesson_pages_quote_the_source():
    """What the functions' section names is linked to code; the code is the file's, whole."""
    for name, page in built().items():
        found = re.search(r"\n## The functions to read\n(.*?)\n## ", markdown_pages()[name], re.S)
        for function in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+|main|train|dot|lane|load|store)`",
                                   found.group(1) if found else ""):
            assert f"#code-{function}" in page.links, f"{name}: {function} is not quoted"
        for function, file, above, shown in re.findall(
                r"<code>(\w+)</code>, ([\w./]+), lines.*?line (\d+)'>(.*?)</pre>", page.text, re.S):
            code = html.unescape(re.sub(r"</?(?:span|i)[^>]*>", "", shown))
            lines = read(file).split("\n")[int(above):][:code.count("\n") + 1]
            assert lines == code.split("\n"), f"{name}: {function} is not {file}'s"
            assert function in code or function in file, f"{name}: {function} is other code"
            assert code.count("{") == code.count("}"), f"{name}: {function} is cut"


def test_lesson_pages_mark_what_a_step_added():
    """Without what is marked, a step's program is lines of the one before, in their order."""
    programs = sorted(glob.glob(os.path.join(SOURCES[1], "[0-9]*.c")))
    pages = built()
    for before, program in zip(programs, programs[1:]):
        name = os.path.basename(program)[:-2]
        shown = pages["build_up/" + name].text.split(f"<pre id='code-{name}'")[1].split("\n")
        new = [line.startswith("<span class=new>") for line in shown]
        older = iter(read(before).split("\n"))
        assert any(new[1:]), f"{name} adds nothing"
        assert all(is_new or line in older for is_new, line in
                   zip(new[1:], read(program).split("\n")[1:])), f"{name}: a new line is not marked"


def test_lesson_pages_formulas():
    """No dollar and no command of LaTeX is left over."""
    for name, page in built().items():
        assert ("<math" in page.text) == ("$" in re.sub(
            r"```.*?```|`[^`\n]+`", "", markdown_pages()[name], flags=re.S)), name
        left = re.findall(r"\\\w+", " ".join(re.findall(r"<math.*?</math>", page.text, re.S)))
        assert not left, f"{name}: {left} is not understood"


def test_lesson_pages_without_the_library():
    done = subprocess.run([sys.executable, "-I", "-S", BUILDER], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 1 and re.fullmatch(
        r"make pages LESSONS=1: Python has no \w+: python3 -m pip install [\w -]+\n",
        done.stderr), done.stderr


# ---------------------------------------------------------------- in Chromium

TABS = []                              # one, which all tests share


def tab_of(name):
    """A lesson's page in a browser, as it is at first."""
    built()
    if not TABS:
        TABS.append(browser.Browser())
        atexit.register(TABS[0].close)
    TABS[0].open(os.path.join(OUT.name, name + ".html"))
    return TABS[0]


def test_lesson_pages_fit_and_ask_nobody():
    """At 360 pixels no page scrolls sideways; a link opens the code that it leads to."""
    for name in built():
        tab = tab_of(name)
        tab.value("document.querySelectorAll('details').forEach(folded => folded.open = true)")
        tab.size(360, 800)
        wide, room = (tab.value(f"document.documentElement.{side}Width")
                      for side in ("scroll", "client"))            # scrollbars take from the room
        assert wide <= room <= 360, f"{name} is {wide} pixels wide in {room}"
    tab = tab_of("01_first_run")
    tab.value("document.querySelector('a[href=\"#code-train_step\"]').click()")
    tab.wait("document.getElementById('code-train_step').closest('details').open")
    assert not tab.requests and not tab.errors, (tab.requests, tab.errors)


class Picture:
    """A stepped picture on its page, driven by keys."""

    def __init__(self, lesson):
        self.tab, self.figure = tab_of(lesson), f"#picture-{PICTURES[lesson]}"
        self.tab.value(f"document.querySelector('{self.figure}').focus()")

    def press(self, key):
        for kind in ["keyDown", "keyUp"]:
            self.tab.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def texts(self, chosen="text"):
        return self.tab.value(f"[...document.querySelector('{self.figure} svg')"
                              f".querySelectorAll('{chosen}')].map(text => text.textContent)")

    def named(self, name):
        """The numbers of the texts of a name."""
        return [float(re.search(r"-?[\d.]+", text.replace("−", "-").replace(",", "")).group())
                for text in self.texts(f'[data-name="{name}"]')]

    def words(self):
        return self.tab.value(f"document.querySelector('{self.figure} > p').textContent")

    def step(self):
        """(step, last step)"""
        return [int(n) for n in re.findall(r"\d+", self.tab.value(
            f"document.querySelector('{self.figure} output').textContent"))]

    def frames(self):
        """Steps forward with the right arrow from the first frame to the last, yielding each."""
        last = self.step()[1]
        for at in range(last + 1):
            assert self.step() == [at, last], self.step()
            yield at
            self.press("ArrowRight")
        assert self.step() == [last, last], "it steps past the end"


def near(ours, theirs, digits=5.1e-4):
    assert len(ours) == len(theirs), (ours, theirs)
    assert all(abs(a - b) <= digits for a, b in zip(ours, theirs)), (ours, theirs)


def test_picture_online_softmax():
    """At each step m, z and o are those of the keys so far; at the end out and lse."""
    picture = Picture("07_attention")
    scores, values = picture.named("score"), picture.named("value")
    assert len(scores) == len(values) > 4, (scores, values)
    for at in picture.frames():
        keys = range(min(at, len(scores)))
        if not keys:
            continue
        high = max(scores[i] for i in keys)
        terms = [math.exp(scores[i] - high) for i in keys]
        near(picture.named("m") + picture.named("z") + picture.named("o"),
             [high, sum(terms), sum(t * v for t, v in zip(terms, values))])
    near(picture.named("out") + picture.named("lse"),
         [sum(t * v for t, v in zip(terms, values)) / sum(terms),
          math.log(sum(math.exp(s) for s in scores))])


def test_pictures_step_back():
    """With the left arrow; and the button steps forward."""
    picture = Picture("14_ranks")
    *_, last = picture.frames()
    final = picture.texts()
    picture.press("ArrowLeft")
    assert picture.step() == [last - 1, last] and picture.texts() != final
    picture.tab.value(f"document.querySelectorAll('{picture.figure} button')[1].click()")
    assert picture.step() == [last, last] and picture.texts() == final, "the button does nothing"


def test_picture_ring():
    """The sums; half-way each rank has finished one chunk; what each has sent."""
    picture = Picture("14_ranks")
    ranks = range(4)
    brought = [picture.named(f"rank{r}") for r in ranks]
    sums = [sum(column) for column in zip(*brought)]
    for at in picture.frames():
        here = [picture.named(f"rank{r}") for r in ranks]
        if at == 3:
            finished = [[c for c in ranks if here[r][c] == sums[c]] for r in ranks]
            assert sorted(finished) == [[0], [1], [2], [3]], finished
        assert picture.named("sent") == [at], "each step sends a chunk of one number"
    assert here == [sums] * 4 and at == 2 * 3, (here, sums)


def test_picture_tiles():
    """2 n³/t numbers for n³ multiply-adds; each step adds a pair of tiles."""
    picture, n, t = Picture("12_matmul"), 8, 4
    for at in picture.frames():
        pairs = min(at, (n // t) ** 3)
        near(picture.named("fetched") + picture.named("done"), [2 * t * t * pairs, t ** 3 * pairs])
    assert picture.named("fetched") == [2 * n ** 3 / t] and picture.named("single") == [2 * n ** 3]


def test_picture_banks():
    """Passes: lanes that share a bank. Rows of 32, 33 and 34, as lesson 13 has them."""
    picture, seen = Picture("13_gpu"), {}
    for _ in picture.frames():
        text = " ".join(picture.texts())
        lanes = int(re.search(r"lanes 0 to (\d+)", text).group(1)) + 1
        wide = int((re.search(r"rows of (\d+)", text) or [0, 1])[1])   # along a row: the next word
        banks = [lane * wide % 32 for lane in range(lanes)]
        passes = max(map(banks.count, banks))
        assert picture.named("passes") == [passes], (text, passes)
        seen[wide] = passes
    assert seen == {1: 1, 32: 32, 33: 1, 34: 2}, seen


def test_picture_block():
    """The calls of train_gpt2.c in their order; the totals of a block of GPT-2 124M."""
    C, NH, N = 768, 12, 1024
    picture = Picture("08_residuals")
    said = [picture.words().split(":")[0] for _ in picture.frames()]
    calls = [call for way in ("forward", "backward") for call in re.findall(
        rf"\b(\w+_{way}|branch_project)\(", re.search(
            rf"static void block_{way}\([^)]*\) \{{(.*?)^\}}", read("train_gpt2.c"),
            re.S | re.M).group(1))]
    calls = [call.replace("branch_project", "linear_forward") for call in calls]
    assert said[1:] == calls, "the steps are not the calls of block_forward and block_backward"
    assert picture.named("parameters") == [12 * C * C + 13 * C]
    assert picture.named("kept") == [16 * N * C + 4 * N + NH * N]        # rstd and mean; lse
    assert picture.named("there") + picture.named("again") == [12 * N * C * C, 24 * N * C * C]


if __name__ == "__main__":
    sys.exit(testing.run_tests(globals(), sys.argv[1:]))
