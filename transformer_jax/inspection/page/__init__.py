"""The page `inspection.html`: what a trained model does with a few examples, to be explored in a browser.

`passes` computes what is shown, `contents` words it, `stored_maps` and `page` write the file.
"""
