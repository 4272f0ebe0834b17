"""Views for a browser or a notebook: `inspection.html`, what a model does with a few examples, and single arrays.

`passes` computes what the page shows of an example, `contents` words it; `page` has the page's two functions, `show`
those of single arrays; `view` is the file, whose scripts and style stand beside it.
"""
