"""The colours of pictures and pages by role, for paper and for dark screens.

Pictures are drawn in the light colours; on a page each becomes a CSS variable, so that one drawing suits both.
"""

COLOURS = {
    "paper": ("#ffffff", "#14191f"),
    "tint": ("#f5f7f9", "#1b222a"),
    "ink": ("#1f2933", "#dde3ea"),
    "faint": ("#66727f", "#95a1ae"),
    "line": ("#d8dee4", "#33404c"),
    "grid": ("#e9edf0", "#252f39"),
    "score": ("#1f5fa8", "#7ab0ea"),
    "alarm": ("#c0392b", "#f0796a"),
    "fault": ("#e0a030", "#d9a441"),
    "second": ("#7a5195", "#bf9bd8"),
    "good": ("#24734a", "#6fc397"),
}
LIGHT = {role: light for role, (light, _) in COLOURS.items()}
DARK = {role: dark for role, (_, dark) in COLOURS.items()}


def as_variables(colours: dict[str, str]) -> str:
    """Return the colours as CSS custom properties.

    >>> as_variables({"ink": "#000000", "paper": "#ffffff"})
    '--ink: #000000; --paper: #ffffff;'
    """
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
