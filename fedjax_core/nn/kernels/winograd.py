"""3x3 convolutions with fewer products, by Winograd's minimal filtering.

Lavin, Gray. Fast Algorithms for Convolutional Neural Networks. 2016. arXiv 1509.09308, section 4.

F(2x2, 3x3): an image is cut into tiles of 4x4 that overlap by two. Each tile gives 2x2 results by
16 products for each pair of channels instead of 36. Images are processed in blocks that fit a
core's caches. Results differ from a plain convolution by rounding.
"""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_core.nn.kernels.conv_tiny_images import Around

Array = jax.Array
Grid = list[list[Array]]
Matrix = tuple[tuple[float, ...], ...]

TILE, STEP, KERNEL = 4, 2, 3
BLOCK = 96 * 1024  # elements of one tile entry over a block of images
# Equation 10: Y = A' [(G g G') * (B' d B)] A for a tile d and a kernel g.
_B = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))  # B'
_G = ((1, 0, 0), (1, 1, 1), (1, -1, 1), (0, 0, 1))  # its rows times `_HALVES`: G
_HALVES = (1, 0.5, 0.5, 1)
_A = ((1, 1, 1, 0), (0, 1, -1, -1))  # A'


def forward(x: Array, kernel: Array, around: Around) -> Array:
    """Convolves (cross-correlation) with stride 1: [B, H, W, C], [3, 3, C, O] -> [B, H', W', O].

    `around`: rows and columns of zeros around an image; a negative number crops.
    """
    return _filtered(x, _halved(_both_ways(_G, [list(row) for row in kernel])), around)


def image_gradient(dy: Array, kernel: Array, around: Around) -> Array:
    """Returns the gradient of `forward` for x: [B, H', W', O], [3, 3, C, O] -> [B, H, W, C]."""
    (top, bottom), (left, right) = around
    back = (KERNEL - 1 - top, KERNEL - 1 - bottom), (KERNEL - 1 - left, KERNEL - 1 - right)
    factors = _halved(_both_ways(_G, [list(row) for row in kernel[::-1, ::-1]]))
    return _filtered(dy, [[factor.T for factor in row] for row in factors], back)


def _filtered(x: Array, factors: Grid, around: Around) -> Array:
    """Convolves images with a kernel's factors G g G', [C, O] each."""
    high, wide = (size + sum(ends) - KERNEL + 1 for size, ends in zip(x.shape[1:3], around, strict=True))
    channels = factors[0][0].shape

    def block(x: Array) -> Array:
        tiles = _tiles(x, around, high, wide)
        products = [[tile @ factor for tile, factor in zip(*rows, strict=True)] for rows in zip(tiles, factors, strict=True)]
        parts = _both_ways(_A, products)
        shape = (len(x), -(-high // STEP), -(-wide // STEP), channels[1])
        parts = [jnp.stack([part.reshape(shape) for part in row], 3) for row in parts]
        y = jnp.stack(parts, 2).reshape(len(x), shape[1] * STEP, shape[2] * STEP, -1)
        return y[:, :high, :wide]

    images = _images(len(x), high, wide, max(channels))
    blocks = _blocks(x, images)

    def write(i: Array, y: Array) -> Array:
        return y.at[i].set(block(blocks[i]))

    # Zeros would be one array for all convolutions, kept from the first to the last and copied for each.
    unwritten = jnp.broadcast_to(x[0, 0, 0, 0], (len(blocks), images, high, wide, channels[1]))
    y = lax.fori_loop(0, len(blocks), write, unwritten)
    return y.reshape(-1, high, wide, channels[1])[: len(x)]


def kernel_gradient(x: Array, dy: Array, around: Around) -> Array:
    """Returns the gradient of `forward` for its kernel: [B, H, W, C], [B, H', W', O] -> [3, 3, C, O]."""
    high, wide = dy.shape[1:3]
    ends = tuple((0, -size % STEP) for size in (high, wide))

    def add(total: Grid, both: tuple[Array, Array]) -> tuple[Grid, None]:
        x, dy = both
        tiles = _tiles(x, around, high, wide)
        dy = jnp.pad(dy, ((0, 0), *ends, (0, 0)))
        parts = [[dy[:, i::STEP, j::STEP].reshape(-1, dy.shape[-1]) for j in range(STEP)] for i in range(STEP)]
        spread = _both_ways(tuple(zip(*_A, strict=True)), parts)
        return [[total[k][l] + tiles[k][l].T @ spread[k][l] for l in range(TILE)] for k in range(TILE)], None

    images = _images(len(x), high, wide, max(x.shape[-1], dy.shape[-1]))
    nothing = [[jnp.zeros((x.shape[-1], dy.shape[-1]), x.dtype) for _ in range(TILE)] for _ in range(TILE)]
    total = lax.scan(add, nothing, (_blocks(x, images), _blocks(dy, images)))[0]
    return jnp.stack([jnp.stack(row) for row in _both_ways(tuple(zip(*_G, strict=True)), _halved(total))])


def _images(count: int, high: int, wide: int, channels: int) -> int:
    """Returns the images of a block: the largest divisor of their number that fits, if it uses half of the cache."""
    most = min(count, max(1, BLOCK // (-(-high // STEP) * -(-wide // STEP) * channels)))
    divisor = max(images for images in range(1, most + 1) if count % images == 0)
    return divisor if 2 * divisor >= most else -(-count // -(-count // most))


def _blocks(x: Array, images: int) -> Array:
    """Reshapes [B, H, W, C] to [blocks, images, H, W, C], padded with images of zeros."""
    x = jnp.pad(x, ((0, -len(x) % images), (0, 0), (0, 0), (0, 0)))
    return x.reshape(-1, images, *x.shape[1:])


def _tiles(x: Array, around: Around, high: int, wide: int) -> Grid:
    """Returns B' d B of all tiles: 4 x 4 arrays [B * tiles, C]."""
    down, across = -(-high // STEP), -(-wide // STEP)
    sizes = zip((down, across), around, x.shape[1:3], strict=True)
    ends = [(low, (tiles - 1) * STEP + TILE - low - size, 0) for tiles, (low, _), size in sizes]
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *ends, (0, 0, 0)))
    corners = [[x[:, i:, j:][:, : 2 * down : STEP, : 2 * across : STEP] for j in range(TILE)] for i in range(TILE)]
    return [[entry.reshape(-1, x.shape[-1]) for entry in row] for row in _both_ways(_B, corners)]


def _halved(entries: Grid) -> Grid:
    """Multiplies entry (k, l) by `_HALVES` k and l."""
    return [[high * wide * x for wide, x in zip(_HALVES, row, strict=True)] for high, row in zip(_HALVES, entries, strict=True)]


def _both_ways(matrix: Matrix, entries: Grid) -> Grid:
    """Returns matrix @ entries @ matrix'."""
    return _transposed(_combine(matrix, _transposed(_combine(matrix, entries))))


def _combine(matrix: Matrix, rows: Grid) -> Grid:
    """Returns matrix @ rows, for a matrix of 0, 1 and -1."""
    return [[_sum(line, [row[j] for row in rows]) for j in range(len(rows[0]))] for line in matrix]


def _sum(signs: tuple[float, ...], terms: list[Array]) -> Array:
    signed = [(sign, term) for sign, term in zip(signs, terms, strict=True) if sign]
    (sign, total), *others = sorted(signed, key=lambda pair: -pair[0])
    total = total if sign > 0 else -total
    for sign, term in others:
        total = total + term if sign > 0 else total - term
    return total


def _transposed(rows: Grid) -> Grid:
    return [list(column) for column in zip(*rows, strict=True)]
