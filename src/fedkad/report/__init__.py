"""Pictures and self-contained pages.

`document` is the model of a page and renders it to HTML without any library, `pictures` draws with matplotlib (the
extra ``report``, imported only there), and `demonstration` shows them at work on a simulated fleet.
"""
