"""Views for a browser or a notebook: the inspection page of a model and its examples, and single arrays.

`passes` computes what the page shows of an example, `page` makes the page of a task, `model_page` the page of a model
without a trainer, and `show` views of single arrays. `view` writes the HTML file, from the scripts and style here.
"""
