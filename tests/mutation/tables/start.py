"""Wrong ideas for the exercises of 00_start_here, and mutants that are right."""

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "bytes_of": {
        "bits": [(" / 8", "")],
        "8 bytes in a bit": [("/ 8", "* 8")],
        "n forgotten": [("n * bits", "bits")],
        "always fp32": [("bits / 8", "4")],
        "always 16 or 32 bits": [("bits / 8", "(4 if bits == 32 else 2)")],
        "whole bytes for each number": [("bits / 8", "-(-bits // 8)")],
        "bits rounded down first": [("bits / 8", "(bits // 8)")],
        "rounded up": [("n * bits / 8", "-(-n * bits // 8)")],
        "rounded to the nearest": [("n * bits / 8", "round(n * bits / 8)")],
        "int()": [("n * bits / 8", "int(n * bits / 8)")],
        "at least one byte": [("n * bits / 8", "max(1, n * bits / 8)")],
        "bits padded to a power of two": [("bits / 8", "2 ** (bits - 1).bit_length() / 8")],
        "kilobytes": [("/ 8", "/ 8 / 1000")],
        "float32": [("n * bits", "torch.tensor(float(n)).item() * bits")],
        "int32": [("n * bits", "((n * bits + 2**31) % 2**32 - 2**31)")],
        "a sentence": [("n * bits / 8", 'f"{n * bits / 8} bytes"')],
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {}
