"""The pictures of 02_local.py."""


def draw(e, found):
    pass
