#!/usr/bin/env python3
"""Writes the lessons as pages for a browser. Each page is one file that needs no network.

    dev/lessons/pages.py [--out FOLDER]      default: lessons/, beginning with lessons/index.html

A page is its Markdown. What is added: formulas are MathML; the functions that a lesson names under
"The functions to read" are quoted from today's source, with their line numbers; figures are in the
page; and <!-- picture: NAME --> becomes that drawing of pictures.js, to step through.
"""
import argparse
import base64
import difflib
import glob
import html
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
try:
    from latex2mathml.converter import convert
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from mdit_py_plugins.dollarmath import dollarmath_plugin
except ImportError as error:
    sys.exit(f"make pages LESSONS=1: Python has no {error.name}: "
             "python3 -m pip install markdown-it-py mdit-py-plugins latex2mathml")

# Folders, and where their pages go.
FOLDERS = {"dev/lessons": "", "dev/build_up": "build_up/", "dev/exercises": "exercises/"}
LIST = "dev/lessons/README.md"
TO_READ = "The functions to read"
PICTURE = re.compile(r"<!-- picture: (\w+) -->")
# What latex2mathml writes, and what a browser spaces as TeX does: \mathrel{+}=, a / b, \partial,
# |x|, a minus that is a sign, and \ln x.
AS_TEX = [("<mo><mrow><mo>&#x0002B;</mo></mrow></mo><mo>&#x0003D;</mo>", "<mo>+=</mo>"),
          ("<mo>&#x0002F;</mo>", "<mo lspace='0' rspace='0'>/</mo>"),
          ("<mo>&#x02202;</mo>", "<mi>∂</mi>"),
          ('<mo stretchy="false">&#x0007C;', "<mo stretchy='false' lspace='0' rspace='0'>|"),
          ("(?<=&#x0003D;</mo>|&#x00028;</mo>)<mo>&#x02212;", "<mo form='prefix'>&#x02212;"),
          (r'<mi>(ln|log|tanh)</mi>(?!<mo stretchy="false">&#x00028;)',
           r"\g<0><mspace width='.17em' />")]
IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}
CODE = (".c", ".h", ".cu", ".py")
# A function with its comment, in C and in Python; a table in C.
DEFINITIONS = [
    r"(?:^//[^\n]*\n)*(?:^(?:template|__global__) [^\n;]*\n)*"
    r"^(?:[A-Za-z_][^;{{}}\n]*\b)?{0}\([^;{{}}]*\) \{{(?:[^\n]+\}}$|[^\n]*\n.*?^\}})",
    r"(?:^//[^\n]*\n)*^[a-z_][^;{{}}()\n]*\b{0}\[\w*\] = \{{\n.*?^\}};",
    r"^def {0}\(.*?(?=\n+^\S|\s*\Z)"]


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def pages_of(folder):
    """A folder's pages in order; README, the list of the others, is not among them."""
    names = map(os.path.basename, sorted(glob.glob(os.path.join(ROOT, folder, "*.md"))))
    return [f"{folder}/{name}" for name in names if name != "README.md"]


def target(page):
    """Where a page goes in the output, by its Markdown; None if that has no page."""
    folder, name = os.path.split(page)
    if folder in FOLDERS and name.endswith(".md"):
        return FOLDERS[folder] + name[:-3].replace("README", "index") + ".html"
    return None


def title(page):
    return re.sub(r"[`$]", "", re.match(r"# (.*)", read(page)).group(1))


# ---------------------------------------------------------------- code, figures, pictures

def definition(text, name):
    """The first line of a function or table in a source, and its lines; None if it is not there."""
    for pattern in DEFINITIONS:
        found = re.search(pattern.format(name), text, re.M | re.S)
        if found:
            return text.count("\n", 0, found.start()) + 1, found.group().split("\n")
    return None


def line_of(code):
    """A line of code as HTML, its comment marked."""
    return re.sub(r"((?<!:)//.*|^ *# .*)$", r"<i>\1</i>", html.escape(code))


