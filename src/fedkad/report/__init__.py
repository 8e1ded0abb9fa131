"""Pictures and self-contained pages.

`document` is the model of a page and renders it to HTML, `chart` draws signals and scores, `findings_page` shows what
was found in recordings, and `demonstration` shows all at work on a simulated fleet. Only numpy is needed.
"""
