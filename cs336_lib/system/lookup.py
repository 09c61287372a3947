"""Guess how a text continues from what it says already."""

NGRAM = 3  # tokens that must have occurred before
SHORTEST, LONGEST = 3, 15  # guesses, so that a pass reads 4, 8 or 16 tokens
TOKENS_PER_LOSS = 50  # a text may lose the time of one token in so many


class PromptLookup:
    """Guesses of the next tokens, copied from where the last three tokens occurred before.

    A pass of the model over guesses takes longer than a pass over one token, but less than twice as
    long (docs/decisions.md). So each pass with guesses costs one token, and each right guess earns
    one. If the balance is negative, there are no guesses until the text has grown by
    `TOKENS_PER_LOSS`. A text in which all guesses are wrong takes 2 % longer than without them.

    The method is prompt lookup decoding (Saxena 2023).

    Args:
        tokens: The text so far.
    """

    def __init__(self, tokens: list[int]):
        self.tokens: list[int] = []
        self.continuation: dict[tuple[int, ...], int] = {}  # n-gram: where its last one ended
        for token in tokens:
            self.append(token)
        self.balance = 0.0
        self.count = SHORTEST

    def append(self, token: int) -> None:
        """Add a token to the text."""
        self.continuation[tuple(self.tokens[-NGRAM:])] = len(self.tokens)
        self.tokens.append(token)

    def guess(self, most: int) -> list[int]:
        """Return at most `most` guesses of the next tokens, or none if they don't pay."""
        place = self.continuation.get(tuple(self.tokens[-NGRAM:]))
        if place is None or self.balance < 0:
            return []
        count = min(self.count, most)
        again = self.tokens[place : place + count]
        return (again * count)[:count]  # a loop that is shorter than `count` goes round

    def learn(self, guessed: int, right: int) -> None:
        """Pay for a pass that has `guessed` guesses, of which the first `right` ones are right.

        The next pass has more guesses if all are right.
        """
        if guessed:
            self.balance = min(self.balance + right - 1, LONGEST)
            self.count = min(2 * guessed + 1, LONGEST) if right == guessed else SHORTEST
        self.balance += (right + 1) / TOKENS_PER_LOSS