def quoted(file, name, begin, lines, new=()):
    """Code as HTML: folded, its lines numbered as in the file; those whose index is new, marked."""
    shown = "\n".join(f"<span{' class=new' * (i in new)}>{line_of(line)}</span>"
                      for i, line in enumerate(lines))
    return (f"<details class='code'><summary><code>{name}</code>, {file}, lines {begin} to "
            f"{begin + len(lines) - 1}</summary><pre id='code-{name}' style='counter-reset: line "
            f"{begin - 1}'>{shown}</pre></details>\n")


def step_code(page, before):
    """The program beside a page, whole; marked is what the program of the page before has not."""
    file, older = page[:-3] + ".c", (before or "")[:-3] + ".c"
    if not os.path.exists(os.path.join(ROOT, file)):
        return ""
    lines = read(file).rstrip("\n").split("\n")
    old = read(older).split("\n") if os.path.exists(os.path.join(ROOT, older)) else lines
    same = difflib.SequenceMatcher(None, old, lines, autojunk=False).get_matching_blocks()
    kept = {at for block in same for at in range(block.b, block.b + block.size)}
    new = set(range(len(lines))) - kept
    return ("<h2 id='the-program'>The program</h2>\n"
            + ("<p>Green lines are those that this step adds.</p>\n" if new else "")
            + quoted(file, os.path.basename(file)[:-2], 1, lines, new))


def mentions(tokens, page):
    """What a section says as code, and the sources that it links, in order: [(token, word)]."""
    for token in tokens:
        for child in token.children or []:
            href = child.attrGet("href") or ""
            if child.type == "code_inline":
                yield child, child.content
            elif href.endswith(CODE):
                yield child, os.path.normpath(os.path.join(os.path.dirname(page), href))


def quote_functions(tokens, page):
    """Links the functions that a section names, and returns them as HTML. A name is looked up in
    the files that the section names, beginning with the one named last before it."""
    said = list(mentions(tokens, page))
    is_file = [word.endswith(CODE) and os.path.exists(os.path.join(ROOT, word)) for _, word in said]
    quotes = {}
    for i, (token, name) in enumerate(said):
        around = [*range(i - 1, -1, -1), *range(i, len(said))]
        file = next((said[j][1] for j in around if is_file[j] and re.fullmatch(r"\w+", name)
                     and definition(read(said[j][1]), name)), None)
        if file:
            quotes[name] = quotes.get(name) or quoted(file, name, *definition(read(file), name))
            token.type = "html_inline"
            token.content = f"<a href='#code-{name}'><code>{name}</code></a>"
    return "".join(quotes.values())


def image(path):
    with open(os.path.join(ROOT, path), "rb") as file:
        data = base64.b64encode(file.read()).decode("ascii")
    return f"data:{IMAGES[os.path.splitext(path)[1]]};base64,{data}"


def picture_scripts():
    """What the stepped pictures share, and the script of each by its name."""
    shared, *rest = re.split(r"^// ---- picture: (\w+) ----\n", read("dev/lessons/pictures.js"),
                             flags=re.M)
    return shared, dict(zip(rest[::2], rest[1::2]))


def picture(name):
    """A stepped picture: its script, below a figure whose caption is the script's first comment."""
    script = picture_scripts()[1][name]
    caption = re.match(r"(?:// .*\n)+", script).group().replace("// ", "")
    return (f"<figure class='stepped' id='picture-{name}'><figcaption>{html.escape(caption)}"
            f"</figcaption></figure>\n<script>\n{script}</script>\n")


# ---------------------------------------------------------------- Markdown to HTML

def mathml(latex, display):
    text = convert(latex.strip(), display=display)
    for written, spaced in AS_TEX:
        text = re.sub(written, spaced, text)
    return text


def formula(latex, options):
    """MathML. A display of several formulas wraps between them where a screen is narrow."""
    if not options["display_mode"]:
        return mathml(latex, "inline")
    parts = re.split(r"(?:\\qquad\s*)+", latex.strip())
    return "".join(f"<span>{mathml(part, 'block')}</span>" for part in parts if part)


