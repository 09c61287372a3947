"""Other answers to the exercises of the page on AdaGrad."""

RAVINE, SHOCK = '"mu 0.25, lr 0.02": "crawls"', '"0.8 and 0.6": "cancel"'
RIGHT = {
    "in_the_ravine": [(RAVINE, RAVINE.replace('"crawls"', '" Crawls"'))],
    "shocks": [(SHOCK, SHOCK.replace('"cancel"', '"Cancel "'))],
}
REFUSED = {
    "in_the_ravine": [(RAVINE, RAVINE.replace("crawls", "swings"))],
    "shocks": [('"0.9 and 0.85": "keep"', '"0.9 and 0.85": "cancel"')],
}
