"""Wrong ideas for the exercises of 01_dtypes, and mutants that are right."""

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "decode_by_hand": {
        "sign ignored": [("-(1 +", "(1 +")],
        "bias 128": [("127", "128")],
        "bias 255": [("127", "255")],
        "no bias": [(" - 127", "")],
        "bias minus field": [("130 - 127", "127 - 130")],
        "no leading one": [("1 + 1 / 4", "1 / 4")],
        "first mantissa bit is 1": [("1 / 4 + 1 / 8", "1 / 2 + 1 / 4")],
        "first mantissa bit is 1/4": [("1 / 4 + 1 / 8", "1 / 8 + 1 / 16")],
        "mantissa as an integer": [("1 / 4 + 1 / 8", "3")],
        "mantissa in base ten": [("1 + 1 / 4 + 1 / 8", "1.011")],
        "two times the exponent": [("**", "*")],
        "whole pattern as an integer": "answer = 0b11000001001100000000000000000000",
        "whole pattern in two's complement": "answer = 0b11000001001100000000000000000000 - 2**32",
        "text": 'answer = "-11"',
        "nearly": "answer = -11.000001",
    },
    "decode_e4m3": {
        "NaN by the rules of fp16": [(" and mantissa == 7", "")],
        "infinity": [
            ("exponent == 15 and mantissa == 7", "exponent == 15"),
            ("return math.nan", "return math.nan if mantissa else math.inf"),
        ],
        "0xFF isn't NaN": [("exponent == 15 and mantissa == 7", "code == 0x7F")],
        "bias 8": [("exponent - 7", "exponent - 8"), ("-6", "-7")],
        "subnormals with exponent -bias": [("2.0**-6", "2.0**-7")],
        "no subnormals": [("if exponent == 0", "if exponent == 0 and mantissa == 0")],
        "subnormals are 0": [("mantissa / 8 * 2.0**-6", "0.0")],
        "no leading one": [("1 + mantissa / 8", "mantissa / 8")],
        "exponent keeps the sign": [(" & 0b1111", "")],
        "sign lost": [("-value if sign else value", "value")],
        "sign only for normal numbers": [
            ("value = mantissa / 8 * 2.0**-6", "return mantissa / 8 * 2.0**-6")
        ],
        "mantissa out of 7": [("mantissa / 8", "mantissa / 7")],
        "mantissa divided with //": [("mantissa / 8", "mantissa // 8")],
        "largest value is 240": [("return -value", "value = min(value, 240.0)\n    return -value")],
        "E4M3FNUZ": [
            ("exponent == 15 and mantissa == 7", "code == 0x80"),
            ("exponent - 7", "exponent - 8"),
            ("-6", "-7"),
        ],
        "two's complement": [
            ("code >> 7, (code", "code >> 7, (abs(code - 256 * (code > 128))"),
            ("code & 0b111\n", "abs(code - 256 * (code > 128)) & 0b111\n"),
        ],
        "by torch": (
            "def decode_e4m3(code):\n"
            "    byte = torch.tensor([code], dtype=torch.uint8)\n"
            "    return byte.view(torch.float8_e4m3fn).item()\n"
        ),
        "by the course's library": "decode_e4m3 = bits.E4M3.decode",
        "text for NaN": [("return math.nan", 'return "nan"')],
    },
    "to_bf16": {
        "truncated": [("(code + 0x7FFF + last_kept)", "code")],
        "ties up": [("0x7FFF + last_kept", "0x8000")],
        "ties down": [(" + last_kept", "")],
        "ties to odd": [("0x7FFF + last_kept", "0x8000 - last_kept")],
        "one bit is looked at": [
            ("(code + 0x7FFF + last_kept) >> 16", "(code >> 16) + (code >> 15 & 1)")
        ],
        "two bits are looked at": [
            (
                "return (code + 0x7FFF + last_kept) >> 16",
                "cut_off = code >> 14 & 3\n"
                "    return (code >> 16) + (cut_off == 3 or (cut_off == 2 and last_kept))",
            )
        ],
        "14 bits are looked at below the first": [
            (
                "return (code + 0x7FFF + last_kept) >> 16",
                "return (code >> 16) + bool(code >> 15 & 1 and (code & 0x3FFF or last_kept))",
            )
        ],
        "half-way is 0x7FFF": [("0x7FFF", "0x7FFE")],
        "upper half isn't shifted": [("last_kept) >> 16", "last_kept) & ~0xFFFF")],
        "no carry out of the mantissa": [
            (
                "return (code + 0x7FFF + last_kept) >> 16",
                "mantissa = (code & 0x7FFFFF) + 0x7FFF + last_kept >> 16\n"
                "    return code >> 16 & ~0x7F | min(mantissa, 0x7F)",
            )
        ],
        "stops at the largest number": [
            (
                "return (code + 0x7FFF + last_kept) >> 16",
                "rounded = code + 0x7FFF + last_kept >> 16\n"
                "    return rounded - (rounded & 0x7FFF == 0x7F80)",
            )
        ],
        "sign lost": [("last_kept) >> 16", "last_kept) >> 16 & 0x7FFF")],
        "negative numbers rounded the other way": [
            ("0x7FFF + last_kept", "(0x7FFF + last_kept if code < 2**31 else 0x8000 - last_kept)")
        ],
        "subnormals are 0": [
            (
                "return (code",
                "if not code >> 23 & 255:\n        return code >> 31 << 15\n    return (code",
            )
        ],
        "last kept bit is one too low": [("(code >> 16) & 1", "(code >> 15) & 1")],
        "through a float": [("(code + 0x7FFF + last_kept) >> 16", "round(code / 2**16)")],
        "by torch": (
            "def to_bf16(code):\n"
            "    number = torch.tensor([code]).to(torch.uint32).view(torch.float32)\n"
            "    return number.bfloat16().view(torch.uint16).item()\n"
        ),
        "by the course's library": (
            "def to_bf16(code):\n    return bits.BF16.encode(bits.FP32.decode(code))\n"
        ),
    },
    "int8_round_trip": {
        "scale over 128": [("127", "128")],
        "scale as a tensor": [(".item()", "")],
        "scale over 255": [("127", "255")],
        "zero point": [("x.abs().max().item() / 127", "(x.max() - x.min()).item() / 255")],
        "largest value, not magnitude": [("x.abs().max()", "x.max()")],
        "magnitude of the largest value": [("x.abs().max()", "x.max().abs()")],
        "truncated": [("torch.round(x / scale)", "(x / scale)")],
        "half added, then truncated": [("torch.round(x / scale)", "(x / scale + 0.5)")],
        "floor": [("torch.round", "torch.floor")],
        "no guard for zeros": [(" or 1.0", "")],
        "eps added": [(" or 1.0", " + 1e-8")],
        "scale has a lower bound": [
            ("x.abs().max().item() / 127 or 1.0", "max(x.abs().max().item() / 127, 1e-12)")
        ],
        "one scale for each row": [
            (
                "x.abs().max().item() / 127 or 1.0",
                "x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127",
            )
        ],
        "scale of the first row": [("x.abs().max()", "x[:1].abs().max()")],
        "flat codes": [("torch.round(x", "torch.round(x.flatten()")],
        "scale upside down": [(".to(torch.int8), scale", ".to(torch.int8), 1 / scale")],
        "codes in another dtype": [("torch.int8", "torch.int16")],
        "restored instead of q": [(".to(torch.int8), scale", ".to(torch.int8) * scale, scale")],
        "in place": [("x / scale", "x.div_(scale)")],
        "zeros if the sum is 0": [(" or 1.0", " if x.sum() != 0 else 1.0")],
        "zeros if the mean is 0": [(" or 1.0", " if x.mean() != 0 else 1.0")],
        "zeros if the least number is 0": [(" or 1.0", " if x.min() != 0 else 1.0")],
        "zeros if the largest number is 0": [(" or 1.0", " if x.max() != 0 else 1.0")],
        "zeros if the first number is 0": [(" or 1.0", " if x.flatten()[0] != 0 else 1.0")],
        "zeros if the last number is 0": [(" or 1.0", " if x.flatten()[-1] != 0 else 1.0")],
        "zeros if no number differs": [
            (" or 1.0", " if x.max() != x.min() or x.numel() == 1 else 1.0")
        ],
        "magnitudes by squares": [("x.abs().max()", "x.square().max().sqrt()")],
        "127.5 steps": [("127", "127.5")],
        "zeros give scale 0": [(" or 1.0", ""), ("x / scale", "x / (scale or 1.0)")],
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {
    "int8_round_trip": {
        "scale = x.abs().max().item() / 127 or 1.0  =>  "
        "scale = x.abs().max().item() / 127 or 2.0": "Zeros may have any positive scale.",
    },
}
