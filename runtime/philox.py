"""Philox4x64-10, the counter-based generator that gives every token its own random numbers.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A block is a
pure function of counter and key, so token t of a sequence draws the same number on every engine,
in any language, whatever was drawn before:

    block(t) = philox4x64(counter=(t, 0, 0, 0), key=(seed, sequence))     four words of 64 bits
    u_t      = floor(block(t)[0] / 2^32) / 2^32                           the draw itself
    x_t      = floor(block(t)[1] / 2^32) / 2^32                           whether XTC applies

`numpy.random.Philox(counter=t - 1, key=[seed, sequence])` gives the same words: it counts up first.
"""

_MASK = 2**64 - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10


def philox4x64(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """One block of four 64-bit words, from a counter and a key of such words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = _MULTIPLIERS[0] * c0
        p1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & _MASK, (p0 >> 64) ^ c3 ^ k1, p0 & _MASK
        k0 = (k0 + _KEY_STEPS[0]) & _MASK
        k1 = (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def token_draws(seed: int, sequence: int, t: int) -> tuple[int, int]:
    """(u_t, x_t) of token `t` as integers in 0..2^32-1, to be read as fractions of 2^32."""
    block = philox4x64((t, 0, 0, 0), (seed, sequence))
    return block[0] >> 32, block[1] >> 32
