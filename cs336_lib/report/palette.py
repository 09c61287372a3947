"""The colours of figures, explorers, slides, reports and the site, which stand nowhere else."""

# Okabe and Ito 2008, with a calmer yellow and pink. They differ for every kind of colour vision,
# and in lightness.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, RED, PINK = "#EBDD74", "#0072B2", "#D55E00", "#D998BC"
# The light ones have a contrast below 3:1 with white, so they only fill areas with a black edge.
# Brown and purple replace them in lines, and are as easy to tell apart.
BROWN, PURPLE, GREY = "#6B4E00", "#AA3377", "#767676"
# Digits on an area are black or white in one theme and turned round in the other. On green, red and
# black, either would be hard to read or harsh in one of them, so areas have neighbours of these.
MINT, RUST, CHARCOAL = "#4FBF9F", "#B85000", "#444444"
LINES = (BLUE, RED, GREEN, BROWN, PURPLE, BLACK)
FILLS = (BLUE, ORANGE, MINT, RUST, SKY, PINK, CHARCOAL, YELLOW)

# For style sheets, as in `var(--cs336-blue)`.
CSS = (
    f":root {{ --cs336-blue: {BLUE}; --cs336-sky: {SKY}; --cs336-red: {RED}; "
    f"--cs336-yellow: {YELLOW}; }}\n"
)
