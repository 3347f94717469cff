"""What the lessons' Python checks share: claims, programs, and small vectors in plain Python."""
import math
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(*command):
    """Runs a program in the repository's root."""
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def claim(holds, text):
    """Prints a claim and whether it holds; a false one ends the check with status 1."""
    print(("true   " if holds else "FALSE  ") + text)
    if not holds:
        sys.exit(1)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def softmax(scores):
    """Probabilities. The largest score is subtracted first, so that exp cannot overflow."""
    high = max(scores)
    weights = [math.exp(s - high) for s in scores]
    return [w / sum(weights) for w in weights]


def slopes(f, x, h=1e-5):
    """The gradient of f at the list x, by central differences: one pair of f's values a number."""
    gradient = []
    for i in range(len(x)):
        ahead, behind = list(x), list(x)
        ahead[i] += h
        behind[i] -= h
        gradient.append((f(ahead) - f(behind)) / (2 * h))
    return gradient


def distance(a, b):
    """The largest difference between two lists."""
    return max(abs(x - y) for x, y in zip(a, b))
