"""Compare five optimizers on the same surface with the same settings."""

from collections.abc import Mapping
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from contourpy import contour_generator
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from cs336_course.drawing import optimizers as plots
from cs336_course.drawing.style import figure, label
from cs336_course.shared import loss_surfaces, short_optimizers
from cs336_course.widgets.widget import Explorer, Values, View, choice, slider, swatch, table, tag


class Course(NamedTuple):
    """A surface with its starting point, its minima, and the visible region."""

    surface: loss_surfaces.Surface
    start: tuple[float, float]
    minima: tuple[tuple[float, float], ...]
    window: tuple[float, float, float, float]


COURSES = {
    "ravine": Course(loss_surfaces.ravine, (-4.0, 1.5), ((0, 0),), (-4.6, 2.2, -2.1, 2.1)),
    "ravine at 45 degrees": Course(
        partial(loss_surfaces.ravine, degrees=45), (-3.9, -1.8), ((0, 0),), (-4.6, 2.2, -3.2, 1.6)
    ),
    "saddle": Course(loss_surfaces.saddle, (1.5, 0.002), ((0, 1), (0, -1)), (-1.0, 1.8, -1.4, 1.6)),
    "bowl": Course(loss_surfaces.bowl, (-1.7, 1.4), ((0, 0),), (-1.9, 1.2, -1.1, 1.7)),
}
RATES = [f"{rate:g}" for rate in (0.001, 0.003, 0.01, 0.02, 0.03, 0.038, 0.042, 0.06)]
RATES += [f"{rate:g}" for rate in (0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2, 3)]
MOMENTA = [f"{momentum:g}" for momentum in (0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)]
STEPS = ["10", "20", "40", "60", "100"]
PRESETS = {
    "SGD just holds on": {"surface": "ravine", "rate": "0.038"},  # 2 / 50 is its edge
    "SGD runs away": {"surface": "ravine", "rate": "0.042"},
    "from a ridge": {"surface": "saddle", "rate": "0.1"},
    "a turned ravine": {"surface": "ravine at 45 degrees", "rate": "0.3"},
}
WIDTH, HEIGHT = 500, 330  # of the picture, in SVG units


def rules(rate: float, momentum: float) -> dict[str, partial]:
    """Return the optimizers of the race. `momentum` is also Adam's beta1."""
    return {
        "SGD": partial(short_optimizers.SGD, lr=rate),
        "Momentum": partial(short_optimizers.Momentum, lr=rate, momentum=momentum),
        "AdaGrad": partial(short_optimizers.AdaGrad, lr=rate),
        "RMSProp": partial(short_optimizers.RMSProp, lr=rate, alpha=0.9),
        "Adam": partial(short_optimizers.Adam, lr=rate, betas=(momentum, 0.99)),
    }


def race(
    course: Course, rate: float, momentum: float, steps: int
) -> dict[str, Float[Tensor, "points 2"]]:
    """Return the path of each optimizer.

    The paths are those of `loss_surfaces.descend`, but all optimizers share one backward pass per
    step.
    """
    points = {name: nn.Parameter(torch.tensor(course.start)) for name in rules(rate, momentum)}
    drivers = [make([points[name]]) for name, make in rules(rate, momentum).items()]
    paths = [torch.tensor([course.start] * len(points))]
    for _ in range(steps):
        for driver in drivers:
            driver.zero_grad()
        course.surface(torch.stack(list(points.values()))).sum().backward()
        for driver in drivers:
            driver.step()
        paths.append(torch.stack(list(points.values())).detach())
    return dict(zip(points, torch.stack(paths, dim=1), strict=True))


