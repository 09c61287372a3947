"""One room for each page: its exercises, the runs of its story, and its pictures."""
