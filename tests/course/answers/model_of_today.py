"""Right answers that differ in kind, and wrong ones that no mutation makes."""

import torch

from cs336_course.shared.model_of_today import grouped_attention, rotate


def by_index(weight, n_head):
    heads = weight.reshape(n_head, -1, weight.size(1))
    return torch.cat((heads[:, ::2], heads[:, 1::2]), dim=1).reshape(weight.shape)


def in_loops(weight, n_head):
    dim = len(weight) // n_head
    result = torch.empty_like(weight)
    for head in range(n_head):
        for row in range(dim):
            result[head * dim + row % 2 * (dim // 2) + row // 2] = weight[head * dim + row]
    return result


def rotating_late(q, k, v, past):
    """Keep keys before their rotation, and turn all of them in each call."""
    if past:
        k, v = torch.cat((past["raw"], k), dim=2), torch.cat((past["v"], v), dim=2)
    past["raw"], past["v"] = k, v
    positions = torch.arange(k.size(2), device=k.device)
    return grouped_attention(rotate(q, positions[-q.size(2) :]), rotate(k, positions), v)


RIGHT = {"unpermute": [by_index, in_loops], "cached_attention": [rotating_late]}
REFUSED = {
    "cached_attention": [
        (
            "q, k = rotate",
            "k, v = (t.repeat_interleave(q.size(1) // t.size(1), 1) for t in (k, v))\n"
            "    q, k = rotate",
        )
    ]
}