def heights(course: Course, paths: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the final height of each optimizer above the minimum, or inf if it diverged."""
    floor = course.surface(torch.tensor(course.minima, dtype=torch.float32)).min()
    ends = {name: (course.surface(path[-1]) - floor).item() for name, path in paths.items()}
    return {name: end if np.isfinite(end) else np.inf for name, end in ends.items()}


def place(course: Course, points: np.ndarray) -> str:
    """Convert points of the plane to SVG coordinates. Diverged points are clipped to ±100."""
    left, right, bottom, top = course.window
    near = np.clip(np.nan_to_num(points, nan=100), -100, 100)
    x = (near[:, 0] - left) / (right - left) * WIDTH
    y = (top - near[:, 1]) / (top - bottom) * HEIGHT
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


@cache
def contours(name: str) -> str:
    """Draw the contour lines of a surface as SVG. The levels are closer near the minimum."""
    course = COURSES[name]
    x, y = torch.linspace(*course.window[:2], 121), torch.linspace(*course.window[2:], 121)
    height = course.surface(torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1))
    height = ((height - height.min()) ** 0.5).numpy()
    lines = contour_generator(x.numpy(), y.numpy(), height)
    return "".join(
        tag("polyline", points=place(course, line), fill="none", stroke="#949494", stroke_width=0.6)
        for level in np.linspace(0, height.max(), 16)[1:-1]
        for line in lines.lines(level)
    )


def drawing(name: str, paths: Mapping[str, Tensor]) -> str:
    """Draw the race as SVG, with contours, start, minima, and each path with its steps."""
    course = COURSES[name]
    parts = [tag("rect", width=WIDTH, height=HEIGHT, fill="white"), contours(name)]
    for rule, path in paths.items():
        look = plots.look(rule, 0)
        dash = "6 4" if look["linestyle"] == "--" else None
        points = place(course, path.numpy())
        line = {"fill": "none", "stroke": look["color"], "stroke_width": 2.5}
        parts.append(tag("polyline", points=points, stroke_dasharray=dash, **line))
        parts += [
            tag("circle", cx=x, cy=y, r=2.6, fill=look["color"])
            for x, y in (pair.split(",") for pair in points.split())
        ]
    x, y = place(course, np.array([course.start])).split(",")
    parts.append(tag("circle", cx=x, cy=y, r=7, fill="white", stroke="black", stroke_width=2))
    for x, y in (place(course, np.array([low])).split(",") for low in course.minima):
        cross = f"M {x} {y} m -9 0 h 18 m -9 -9 v 18"
        parts.append(tag("path", d=cross, stroke="black", stroke_width=3))
    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": WIDTH, "height": HEIGHT}
    return tag(
        "svg", "".join(parts), role="img", aria_label="the paths of the five optimizers", **size
    )


class OptimizerRace(Explorer):
    """Race SGD, Momentum, AdaGrad, RMSProp and Adam on one surface with one learning rate.

    It has the controls `surface`, `rate`, `momentum` and `steps`, and is drawn as one `svg`.
    """

    def __init__(
        self, surface: str = "ravine", rate: str = "0.03", momentum: str = "0.9", steps: str = "60"
    ):
        controls = [
            choice("surface", "surface", list(COURSES)),
            slider("rate", "learning rate", RATES),
            slider("momentum", "momentum", MOMENTA),
            slider("steps", "steps", STEPS),
        ]
        values = {"surface": surface, "rate": rate, "momentum": momentum, "steps": steps}
        super().__init__("optimizer-race", "Optimizer race", controls, values, PRESETS)

    def paths(self, values: Values) -> dict[str, Tensor]:
        """Run the race with the current settings."""
        numbers = float(values["rate"]), float(values["momentum"]), int(values["steps"])
        return race(COURSES[values["surface"]], *numbers)

    def view(self, values: Values) -> View:
        """Render the paths and the final height of each optimizer above the minimum."""
        paths = self.paths(values)
        ends = heights(COURSES[values["surface"]], paths)
        ranking = sorted(ends, key=ends.__getitem__)
        rows = []
        for rule in ranking:
            name = swatch(plots.look(rule, 0)["color"], rule)
            rows.append((name, f"{ends[rule]:.2g}" if ends[rule] < 1e6 else "ran away"))
        best = ranking[0]
        said = f"lowest after {values['steps']} steps: {best}, {ends[best]:.2g} above the minimum"
        beside = table(rows, ("optimizer", "above the minimum"))
        return View(
            said, tag("div", drawing(values["surface"], paths) + beside, class_="cs336-row")
        )

    def figure(self, values: Values) -> Figure:
        """Draw the same paths as a static figure."""
        course = COURSES[values["surface"]]
        drawn, axes = figure(10, 5)
        paths = {name: path.nan_to_num(0) for name, path in self.paths(values).items()}
        plots.surface_panel(axes, course.surface, paths, course.window, course.minima)
        title = f"{values['surface']}: learning rate {values['rate']}"
        label(axes, f"{title}, momentum {values['momentum']}", "weight 1", "weight 2")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return drawn
