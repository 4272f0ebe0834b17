"""The page `inspection.html`: what a trained model does with a few examples, to be explored in a browser.

`passes` computes what is shown, `stored_maps` packs the maps, `page` words the rest and writes the file.
"""
