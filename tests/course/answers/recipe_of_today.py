"""Answers to the exercises of the side trip on a recipe of today."""

RIGHT = {
    "sign_flips": [
        """
def sign_flip_p_value(differences):
    sums = [0]
    for d in differences:
        sums = [s + d for s in sums] + [s - d for s in sums]
    return sum(abs(s) >= abs(sums[0]) for s in sums) / len(sums)
""",
    ],
    "init_of_today": [
        ('"c_proj" in name', '"c_v" in name or "mlp.c_proj" in name'),
        (
            "normal_(0.0, parameter.size(1) ** -0.5)",
            "uniform_(-((3 / parameter.size(1)) ** 0.5), (3 / parameter.size(1)) ** 0.5)",
        ),
    ],
}
REFUSED = {
    "init_of_today": [
        ("@torch.no_grad()\n", ""),
        ('"c_proj" in name', '"mlp.c_proj" in name'),
        ('"c_proj" in name', '"c_proj" in name or "wte" in name'),
        ('"c_proj" in name or "lm_head" in name', '"lm_head" in name'),
        ("normal_(0.0, parameter.size(1)", "normal_(0.2, parameter.size(1)"),
        ("    for name", "    torch.manual_seed(0)\n    for name"),
        ("    for name", "    model.requires_grad_(False)\n    for name"),
    ],
}
