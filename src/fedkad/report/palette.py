"""The colours of pictures and pages by role, for paper and for dark screens.

Pictures are drawn in the light colours; on a page each becomes a CSS variable, so that one drawing suits both.
"""

LIGHT = {
    "paper": "#ffffff",
    "tint": "#f5f7f9",
    "ink": "#1f2933",
    "faint": "#66727f",
    "line": "#d8dee4",
    "grid": "#e9edf0",
    "score": "#1f5fa8",
    "alarm": "#c0392b",
    "fault": "#e0a030",
    "second": "#7a5195",
    "good": "#24734a",
}

DARK = {
    "paper": "#14191f",
    "tint": "#1b222a",
    "ink": "#dde3ea",
    "faint": "#95a1ae",
    "line": "#33404c",
    "grid": "#252f39",
    "score": "#7ab0ea",
    "alarm": "#f0796a",
    "fault": "#d9a441",
    "second": "#bf9bd8",
    "good": "#6fc397",
}


def as_variables(colours: dict[str, str]) -> str:
    """The colours as CSS custom properties.

    >>> as_variables({"ink": "#000000", "paper": "#ffffff"})
    '--ink: #000000; --paper: #ffffff;'
    """
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
