"""Wrong ideas for the exercises of 02_strides_and_views, and mutants that are right."""

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "predicted_strides": {
        "bytes": [("(4, 1), 12", "(16, 4), 48")],
        "offsets in bytes": [("8),", "32),"), ("12),", "48),")],
        "all offsets are 0": [("12),", "0),"), ("8),", "0),"), ("19)", "0)")],
        "indices aren't multiplied": [("12),", "1),"), ("8),", "2),"), ("19)", "5)")],
        "indices multiplied by the wrong stride": [("1), 8)", "1), 24)")],
        "strides of a fresh tensor": [("(12, 1), 8", "(4, 1), 8")],
        "index removes the last dimension": [("(12, 1), 8", "(12, 4), 8")],
        "index keeps its dimension": [("(4, 1), 12", "(12, 4, 1), 12")],
        "a step keeps the stride": [("(12, 4, 2)", "(12, 4, 1)")],
        "a step halves the strides on its left": [("(12, 4, 2)", "(6, 2, 2)")],
        "transposing changes nothing": [("(1, 4, 12)", "(12, 4, 1)")],
        "transposing rotates": [("(1, 4, 12)", "(1, 12, 4)")],
        "a slice doesn't move the start": [("19)", "15)")],
        "the last index doesn't move the start": [("19)", "16)")],
        "the first dimension is left": [("((4,), 19)", "((12,), 19)")],
        "expand copies": [("(12, 0, 1)", "(20, 4, 1)")],
        "expand keeps the stride": [("(12, 0, 1)", "(12, 4, 1)")],
        "expand removes the dimension": [("(12, 0, 1)", "(12, 1)")],
        "one answer is missing": [("((4,), 19)", "...")],
        "shapes": [("((4, 1), 12)", "((3, 4), 12)")],
    },
    "can_view": {
        "only the number of elements": [("runs = []", "return True\n    runs = []")],
        "contiguity": [
            (
                "runs = []",
                "return stride == tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))",
            )
        ],
        "one run": [("left = 1\n    for", "return len(runs) <= 1\n    left = 1\n    for")],
        "strides fall": [("runs = []", "return list(stride) == sorted(stride, reverse=True)")],
        "last stride is 1": [("runs = []", "return stride[-1] == 1")],
        "elements aren't counted": [("math.prod(shape) != math.prod(new_shape)", "False")],
        "size 1 counts in the old shape": [("if size == 1:", "if False:")],
        "size 1 counts in the new shape": [(" and size > 1", "")],
        "strides of 0 are refused": [
            ("runs = []", "if 0 in stride:\n        return False\n    runs = []")
        ],
        "strides of 0 never join": [("if runs and", "if runs and step and")],
        "dimensions never join": [("runs[-1][0] *= size", "runs.append([size, step])")],
        "every dimension joins": [("step == runs[-1][0] * runs[-1][1]", "True")],
        "joined by the step alone": [("runs[-1][0] * runs[-1][1]", "runs[-1][1]")],
        "runs in the wrong order": [("runs.pop(0)", "runs.pop()")],
        "new sizes from the left": [("reversed(new_shape)", "new_shape")],
        "new sizes needn't divide": [("left % size", "left < size")],
        "dimensions in the order of strides": [
            (
                "zip(reversed(shape), reversed(stride))",
                "sorted(zip(shape, stride), key=lambda d: d[1])",
            )
        ],
        "one dimension needs stride 1": [
            (
                "runs = []",
                "if len(shape) == 1 and stride[0] != 1:\n        return False\n    runs = []",
            )
        ],
        "one dimension without stride 0": [
            (
                "runs = []",
                "if len(shape) == 1 and stride[0] == 0:\n        return False\n    runs = []",
            )
        ],
        "no dimensions can't be viewed": [
            ("runs = []", "if not shape:\n        return False\n    runs = []")
        ],
        "a last dimension is needed": [("runs = []", "last = stride[-1]\n    runs = []")],
        "no dimensions come from none": [
            ("runs = []", "if not new_shape:\n        return shape == ()\n    runs = []")
        ],
        "sizes of 1 keep their number": [
            (
                "runs = []",
                "if math.prod(shape) == 1:\n        return len(shape) == len(new_shape)\n"
                "    runs = []",
            )
        ],
        "at most 4 old dimensions": [
            ("runs = []", "if len(shape) > 4:\n        return False\n    runs = []")
        ],
        "at most 4 new dimensions": [
            ("runs = []", "if len(new_shape) > 4:\n        return False\n    runs = []")
        ],
        "at most 100 elements": [
            ("runs = []", "if math.prod(shape) > 100:\n        return False\n    runs = []")
        ],
        "more dimensions always work": [
            ("runs = []", "if len(new_shape) >= len(shape):\n        return True\n    runs = []")
        ],
        "by torch": (
            "def can_view(shape, stride, new_shape):\n"
            "    try:\n"
            "        torch.empty_strided(shape, stride).view(new_shape)\n"
            "    except RuntimeError:\n"
            "        return False\n"
            "    return True\n"
        ),
        "by the course's library": "can_view = storage.torch_views",
    },
    "split_heads": {
        "reshaped straight": [
            (
                "channels // (3 * n_head))",
                "channels // (3 * n_head))\n"
                "    parts = [p.reshape(batch, n_head, seq, -1) for p in qkv.chunk(3, -1)]",
            ),
            ("parts.permute(2, 0, 3, 1, 4).unbind(0)", "parts"),
        ],
        "heads before the three": [
            ("3, n_head, channels // (3 * n_head)", "n_head, 3, channels // (3 * n_head)"),
            ("2, 0, 3, 1, 4", "3, 0, 2, 1, 4"),
        ],
        "channels woven": [
            ("3, n_head, channels // (3 * n_head)", "3, channels // (3 * n_head), n_head"),
            ("2, 0, 3, 1, 4", "2, 0, 4, 1, 3"),
        ],
        "every third channel": [
            ("3, n_head, channels // (3 * n_head)", "n_head, channels // (3 * n_head), 3"),
            ("2, 0, 3, 1, 4", "4, 0, 2, 1, 3"),
        ],
        "v, k, q": [("unbind(0)", "unbind(0)[::-1]")],
        "k and q swapped": [
            ("return parts", "q, k, v = parts"),
            ("unbind(0)", "unbind(0)\n    return k, q, v"),
        ],
        "head after seq": [("2, 0, 3, 1, 4", "2, 0, 1, 3, 4")],
        "head_dim before seq": [("2, 0, 3, 1, 4", "2, 0, 3, 4, 1")],
        "batch and head swapped": [("2, 0, 3, 1, 4", "2, 3, 0, 1, 4")],
        "copied": [(".unbind(0)", ".contiguous().unbind(0)")],
        "all from the queries": [("unbind(0)", "unbind(0)[:1] * 3")],
        "head_dim of the first case": [("channels // (3 * n_head)", "4")],
        "heads of the first case": [("n_head, channels // (3 * n_head)", "3, channels // 9")],
        "n_head is head_dim": [
            ("n_head, channels // (3 * n_head)", "channels // (3 * n_head), n_head")
        ],
        "strides of a fresh tensor": [
            (
                "qkv.view(batch, seq, 3, n_head, channels // (3 * n_head))",
                "qkv.as_strided((batch, seq, 3, n_head, channels // (3 * n_head)), "
                "(seq * channels, channels, channels // 3, channels // (3 * n_head), 1))",
            )
        ],
        "offsets from the start of the storage": (
            "def split_heads(qkv, n_head):\n"
            "    batch, seq, channels = qkv.shape\n"
            "    size = channels // (3 * n_head)\n"
            "    outer, row, step = qkv.stride()\n"
            "    shape, stride = (batch, n_head, seq, size), (outer, size * step, row, step)\n"
            "    offsets = (n * channels // 3 * step for n in range(3))\n"
            "    return [qkv.as_strided(shape, stride, offset) for offset in offsets]\n"
        ),
        "batch and seq flattened": [
            ("qkv.view(batch, seq, 3", "qkv.view(batch * seq, -1).view(batch, seq, 3")
        ],
        "the first sequence for the batch": [
            ("qkv.view(batch, seq", "qkv[:1].expand(batch, -1, -1).view(batch, seq")
        ],
        "always float32": [("qkv.view", "qkv.float().view")],
        "a batch of one is squeezed": [
            ("batch, seq, channels = qkv", "qkv = qkv.squeeze(0)\n    batch, seq, channels = qkv")
        ],
        "scaled in place": [("parts = qkv.view", "parts = qkv.mul_(1.5).div_(1.5).view")],
    },
    "im2col": {
        "row-major strides": [("down, right = image.stride()", "down, right = width, 1")],
        "contiguous copy": [
            ("height, width", "image = image.contiguous()\n    height, width"),
        ],
        "always a copy": [("image.as_strided", "image.clone().as_strided")],
        "offset 0": [("right))", "right), 0)")],
        "rows and columns swapped": [("(down, right, down, right)", "(right, down, right, down)")],
        "windows transposed": [("(down, right, down, right)", "(down, right, right, down)")],
        "tiles": [("(down, right, down, right)", "(down * k, right * k, down, right)")],
        "one window too few": [("height - k + 1, width - k + 1", "height - k, width - k")],
        "one window too many": [("height - k + 1, width - k + 1", "height, width")],
        "k is 3": [("k, k)", "3, 3)"), ("- k", "- 3")],
        "square images": [("width - k", "height - k")],
        "columns before rows": [("height - k + 1, width - k + 1", "width - k + 1, height - k + 1")],
        "pixels before windows": [("right))", "right)).permute(2, 3, 0, 1)")],
        "flat windows": [("right))", "right)).flatten(2)")],
        "strides of the result": [("image.stride()", "image.contiguous().stride()")],
        "last stride is 1": [("down, right = image.stride()", "down, right = image.stride(0), 1")],
        "strides in bytes": [
            ("image.stride()", "(image.element_size() * step for step in image.stride())")
        ],
        "offset in steps of 4 bytes": [
            (
                "right))",
                "right), (image.data_ptr() - image.untyped_storage().data_ptr()) // 4)",
            )
        ],
        "centered in place": [("height, width", "image.sub_(1)\n    height, width")],
    },
    "causal_mask": {
        "main diagonal": [("keys - queries", "0")],
        "wrong sign": [("keys - queries", "queries - keys")],
        "one token too far": [("keys - queries", "keys - queries + 1")],
        "itself hidden": [("keys - queries", "keys - queries - 1")],
        "True hides": [("return torch", "return ~torch")],
        "triu": [("tril(diagonal=keys - queries)", "triu(diagonal=keys - queries)")],
        "keys that come later": [
            ("tril(diagonal=keys - queries)", "triu(diagonal=keys - queries + 1)")
        ],
        "transposed": [
            ("torch.ones(queries, keys", "torch.ones(keys, queries"),
            ("tril(diagonal=keys - queries)", "tril(diagonal=keys - queries).T"),
        ],
        "floats": [(", dtype=torch.bool", "")],
        "integers": [("torch.bool", "torch.long")],
        "mask to add": (
            "def causal_mask(queries, keys):\n"
            "    hidden = torch.full((queries, keys), -torch.inf)\n"
            "    return hidden.triu(diagonal=keys - queries + 1)\n"
        ),
        "first rows of the square": [
            ("queries, keys, dtype", "keys, keys, dtype"),
            ("tril(diagonal=keys - queries)", "tril()[:queries]"),
        ],
        "square": [("queries, keys, dtype", "queries, queries, dtype"), ("keys - queries", "0")],
        "shift of the first case": [("keys - queries", "3 * (keys > queries)")],
        "half the shift": [("keys - queries", "(keys - queries + 3) // 2 * (keys > queries)")],
        "no mask for a single query": [("keys - queries", "keys - queries if queries > 1 else 0")],
        "everything if there is a cache": [
            ("keys - queries", "keys - queries if keys == queries else keys")
        ],
        "rows of a mask of 16": [
            (
                "torch.ones(queries, keys, dtype=torch.bool).tril(diagonal=keys - queries)",
                "torch.ones(16, 16, dtype=torch.bool).tril()[keys - queries : keys, :keys]",
            )
        ],
        "rows of a mask of 128": [
            (
                "torch.ones(queries, keys, dtype=torch.bool).tril(diagonal=keys - queries)",
                "torch.ones(128, 128, dtype=torch.bool).tril()[keys - queries : keys, :keys]",
            )
        ],
        "rows of a mask of 1024": [
            (
                "torch.ones(queries, keys, dtype=torch.bool).tril(diagonal=keys - queries)",
                "torch.ones(1024, 1024, dtype=torch.bool).tril()[keys - queries : keys, :keys]",
            )
        ],
        "as an array": [("queries)", "queries).numpy()")],
        "window of 4 tokens": [("queries)", "queries).triu(keys - queries - 3)")],
        "batch and head axes": [("queries)", "queries)[None, None]")],
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {
    "can_view": {
        "left //= size  =>  left /= size": "The division has no remainder there.",
    },
}
