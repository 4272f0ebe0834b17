"""The page `inspection.html`: what a trained model does with a few examples, to be explored in a browser.

`passes` computes what is shown, `page` words it and writes the file.
"""