def markdown():
    md = MarkdownIt("commonmark", {"html": True}).enable("table")
    md.use(dollarmath_plugin, double_inline=True, allow_labels=False, renderer=formula)
    md.renderer.rules["table_open"] = lambda *_: "<div class='scroll'><table>\n"
    md.renderer.rules["table_close"] = lambda *_: "</table></div>\n"
    return md


def anchor(heading):
    """The name of a heading in an address, as code hosts make it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def resolve(token, page, out):
    """Points a link at the page of what it names, or at the file; puts a figure in the page."""
    for key in {"href", "src"} & set(token.attrs):
        file, _, part = token.attrs[key].partition("#")
        if file.startswith("https:") or not file:
            continue
        path = os.path.normpath(os.path.join(os.path.dirname(page), file))
        to = os.path.join(out, target(path) or os.path.join(ROOT, path))
        here = os.path.dirname(os.path.join(out, target(page)))
        token.attrs[key] = image(path) if key == "src" else (
            os.path.relpath(to, here) + ("#" + part if part else ""))


def text_of(page):
    """A page's Markdown without the links before and next at its end: nav() writes these."""
    text, last = read(page).rstrip().rsplit("\n\n", 1)
    return text.rstrip("-") if "](README.md)" in last else f"{text}\n\n{last}"


def body(page, out):
    md = markdown()
    tokens = md.parse(text_of(page))
    heads = [i for i, token in enumerate(tokens) if token.type == "heading_open"] + [len(tokens)]
    for i, following in reversed(list(zip(heads, heads[1:]))):
        name = tokens[i + 1].content
        tokens[i].attrSet("id", anchor(name))
        if name == TO_READ:
            quotes = quote_functions(tokens[i:following], page)
            tokens.insert(following, Token("html_block", "", 0, content=quotes))
    for token in tokens:
        for child in token.children or []:
            resolve(child, page, out)
    text = PICTURE.sub(lambda found: picture(found.group(1)),
                       md.renderer.render(tokens, md.options, {}))
    if "class='stepped'" in text:
        text = f"<script>\n{picture_scripts()[0]}</script>\n{text}"
    return text


def nav(page, before, up, following):
    """Links to the page before, the list and the next page, where there are such."""
    here = os.path.dirname(target(page))
    return "<nav>" + "".join(
        f"<a rel='{rel}' href='{os.path.relpath(target(to), here)}'>"
        f"{html.escape(words.format(title(to)))}</a>" if to else "<span></span>"
        for rel, words, to in [("prev", "← {}", before), ("up", "all pages", up),
                               ("next", "{} →", following)]) + "</nav>\n"


def write(out, page, links, text):
    path = os.path.join(out, target(page))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write("<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
                   "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
                   f"<title>{html.escape(title(page))}</title>\n<link rel='icon' href='data:,'>\n"
                   f"<style>\n{read('dev/lessons/pages.css')}</style>\n</head>\n<body>\n{links}"
                   f"<main>\n{text}</main>\n{links}</body>\n</html>\n")


def build(out):
    for folder in FOLDERS:
        pages = pages_of(folder)
        up = f"{folder}/README.md"
        if os.path.exists(os.path.join(ROOT, up)):
            write(out, up, nav(up, None, LIST if up != LIST else None, pages[0]), body(up, out))
        else:
            up = LIST
        for before, page, following in zip([None] + pages, pages, pages[1:] + [None]):
            links = nav(page, before, up, following)
            write(out, page, links, body(page, out) + step_code(page, before))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(".")[0])
    parser.add_argument("--out", metavar="FOLDER", default=os.path.join(ROOT, "lessons"))
    out = os.path.abspath(parser.parse_args().out)
    try:
        build(out)
    except OSError as error:
        sys.exit(f"make pages LESSONS=1: {error.filename}: {error.strerror}")
    print(f"{os.path.relpath(os.path.join(out, target(LIST)))}: open it in a browser")


if __name__ == "__main__":
    main()
