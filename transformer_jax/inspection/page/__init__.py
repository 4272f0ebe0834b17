"""Views for a browser or a notebook: `inspection.html`, what a model does with a few examples, and single arrays.

`passes` computes what the page shows of an example, and `page` words it for a task's page; `model_page` is the page of
a model alone, `show` has views of single arrays; `view` is the file, whose scripts and style stand beside it.
"""
