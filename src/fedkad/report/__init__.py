"""Pictures and the self-contained page.

`comparison` holds what was found against what was injected, `page` writes HTML without any library, `pictures` draws
with matplotlib (the extra ``report``, imported by that module alone), and `demonstration` puts the three together.
"""
